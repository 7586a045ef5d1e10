"""Parameter counts and costs of layer configs, compared with the built layers."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from zipflm import LanguageModel, ModelConfig, Tie
from zipflm.config import (
    AdaptiveInput,
    AdaptiveOutput,
    CharacterInput,
    FixedInput,
    FullOutput,
    TransformerDecoder,
)

VOCAB, WIDTH = 200, 32
BANDS = {"cutoffs": (20, 80), "factor": 2}
CHARACTERS = CharacterInput(char_dim=4, filters=((1, 8), (3, 16)), highway_layers=2, max_bytes=10)
INPUTS = [FixedInput(dim=WIDTH), FixedInput(dim=8), AdaptiveInput(dim=WIDTH, **BANDS)]
INPUTS += [AdaptiveInput(dim=16, **BANDS), AdaptiveInput(dim=16, cutoffs=()), CHARACTERS]
MARKED = replace(CHARACTERS, markers=True)


def tied(dim, tie, **options):
    return AdaptiveInput(dim=dim, **BANDS), AdaptiveOutput(dim=dim, **BANDS, **options), tie


OUTPUTS = [
    (FixedInput(dim=8), FullOutput(dim=WIDTH), Tie.NONE),
    (FixedInput(dim=8), FullOutput(dim=8), Tie.NONE),
    (FixedInput(dim=8), FullOutput(dim=8), Tie.EMBEDDINGS),
    (FixedInput(dim=8), AdaptiveOutput(dim=WIDTH, cutoffs=()), Tie.NONE),
    *(tied(WIDTH, tie) for tie in Tie),
    tied(16, Tie.NONE),
    tied(16, Tie.HEAD),
    tied(WIDTH, Tie.PROJECTIONS, head_projection=True),
    tied(16, Tie.NONE, head_projection=True),
]


def build(input, output, tie=Tie.NONE):
    decoder = TransformerDecoder(dim=WIDTH, num_layers=1, num_heads=1, ffn_dim=8)
    config = ModelConfig(vocab_size=VOCAB, input=input, decoder=decoder, output=output, tie=tie)
    spellings = torch.randint(257, (VOCAB, 10)) if isinstance(input, CharacterInput) else None
    return LanguageModel(config, spellings, impl="reference").eval()


def num_params(module):
    return sum(parameter.numel() for parameter in module.parameters())


def products_of(run, tokens):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / 2 / tokens


def full_share(first, end):
    """Built layers send every token through every band and mask the others."""
    return 1.0


@pytest.mark.parametrize("layer", [*INPUTS, MARKED])
def test_input_parameter_count_matches_built_layer(layer):
    model = build(layer, FullOutput(dim=8))
    assert sum(layer.params(VOCAB, WIDTH).values()) == num_params(model.input)


@pytest.mark.parametrize(("input", "output", "tie"), OUTPUTS)
def test_output_parameter_count_matches_built_layer(input, output, tie):
    model = build(input, output, tie)
    assert sum(output.params(VOCAB, WIDTH, tie).values()) == num_params(model.output)


@pytest.mark.parametrize("layer", INPUTS[:-1])
def test_input_products_match_built_layer(layer):
    model, words = build(layer, FullOutput(dim=8)), torch.randint(VOCAB, (7,))
    assert layer.products(VOCAB, WIDTH, full_share) == products_of(lambda: model.input(words), 7)


def test_convolution_products_are_close_to_built_layer():
    """The count includes biases, and filters that start at the last byte."""
    model, words = build(CHARACTERS, FullOutput(dim=8)), torch.randint(VOCAB, (7,))
    run = products_of(lambda: model.input(words), 7)
    assert run < CHARACTERS.products(VOCAB, WIDTH, full_share) < 1.25 * run


@pytest.mark.parametrize(("input", "output", "tie"), OUTPUTS)
def test_output_products_match_built_layer(input, output, tie):
    model, targets = build(input, output, tie), torch.randint(VOCAB, (7,))
    run = products_of(lambda: model.output.nll(torch.randn(7, WIDTH), targets), 7)
    assert output.products(VOCAB, WIDTH, tie, full_share) == run


def test_tokens_only_cost_products_of_their_own_band():
    def in_the_head(first, end):
        return float(first == 0)

    def in_the_last_band(first, end):
        return float(end == VOCAB)

    layer = AdaptiveInput(dim=WIDTH, **BANDS)
    assert layer.products(VOCAB, WIDTH, in_the_head) == 32 * 32
    assert layer.products(VOCAB, WIDTH, in_the_last_band) == 8 * 32
    output = AdaptiveOutput(dim=WIDTH, **BANDS)
    head = (20 + 2) * 32
    assert output.products(VOCAB, WIDTH, Tie.NONE, in_the_head) == head
    last = head + 8 * (120 + 32)
    assert output.products(VOCAB, WIDTH, Tie.NONE, in_the_last_band) == last


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaptiveOutput(cutoffs=(1,), dim=8, tail_dropout=-0.1), "tail_dropout=-0.1"),
        (lambda: AdaptiveOutput(cutoffs=(1,), dim=8, input_dropout=1), "input_dropout=1"),
        (lambda: CharacterInput(filters=((1, 8),), max_bytes=2, markers=True), "max_bytes=2"),
        (lambda: CharacterInput(filters=()), r"filters=\(\): give filters as bytes:features"),
        (lambda: CharacterInput(filters=((60, 8),)), "1 to max_bytes=50 bytes"),
        (lambda: FixedInput(dim=0), "dim=0: must be at least 1"),
        (lambda: FullOutput(dim=0), "dim=0: must be at least 1"),
    ],
)
def test_rejects_impossible_layers(make, message):
    with pytest.raises(ValueError, match=message):
        make()
