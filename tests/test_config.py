from dataclasses import replace

import pytest
import torch

from zipflm import LanguageModel, Tie, preset
from zipflm.config import (
    AdaptiveOutput,
    BatchConfig,
    CharacterInput,
    DecoderConfig,
    FixedInput,
    FullOutput,
    TrainingConfig,
)

ADPT, SMT = preset("tiny", "ADP-T"), preset("tiny", "SM-T")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(ADPT, output=replace(ADPT.output, cutoffs=(10, 20))), "the same bands"),
        (lambda: replace(ADPT, output=FullOutput(dim=64)), "no weights in common; use tie=none"),
        (lambda: replace(ADPT, input=FixedInput(dim=64)), "no weights in common; use tie=none"),
        (lambda: replace(SMT, input=FixedInput(dim=8)), "input.dim=8 and output.dim=32"),
        (lambda: replace(SMT, tie=Tie.PROJECTIONS), "use tie=embeddings"),
        (
            lambda: replace(
                ADPT,
                input=replace(ADPT.input, dim=32),
                output=replace(ADPT.output, dim=32),
            ),
            "output.dim=32 must be decoder.dim=64; or use tie=head",
        ),
        (lambda: replace(ADPT, vocab_size=1000), r"cutoff 1600 exceeds vocab_size=1000"),
        (lambda: DecoderConfig(dim=30, num_heads=4), "num_heads=4: must divide dim=30"),
        (lambda: DecoderConfig(dropout=1.0), r"dropout=1.0: a dropout rate lies in \[0, 1\)"),
        (
            lambda: DecoderConfig(dim=12, num_heads=4, positions="rotary"),
            "even head width, not 3",
        ),
        (lambda: AdaptiveOutput(cutoffs=(1,), dim=8, tail_dropout=-0.1), "tail_dropout=-0.1"),
        (lambda: CharacterInput(filters=()), "at least one filter"),
        (lambda: CharacterInput(filters=((60, 8),)), "bytes <= max_bytes=50"),
        (lambda: CharacterInput(filters=((1, 2, 3),)), "each is .bytes, features."),
        (lambda: DecoderConfig(activation="gelu"), "activation='gelu': choose from relu, relu_sq"),
        (lambda: TrainingConfig(precision="fp16"), "precision='fp16': choose from float32"),
        (lambda: BatchConfig(break_mode="eos"), "break_mode='eos': choose from none, complete"),
        (lambda: replace(ADPT, tie="all"), "tie='all': choose from none, embeddings"),
        (lambda: FixedInput(dim=0), "dim=0: must be at least 1"),
        (lambda: BatchConfig(block=512, tokens=100), "tokens=100: a block of 512"),
        (lambda: BatchConfig(eval_block=512, eval_context=512), "eval_context=512"),
    ],
)
def test_impossible_configs_fail_when_written(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_sizes_by_part_name_every_band():
    parts = preset("wikitext-103", "ADP-T").params_by_part()
    assert parts["input.embedding.band0"] == 20_000 * 1024
    assert parts["input.embedding.band2"] == 207_744 * 64
    assert parts["input.projection.band1"] == 256 * 1024
    assert parts["decoder.layers"] == 201_539_584
    assert parts["output.clusters"] == 2 * 1024


@pytest.mark.parametrize("field", [{"bias": False}, {"norm": "rms"}, {"qk_norm": True}])
def test_modern_choices_count_what_the_built_model_has(field):
    config = replace(ADPT, decoder=replace(ADPT.decoder, **field))
    with torch.device("meta"):
        model = LanguageModel(config)
    assert config.num_params() == sum(parameter.numel() for parameter in model.parameters())


def test_a_final_norm_counts():
    with_norm = replace(ADPT, decoder=replace(ADPT.decoder, final_norm=True))
    assert with_norm.num_params() - ADPT.num_params() == 2 * 64


def test_a_tie_may_be_given_by_its_value():
    assert replace(ADPT, tie="embeddings").tie is Tie.EMBEDDINGS
