import pytest

from zipflm import Tie, preset
from zipflm.presets import DATASETS, FACTORIZATIONS, dataset_of, from_name, variants


def test_billion_word_shares_embeddings_and_wikitext_projections_too():
    assert preset("billion-word", "ADP-T").tie is Tie.EMBEDDINGS
    assert preset("wikitext-103", "ADP-T").tie is Tie.PROJECTIONS


def test_bands_follow_the_width_of_the_very_large_model():
    bands = preset("billion-word", "ADP-T", size="very-large").output_bands
    assert bands.widths == (1536, 384, 96)


@pytest.mark.parametrize(("dataset", "dim"), [("wikitext-103", 512), ("billion-word", 64)])
@pytest.mark.parametrize("factorization", ["SM", "SM-T"])
def test_plain_word_tables_are_as_wide_as_in_section_5_2(dataset, dim, factorization):
    config = preset(dataset, factorization)
    assert config.input.dim == config.output.dim == dim


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wikitext-3/ADP-T", "dataset='wikitext-3': choose from wikitext-103, billion-word, wiki"),
        ("tiny/ADPT", "factorization='ADPT': choose from SM, SM-T"),
        ("tiny/adp-t", "did you mean ADP-T?"),
        ("Tiny/ADP-T", "did you mean tiny?"),
        ("tiny", "write dataset/factorization, e.g. tiny/ADP-T"),
        ("tiny/ADP-T/large", "tiny has one size"),
        ("wikitext-103/ADP-T/bands", "variant of wikitext-103/ADP-T='bands': choose from tie-"),
        ("wikitext-103/ADP-T/base/fairseq/more", r"write dataset/factorization\[/size\]"),
    ],
)
def test_unknown_names_list_the_known(name, message):
    with pytest.raises(ValueError, match=message):
        from_name(name)


def test_names_of_variants_are_those_that_a_preset_takes():
    assert variants("tiny", "ADP-T") == ()
    for name in variants("wikitext-103", "SM"):
        assert from_name(f"wikitext-103/SM/{name}").name == f"wikitext-103/SM/{name}"


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_sub_word_models_have_the_vocabulary_of_sub_words(dataset, factorization):
    config = preset(dataset, factorization)
    is_bpe = factorization in ("BPE", "BPE-T")
    assert config.batches.unit == ("bpe" if is_bpe else "word")
    words = preset(dataset, "ADP-T").vocab_size
    assert (config.vocab_size < words) if is_bpe else (config.vocab_size == words)


def test_a_name_leads_to_its_dataset():
    paper = {name for name in DATASETS if dataset_of(f"{name}/ADP-T").is_of_the_paper}
    assert paper == {"wikitext-103", "billion-word"}
    assert {name for name in DATASETS if dataset_of(name).is_for_a_cpu} == {
        "toy",
        "tiny",
        "demo",
        "small",
    }
    with pytest.raises(ValueError, match="dataset='mine': choose from wikitext-103, billion-word"):
        dataset_of("mine/ADP-T")
