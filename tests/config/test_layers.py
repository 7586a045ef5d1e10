"""What every layer answers for itself, against the layer that is built from it."""

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


def all_of_it(first, end):
    """The built layers send every token through every band and mask what is not its own."""
    return 1.0


@pytest.mark.parametrize("layer", [*INPUTS, MARKED])
def test_an_input_layer_counts_what_is_built(layer):
    model = build(layer, FullOutput(dim=8))
    assert sum(layer.params(VOCAB, WIDTH).values()) == num_params(model.input)


@pytest.mark.parametrize(("input", "output", "tie"), OUTPUTS)
def test_an_output_layer_counts_what_is_built_and_not_shared(input, output, tie):
    model = build(input, output, tie)
    assert sum(output.params(VOCAB, WIDTH, tie).values()) == num_params(model.output)


@pytest.mark.parametrize("layer", INPUTS[:-1])
def test_an_input_layers_products_are_those_that_run(layer):
    model, words = build(layer, FullOutput(dim=8)), torch.randint(VOCAB, (7,))
    assert layer.products(VOCAB, WIDTH, all_of_it) == products_of(lambda: model.input(words), 7)


def test_a_convolutions_products_are_nearly_those_that_run():
    """Counted as if a filter could begin at the last byte; and biases count as products."""
    model, words = build(CHARACTERS, FullOutput(dim=8)), torch.randint(VOCAB, (7,))
    run = products_of(lambda: model.input(words), 7)
    assert run < CHARACTERS.products(VOCAB, WIDTH, all_of_it) < 1.25 * run


@pytest.mark.parametrize(("input", "output", "tie"), OUTPUTS)
def test_an_output_layers_products_are_those_that_run(input, output, tie):
    model, targets = build(input, output, tie), torch.randint(VOCAB, (7,))
    run = products_of(lambda: model.output.nll(torch.randn(7, WIDTH), targets), 7)
    assert output.products(VOCAB, WIDTH, tie, all_of_it) == run


def test_a_token_costs_what_its_own_band_costs():
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
    ("layer", "of_words", "of_pieces"),
    [
        (FixedInput(dim=64), "embedding 64", "BPE embedding 64"),
        (CHARACTERS, "char-CNN", "BPE char-CNN"),
        (
            AdaptiveInput(dim=64, cutoffs=(20_000, 60_000)),
            "adaptive 20K/40K/208K",
            "BPE adaptive 20K/40K/208K",
        ),
        (FullOutput(dim=512), "softmax 512", "BPE softmax 512"),
        (
            AdaptiveOutput(dim=64, cutoffs=(400, 1_600)),
            "adaptive 0.4K/1.2K/266K",
            "adaptive 0.4K/1.2K/266K",
        ),
    ],
)
def test_layers_are_called_as_in_the_papers_tables(layer, of_words, of_pieces):
    assert layer.describe(267_744, "word") == of_words
    assert layer.describe(267_744, "bpe") == of_pieces


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaptiveOutput(cutoffs=(1,), dim=8, tail_dropout=-0.1), "tail_dropout=-0.1"),
        (lambda: AdaptiveOutput(cutoffs=(1,), dim=8, input_dropout=1), "input_dropout=1"),
        (lambda: AdaptiveOutput(cutoffs=(1, 2), dim=8, tail_dropout=(0.1,)), "one per tail .2"),
        (lambda: AdaptiveOutput(cutoffs=(1,), dim=8, tail_dropout=(1.5,)), "tail_dropout=1.5"),
        (lambda: CharacterInput(filters=((1, 8),), max_bytes=2, markers=True), "max_bytes=2"),
        (lambda: CharacterInput(filters=()), "at least one filter"),
        (lambda: CharacterInput(filters=((60, 8),)), "bytes <= max_bytes=50"),
        (lambda: CharacterInput(filters=((1, 2, 3),)), "each is .bytes, features."),
        (lambda: FixedInput(dim=0), "dim=0: must be at least 1"),
        (lambda: FullOutput(dim=0), "dim=0: must be at least 1"),
    ],
)
def test_impossible_layers_fail_when_written(make, message):
    with pytest.raises(ValueError, match=message):
        make()
