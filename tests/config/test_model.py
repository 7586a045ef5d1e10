from dataclasses import replace

import numpy as np
import pytest

from zipflm import Tie, preset
from zipflm.config import FixedInput, FullOutput, GatedConvolutionDecoder

ADPT, SMT = preset("tiny", "ADP-T"), preset("tiny", "SM-T")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(ADPT, output=replace(ADPT.output, cutoffs=(10, 20))), "the same bands"),
        (lambda: replace(ADPT, output=FullOutput(dim=64)), "no weights in common; use tie=none"),
        (lambda: replace(ADPT, input=FixedInput(dim=64)), "no weights in common; use tie=none"),
        (
            lambda: replace(preset("tiny", "CNN"), tie="embeddings"),
            "CharacterInput and AdaptiveOutput have no weights in common",
        ),
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
        (
            lambda: replace(
                ADPT,
                decoder=GatedConvolutionDecoder(dim=64, blocks=((4, 96, 0),)),
                tie="head",
            ),
            "tie='head': .* end decoder.blocks with a width of 64, or use tie=none",
        ),
        (lambda: replace(ADPT, vocab_size=1000), r"cutoff 1600 exceeds vocab_size=1000"),
        (lambda: replace(ADPT, vocab_size=0), r"vocab_size=0: must be at least 1"),
        (
            lambda: replace(ADPT, input=replace(ADPT.input, sparse=True)),
            "input.sparse=True: with tie=projections the output layer gives every row a gradient",
        ),
        (
            lambda: replace(SMT, input=replace(SMT.input, sparse=True)),
            "input.sparse=True: with tie=embeddings .* use tie=none, or leave input.sparse out",
        ),
        (lambda: replace(ADPT, tie="all"), "tie='all': choose from none, embeddings"),
    ],
)
def test_impossible_models_fail_when_written(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_tie_may_be_given_by_its_value():
    assert replace(ADPT, tie="embeddings").tie is Tie.EMBEDDINGS


def test_sizes_by_part_name_every_band():
    assert preset("wikitext-103", "ADP-T").params_by_part() == {
        "input.embedding.band0": 20_000 * 1024,
        "input.embedding.band1": 40_000 * 256,
        "input.embedding.band2": 207_744 * 64,
        "input.projection.band0": 1024 * 1024,
        "input.projection.band1": 256 * 1024,
        "input.projection.band2": 64 * 1024,
        "decoder.layers": 201_539_584,
        "output.clusters": 2 * 1024,
    }


@pytest.mark.parametrize(
    ("factorization", "parts"),
    [
        ("SM", "input.table input.projection decoder.layers output.table output.projection"),
        ("SM-T", "input.table input.projection decoder.layers output.projection"),
        ("BPE-T", "input.table decoder.layers"),
        (
            "CNN",
            "input.bytes input.convolutions input.highway input.projection input.symbols "
            "decoder.layers output.clusters output.embedding.band0 output.embedding.band1 "
            "output.embedding.band2 output.projection.band1 output.projection.band2",
        ),
    ],
)
def test_parts_stand_in_the_order_in_which_a_token_passes_them(factorization, parts):
    assert " ".join(preset("wikitext-103", factorization).params_by_part()) == parts


def test_a_final_norm_counts():
    with_norm = replace(ADPT, decoder=replace(ADPT.decoder, final_norm=True))
    assert with_norm.num_params() - ADPT.num_params() == 2 * 64


# Operations to learn from a token of a block of 512 words, six a product, where the n-th word is
# met in proportion to 1 / n.
OPERATIONS = {
    "wikitext-103": {
        "SM": 2088370176.0,
        "SM-T": 2088370176.0,
        "BPE": 1464391680.0,
        "BPE-T": 1464391680.0,
        "ASM": 1397319055.4907384,
        "CNN": 2011620751.4907384,
        "ADP": 1402146156.8057961,
        "ADP-T": 1402146156.8057961,
    },
    "tiny": {
        "SM": 1785600.0,
        "SM-T": 1785600.0,
        "BPE": 1377024.0,
        "BPE-T": 1377024.0,
        "ASM": 1178591.7564362297,
        "CNN": 3895391.7564362297,
        "ADP": 1191766.1928381794,
        "ADP-T": 1191766.1928381794,
    },
}


@pytest.mark.parametrize("dataset", OPERATIONS)
def test_a_tokens_products_by_zipfs_law(dataset):
    for factorization, operations in OPERATIONS[dataset].items():
        config = preset(dataset, factorization)
        counts = 10**9 // np.arange(1, config.vocab_size + 1)
        sums = np.concatenate([[0], counts.cumsum()])

        def share(first, end, sums=sums):
            return (sums[end] - sums[first]) / sums[-1]

        products = config.products_per_token(share, 512)
        assert products == pytest.approx(operations / 6, rel=1e-12)


@pytest.mark.parametrize(
    ("factorization", "described"),
    [
        ("SM", ("embedding 512", "softmax 512")),
        ("SM-T", ("embedding 512", "softmax 512 (tied)")),
        ("BPE", ("BPE embedding 1024", "BPE softmax 1024")),
        ("BPE-T", ("BPE embedding 1024", "BPE softmax 1024 (tied)")),
        ("ASM", ("embedding 64", "adaptive 20K/40K/208K")),
        ("CNN", ("char-CNN", "adaptive 20K/40K/208K")),
        ("ADP", ("adaptive 20K/40K/208K", "adaptive 20K/40K/208K")),
        ("ADP-T", ("adaptive 20K/40K/208K", "adaptive 20K/40K/208K (tied)")),
    ],
)
def test_models_are_described_in_the_words_of_the_papers_tables(factorization, described):
    config = preset("wikitext-103", factorization)
    assert config.describe(config.batches.unit) == described


def test_a_model_that_the_paper_does_not_have_is_none_of_its_factorizations():
    untied = replace(ADPT, tie="none")
    assert untied.factorization("word") == "ADP"
    assert replace(untied, output=FullOutput(dim=64)).factorization("word") is None
    assert ADPT.factorization("bpe") is None
