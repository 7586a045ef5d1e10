"""Variants change the fields in their names, and no others."""

from dataclasses import fields

import pytest

from zipflm.config import CosineCycles
from zipflm.presets import preset
from zipflm.presets.variants import variants_of


def changed_fields(config, variant, prefix=""):
    names = set()
    for field in fields(config):
        old, new = getattr(config, field.name), getattr(variant, field.name, None)
        if old == new:
            continue
        if hasattr(old, "__dataclass_fields__") and type(old) is type(new):
            names |= changed_fields(old, new, f"{prefix}{field.name}.")
        else:
            names.add(prefix + field.name)
    return names


BLOCK = {"batches.block", "batches.eval_block"}
CUTOFFS = {"input.cutoffs", "output.cutoffs"}
FAIRSEQ = {"decoder.init", "decoder.num_heads", "output.input_dropout"}
FAIRSEQ |= {"batches.block", "batches.tokens", "training.tokens_per_update"}
FAIRSEQ |= {"training.schedule.first_cycle", "training.schedule.min_lr"}


@pytest.mark.parametrize(
    ("dataset", "factorization", "variant", "changed"),
    [
        ("wikitext-103", "SM", "dropout-0.4", {"decoder.dropout"}),
        ("wikitext-103", "SM", "dim-256", {"input.dim", "output.dim"}),
        ("wikitext-103", "SM", "input-64", {"input.dim"}),
        ("wikitext-103", "SM-T", "dim-256", {"input.dim", "output.dim"}),
        ("wikitext-103", "ASM", "input-128", {"input.dim"}),
        ("wikitext-103", "ADP", "tail-dropout-0", {"output.tail_dropout"}),
        ("wikitext-103", "ADP-T", "tie-head", {"tie"}),
        ("wikitext-103", "ADP-T", "tie-projections", set()),
        ("wikitext-103", "ADP-T", "bands-20k-40k-200k", set()),
        ("wikitext-103", "ADP-T", "bands-5k-155k-100k", CUTOFFS),
        ("wikitext-103", "ADP-T", "block-2048", BLOCK),
        (
            "wikitext-103",
            "ADP-T",
            "block-3072-context-2560",
            BLOCK | {"batches.tokens", "batches.eval_context", "training.tokens_per_update"},
        ),
        (
            "wikitext-103",
            "ADP-T",
            "no-reduction",
            {"tie", "input.dim", "input.factor", "output.dim", "output.factor"},
        ),
        ("billion-word", "ADP-T", "main-result", {"training.tokens_per_update"}),
        ("billion-word", "ADP-T", "fairseq", {"decoder.init"}),
        ("wikitext-103", "ADP-T", "fairseq", FAIRSEQ),
    ],
)
def test_variants_change_only_the_named_fields(dataset, factorization, variant, changed):
    config = preset(dataset, factorization)
    varied = variants_of(dataset, factorization)[variant](config)
    assert changed_fields(config, varied) == changed


def test_every_row_of_the_appendix_is_a_variant():
    asm, sm, adpt = (variants_of("wikitext-103", label) for label in ("ASM", "SM", "ADP-T"))
    assert asm.keys() >= {"input-256", "input-128", "input-64", "input-32", "tail-dropout-0"}
    assert sm.keys() >= {"dropout-0.4", "dim-256", "input-64"}
    assert adpt.keys() >= {"tie-embeddings", "tie-projections", "tie-head", "no-reduction"}
    assert sum(name.startswith("bands-") for name in adpt) == 6
    assert sum(name.startswith("block-") for name in adpt) == 5


def test_band_variants_give_words_per_band():
    config = preset("wikitext-103", "ADP-T", variant="bands-20k-40k-60k-140k")
    assert config.output_bands.cutoffs == (20_000, 60_000, 120_000)
    assert config.output_bands.widths == (1024, 256, 64, 16)


def test_block_variants_use_whole_blocks_per_device():
    best = preset("wikitext-103", "ADP-T", variant="block-3072-context-2560")
    assert (best.batches.block, best.batches.tokens) == (3072, 3072)
    assert (best.batches.eval_block, best.batches.eval_context) == (3072, 2560)
    assert best.training.tokens_per_update == 8 * 2 * 3072


def test_presets_follow_the_paper_and_fairseq_variant_the_code():
    paper, code = (preset("wikitext-103", "ADP-T", variant=v) for v in (None, "fairseq"))
    assert (paper.decoder.num_heads, code.decoder.num_heads) == (16, 8)
    assert (paper.output.input_dropout, code.output.input_dropout) == (0.0, 0.2)
    assert (paper.output.tail_dropout, code.output.tail_dropout) == (0.2, 0.2)
    assert (paper.decoder.init, code.decoder.init) == ("paper", "fairseq")
    assert paper.training.schedule == CosineCycles(first_cycle=18_000, shrink=0.75)
    assert code.training.schedule == CosineCycles(first_cycle=270_000, min_lr=1e-4)
