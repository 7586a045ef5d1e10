"""`key=value` overrides, and error messages for invalid ones."""

from dataclasses import dataclass
from itertools import permutations

import pytest

from zipflm import Tie, preset
from zipflm.config import (
    AdamW,
    AdaptiveInput,
    CharacterInput,
    FixedInput,
    FullOutput,
    Muon,
    WarmupDecay,
)
from zipflm.settings import override

CONFIG = preset("tiny", "ADP-T")


def test_parses_values_by_field_type():
    changed = override(
        CONFIG,
        [
            "decoder.num_layers=1_000",
            "decoder.dropout=0.25",
            "decoder.final_norm=true",
            "tie=none",
            "output.cutoffs=100,200,300",
            "decoder.positions=rotary",
        ],
    )
    assert changed.decoder.num_layers == 1000
    assert changed.decoder.dropout == 0.25
    assert changed.decoder.final_norm is True
    assert changed.tie is Tie.NONE
    assert changed.output.cutoffs == (100, 200, 300)
    assert changed.decoder.positions == "rotary"
    assert changed.input == CONFIG.input


def test_dependent_fields_can_change_together():
    changed = override(CONFIG, ["input.cutoffs=9,99", "output.cutoffs=9,99"])
    assert changed.output_bands == changed.input_bands


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("decoder.num_layer=3", "unknown key decoder.num_layer: did you mean decoder.num_layers?"),
        ("decodr.num_layers=3", "unknown key decodr.num_layers: did you mean decoder.num_layers?"),
        ("training.optimizer.kind=x", "unknown key training.optimizer.kind: known: training"),
        ("lr=3", "unknown key lr: did you mean training.schedule."),
        ("decoder.num_layers=three", "decoder.num_layers='three': expected int"),
        ("decoder.num_layers=2.5", "decoder.num_layers='2.5': expected int"),
        ("decoder.dropout=high", "decoder.dropout='high': expected float"),
        ("input.cutoffs=10,y", "input.cutoffs='10,y': expected comma-separated numbers"),
        ("training.stages=0.3", "='0.3': expected comma-separated groups a:b of numbers"),
        ("training.stages=0.3:x", "='0.3:x': expected comma-separated groups a:b of numbers"),
        ("decoder.final_norm=maybe", "expected bool"),
        ("decoder.positions=learned", "expected sinusoidal or rotary"),
        ("tie=all", "expected none, embeddings, projections or head"),
        ("decoder=5", "set one of its fields: decoder.dim"),
        ("vocab_size.x=5", "vocab_size has no fields"),
        ("decoder.num_layers", "write an override as key=value"),
        ("decoder.num_heads=5", "num_heads=5: must divide dim=64"),
        ("decoder.num_layers=\u0663", "decoder.num_layers='\u0663': expected int"),
        ("decoder.dropout=nan", "decoder.dropout='nan': expected float"),
        ("training.seed=-1", "training.seed=-1: must be 0 or more"),
        ("batches.tokens=4", "batches.tokens=4: must be at least"),
        ("name=two\nlines", "name='two\\nlines': "),
        ("dec\noder.dim=8", "unknown key 'dec\\noder.dim'"),
        ("decoder=" + "x" * 99_999, "decoder='xxx"),
        ("x" * 99_999, "'xxx"),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_invalid_overrides_explain_what_is_expected(assignment, message):
    with pytest.raises(ValueError) as error:
        override(CONFIG, [assignment])
    text = str(error.value)
    assert message in text and len(text) < 600 and text.isprintable()


def test_does_not_suggest_the_unknown_key_itself():
    lstm = ["decoder=LSTMDecoder", "decoder.hidden_dim=64", "decoder.num_heads=3"]
    with pytest.raises(ValueError, match="unknown key decoder.num_heads: ") as error:
        override(CONFIG, lstm)
    assert "mean decoder.num_heads" not in str(error.value)


TOGETHER = {
    "input=CharacterInput tie=none": lambda c: (c.input, c.tie) == (CharacterInput(), Tie.NONE),
    "output=FullOutput output.dim=32 tie=none": lambda c: c.output == FullOutput(dim=32),
    "output=FullOutput input=FixedInput tie=embeddings": lambda c: (
        (c.input, c.output) == (FixedInput(dim=64), FullOutput(dim=64))
    ),
    "training.optimizer.lr=3e-4 training.optimizer=AdamW": lambda c: (
        c.training.optimizer == AdamW(lr=3e-4)
    ),
    "training.optimizer=Muon training.optimizer.beta2=0.9": lambda c: (
        c.training.optimizer == Muon(beta2=0.9)  # without Nesterov's default momentum
    ),
    "training.schedule=WarmupDecay training.schedule.warmup=0.1": lambda c: (
        c.training.schedule == WarmupDecay(warmup=0.1)
    ),
}


@pytest.mark.parametrize("assignments", TOGETHER)
def test_classes_and_their_fields_can_be_set_in_any_order(assignments):
    for order in permutations(assignments.split()):
        assert TOGETHER[assignments](override(CONFIG, order)), order


def test_new_class_keeps_common_fields_that_were_set():
    modern = override(CONFIG, ["training.optimizer=Muon", "training.optimizer.table_lr=0.5"])
    changed = override(modern, ["training.optimizer=AdamW"])
    assert changed.training.optimizer == AdamW(table_lr=0.5)
    bands = override(CONFIG, ["input=FixedInput", "tie=none"])
    assert bands.input == FixedInput(dim=CONFIG.input.dim)


def test_names_missing_fields_of_a_new_class():
    plain = preset("tiny", "SM")
    with pytest.raises(ValueError, match=r"^input.cutoffs: missing.* add input.cutoffs="):
        override(plain, ["input=AdaptiveInput"])
    changed = override(plain, ["input.cutoffs=10,20", "input=AdaptiveInput"])
    assert changed.input == AdaptiveInput(cutoffs=(10, 20), dim=plain.input.dim)


@dataclass(frozen=True, kw_only=True)
class Optional:
    limit: int | None = None


def test_optional_fields_accept_none():
    assert override(Optional(limit=3), ["limit=none"]).limit is None
    assert override(Optional(), ["limit=4"]).limit == 4
