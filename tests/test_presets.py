from dataclasses import replace

import pytest

from zipflm import Tie, preset
from zipflm.presets import DATASETS, FACTORIZATIONS, dataset_of, from_name, variants_of
from zipflm.settings import override


def test_tying_of_both_datasets():
    assert preset("billion-word", "ADP-T").tie is Tie.EMBEDDINGS
    assert preset("wikitext-103", "ADP-T").tie is Tie.PROJECTIONS


def test_bands_scale_with_the_very_large_decoder():
    bands = preset("billion-word", "ADP-T", size="very-large").output_bands
    assert bands.widths == (1536, 384, 96)


def test_word_tables_have_the_widths_of_section_5_2():
    for dataset, dim in (("wikitext-103", 512), ("billion-word", 64)):
        for factorization in ("SM", "SM-T"):
            config = preset(dataset, factorization)
            assert config.input.dim == config.output.dim == dim


def test_configs_carry_their_preset_names():
    names = ["tiny/ADP-T", "billion-word/ADP-T/very-large", "wikitext-103/ASM/input-128"]
    assert [from_name(name).name for name in names] == names


def test_tokens_per_update_match_the_paper():
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
        ("tiny/ADP-T/large", "size of tiny.ADP-T=.large.: choose from base"),
        ("wikitext-103/ADP-T/bands", "variant of wikitext-103/ADP-T='bands': choose from tie-"),
        ("wikitext-103/ADP-T/base/fairseq/more", r"write dataset/factorization\[/size\]"),
    ],
)
def test_unknown_names_list_choices(name, message):
    with pytest.raises(ValueError, match=message):
        from_name(name)


def test_variants_can_be_loaded_by_name():
    assert tuple(variants_of("tiny", "ADP-T")) == ("gcnn", "lstm", "qrnn")
    for name in variants_of("wikitext-103", "SM"):
        assert from_name(f"wikitext-103/SM/{name}").name == f"wikitext-103/SM/{name}"


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("wikitext-103/GCNN-14", 229),
        ("billion-word/GCNN-14B", 428),
        # Printed as 1.04 billion.
        ("billion-word/LSTM-8192-1024", 1035),
        # Printed as 151, which corresponds to a window of one word (docs/reproduction/paper.md).
        ("wikitext-103/QRNN", 154),
        ("wikitext-103/QRNN decoder.window=1", 151),
        ("wikitext-103/GCNN-8", 150),
        ("wikitext-103/LSTM-1024", 327),
    ],
)
def test_rivals_have_published_parameter_counts(name, millions):
    name, *overrides = name.split()
    config = override(from_name(name), overrides)
    assert config.name == name
    assert round(config.num_params() / 1e6) == millions


def test_rivals_have_no_sizes_or_variants():
    for name in ("wikitext-103/GCNN-14/large", "wikitext-103/GCNN-14/lstm"):
        with pytest.raises(ValueError, match="of wikitext-103.GCNN-14=.*: choose from (base|none)"):
            from_name(name)


@pytest.mark.parametrize("dataset", ["toy", "tiny", "demo", "small", "wikitext-2"])
@pytest.mark.parametrize("decoder", ["gcnn", "lstm", "qrnn"])
def test_other_decoders_have_similar_parameter_counts(dataset, decoder):
    theirs, ours = preset(dataset, "ADP-T"), preset(dataset, "ADP-T", variant=decoder)
    sizes = [sum(config.decoder.params().values()) for config in (theirs, ours)]
    # The smallest convolutional decoder has two blocks.
    tolerance = 1.0 if (dataset, decoder) == ("toy", "gcnn") else 0.12
    assert sizes[1] == pytest.approx(sizes[0], rel=tolerance)
    assert ours.input == theirs.input and ours.output == theirs.output


def test_every_preset_has_the_factorization_in_its_name():
    assert FACTORIZATIONS == ("SM", "SM-T", "BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T")
    for dataset in DATASETS:
        words = preset(dataset, "ADP-T").vocab_size
        for factorization in FACTORIZATIONS:
            for variant in (None, *variants_of(dataset, factorization)):
                config = preset(dataset, factorization, variant=variant)
                unit = "bpe" if factorization in ("BPE", "BPE-T") else "word"
                assert config.batches.unit == unit
                assert (config.vocab_size == words) == (unit == "word")
                assert replace(config, name="mine").factorization(unit) == factorization


def test_finds_dataset_of_a_preset_name():
    paper = {name for name in DATASETS if dataset_of(f"{name}/ADP-T").is_of_the_paper}
    assert paper == {"wikitext-103", "billion-word"}
    cpu = {name for name in DATASETS if dataset_of(name).is_for_a_cpu}
    assert cpu == {"toy", "tiny", "demo", "small"}
    with pytest.raises(ValueError, match="dataset='mine': choose from wikitext-103, billion-word"):
        dataset_of("mine/ADP-T")
