import pytest

from zipflm import Tie, preset
from zipflm.config import AdaptiveOutput, CosineCycles
from zipflm.presets import from_name, variants


def test_billion_word_shares_embeddings_and_wikitext_projections_too():
    assert preset("billion-word", "ADP-T").tie is Tie.EMBEDDINGS
    assert preset("wikitext-103", "ADP-T").tie is Tie.PROJECTIONS


def test_bands_follow_the_width_of_the_very_large_model():
    bands = preset("billion-word", "ADP-T", size="very-large").output_bands
    assert bands.widths == (1536, 384, 96)


def test_the_preset_is_the_papers_and_the_variant_fairseqs():
    paper, code = (preset("wikitext-103", "ADP-T", variant=v) for v in (None, "fairseq"))
    assert (paper.decoder.num_heads, code.decoder.num_heads) == (16, 8)
    assert isinstance(paper.output, AdaptiveOutput) and isinstance(code.output, AdaptiveOutput)
    assert (paper.output.input_dropout, code.output.input_dropout) == (0.0, 0.2)
    assert (paper.output.tail_dropout, code.output.tail_dropout) == (0.2, 0.2)
    assert (paper.decoder.init, code.decoder.init) == ("paper", "fairseq")
    assert paper.training.schedule == CosineCycles(first_cycle=18_000, shrink=0.75)
    assert code.training.schedule == CosineCycles(first_cycle=270_000, min_lr=1e-4)


def test_four_bands_of_the_appendix():
    config = preset("wikitext-103", "ADP-T", variant="bands-20k-40k-60k-140k")
    assert config.output_bands.cutoffs == (20_000, 60_000, 120_000)
    assert config.output_bands.widths == (1024, 256, 64, 16)


@pytest.mark.parametrize(
    "name",
    ["tiny/ADP-T", "billion-word/ADP-T/very-large", "wikitext-103/ASM/input-128"],
)
def test_names_are_those_of_the_command_line(name):
    assert from_name(name).name == name


def test_tokens_an_update_are_the_papers():
    def tokens(*names, **options):
        return preset(*names, **options).training.tokens_per_update

    assert tokens("wikitext-103", "ADP-T") == tokens("billion-word", "ADP-T") == 65_536
    assert tokens("wikitext-103", "SM") == 32_768
    # Billion Word's main results used 64 devices instead of 32.
    assert tokens("billion-word", "ADP-T", size="large") == 131_072
    assert tokens("billion-word", "CNN", variant="main-result") == 131_072
    # One block of 3072 fits into the 4096 tokens of a device.
    best = preset("wikitext-103", "ADP-T", variant="block-3072-context-2560")
    assert best.batches.tokens == 3072
    assert best.training.tokens_per_update == 8 * 2 * 3072


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wikitext-3/ADP-T", "dataset='wikitext-3': choose from wikitext-103, billion-word, wiki"),
        ("tiny/ADPT", "factorization='ADPT': choose from SM, SM-T"),
        ("tiny", "write dataset/factorization, e.g. tiny/ADP-T"),
        ("tiny/ADP-T/large", "tiny has one size"),
        ("wikitext-103/ADP-T/bands", "variant of wikitext-103/ADP-T='bands': choose from tie-"),
        ("wikitext-103/ADP-T/base/fairseq/more", r"write dataset/factorization\[/size\]"),
    ],
)
def test_unknown_names_list_the_known(name, message):
    with pytest.raises(ValueError, match=message):
        from_name(name)


def test_every_row_of_the_appendix_has_a_name():
    assert set(variants("wikitext-103", "ASM")) >= {"input-256", "input-128", "input-32"}
    assert set(variants("wikitext-103", "SM")) >= {"dropout-0.4", "dim-256", "input-64"}
    assert set(variants("wikitext-103", "ADP-T")) >= {"tie-embeddings", "tie-head", "no-reduction"}
    assert sum(name.startswith("bands-") for name in variants("wikitext-103", "ADP-T")) == 6
