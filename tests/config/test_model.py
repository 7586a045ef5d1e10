from dataclasses import replace

import pytest

from zipflm import Tie, preset
from zipflm.config import FixedInput, FullOutput, GatedConvolutionDecoder

ADPT, SMT = preset("tiny", "ADP-T"), preset("tiny", "SM-T")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(ADPT, output=replace(ADPT.output, cutoffs=(10, 20))), "the same bands"),
        (lambda: replace(ADPT, output=FullOutput(dim=64)), "cannot share weights; use tie=none"),
        (lambda: replace(ADPT, input=FixedInput(dim=64)), "cannot share weights; use tie=none"),
        (
            lambda: replace(preset("tiny", "CNN"), tie="embeddings"),
            "CharacterInput and AdaptiveOutput cannot share weights",
        ),
        (lambda: replace(SMT, input=FixedInput(dim=8)), "input.dim=8 and output.dim=32"),
        (lambda: replace(SMT, tie=Tie.PROJECTIONS), "use tie=embeddings"),
        (
            lambda: replace(
                ADPT,
                input=replace(ADPT.input, dim=32),
                output=replace(ADPT.output, dim=32),
            ),
            "output.dim=32 must equal decoder.dim=64; or use tie=head",
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
            r"input.sparse=True: .*\(tie=projections\) has dense gradients",
        ),
        (
            lambda: replace(SMT, input=replace(SMT.input, sparse=True)),
            "input.sparse=True: .*tie=embeddings.* use tie=none or input.sparse=false",
        ),
        (lambda: replace(ADPT, tie="all"), "tie='all': choose from none, embeddings"),
    ],
)
def test_rejects_impossible_models(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_accepts_tie_as_text():
    assert replace(ADPT, tie="embeddings").tie is Tie.EMBEDDINGS


def test_params_by_part_lists_every_band():
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
def test_params_by_part_are_ordered_from_input_to_output(factorization, parts):
    assert " ".join(preset("wikitext-103", factorization).params_by_part()) == parts


def test_final_norm_counts_as_parameters():
    with_norm = replace(ADPT, decoder=replace(ADPT.decoder, final_norm=True))
    assert with_norm.num_params() - ADPT.num_params() == 2 * 64


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
def test_describes_models_as_the_papers_tables_do(factorization, described):
    config = preset("wikitext-103", factorization)
    assert config.describe(config.batches.unit) == described


def test_models_outside_the_paper_have_no_factorization():
    untied = replace(ADPT, tie="none")
    assert untied.factorization("word") == "ADP"
    assert replace(untied, output=FullOutput(dim=64)).factorization("word") is None
    assert ADPT.factorization("bpe") is None
