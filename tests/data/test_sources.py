import errno
import hashlib
import io
import re
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace

import pytest

from zipflm.data import sources
from zipflm.data.addresses import addresses, sentences, split_of
from zipflm.data.prepare import Options, prepare_by_name
from zipflm.data.sources import CORPORA, corpus_texts


def zipped(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def tarred(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


WIKITEXT = {
    f"wikitext-2/wiki.{split}.tokens": b" \n = Title = \n the cat sat . \n"
    for split in ("train", "valid", "test")
}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Put an archive into the cache, as if fetched by hand, and make it the one expected."""

    def place(name, data, tokens):
        corpus = replace(
            CORPORA[name], mirrors=(), sha256=hashlib.sha256(data).hexdigest(), tokens=tokens
        )
        monkeypatch.setitem(sources.CORPORA, name, corpus)
        (tmp_path / corpus.archive).write_bytes(data)
        return tmp_path

    return place


def test_notes_entities_and_abbreviations_make_no_sentences():
    text = "We won. [Laughter] See vol. 3, p. 4, of Prof. Day. (Applause.) In Oct.-Dec. it rained."
    assert list(sentences(text)) == [
        "We won .",
        "See vol. 3 , p. 4 , of Prof. Day .",
        "In Oct. - Dec. it rained .",
    ]
    text = " ".join(address.text for address in addresses())
    assert "&quot;" not in text and "&mdash;" not in text


@pytest.mark.parametrize("option", ["vocabulary", "bpe_codes"])
def test_what_was_given_is_read_before_the_download(tmp_path, monkeypatch, option):
    monkeypatch.setattr(sources, "fetch", lambda *arguments: pytest.fail("downloaded"))
    (tmp_path / "x").write_text("a 1\nb 2\n")
    with pytest.raises(ValueError, match="x: .*line"):
        prepare_by_name(tmp_path / "d", "wikitext-2", Options(**{option: tmp_path / "x"}))


def test_full_temporary_disk_is_named(tmp_path, monkeypatch):
    def write_text(self, *arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", write_text)
    with pytest.raises(OSError, match=r"zipflm-\w+: No space left on device .* TMPDIR"):
        prepare_by_name(tmp_path / "d", "state-of-the-union")
    assert not list(tmp_path.iterdir())


def test_archive_put_into_the_cache_is_prepared(offline, tmp_path):
    cache = offline("wikitext-2", zipped(WIKITEXT), {"train": 10, "valid": 10, "test": 10})
    folder = prepare_by_name(tmp_path / "d", "wikitext-2", Options(min_count=1), cache=cache)
    assert folder.splits == ("train", "valid", "test")
    assert len(folder.tokens("test")) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", CORPORA["wikitext-2"].archive]


def test_unpublished_size_is_refused(offline, tmp_path):
    cache = offline("wikitext-2", zipped(WIKITEXT), {"train": 8})
    with pytest.raises(ValueError, match="train split has 10 tokens where 8 are published"):
        prepare_by_name(tmp_path / "d", "wikitext-2", cache=cache)
    assert not (tmp_path / "d").exists()


def test_billion_word_shards_are_read_in_order(offline):
    base = "1-billion-word-language-modeling-benchmark-r13output"
    train = f"{base}/training-monolingual.tokenized.shuffled/news.en-%05d-of-00100"
    held_out = f"{base}/heldout-monolingual.tokenized.shuffled/news.en.heldout-%05d-of-00050"
    files = {train % n: b"train %d\n" % n for n in (3, 1, 2)}
    files |= {held_out % n: b"held out %d\n" % n for n in (0, 1, 2)}
    cache = offline("billion-word", tarred(files), {})
    with corpus_texts("billion-word", cache) as (splits, _):
        texts = {split: [path.read_text() for path in paths] for split, paths in splits.items()}
    assert texts == {
        "train": ["train 1\n", "train 2\n", "train 3\n"],
        "valid": ["held out 1\n"],
        "test": ["held out 0\n"],
    }


@pytest.mark.parametrize("data", [b"no archive", zipped(WIKITEXT)[:-30], zipped({"x": b"y"})])
def test_damaged_archive_is_named(offline, tmp_path, data):
    cache = offline("wikitext-2", data, {})
    with pytest.raises(ValueError, match="wikitext-2-v1.zip: (damaged|no file)"):
        prepare_by_name(tmp_path / "d", "wikitext-2", cache=cache)


def test_unknown_corpus_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="state-of-the-union, wikitext-2, wikitext-103"):
        prepare_by_name(tmp_path / "d", "wikitext-3", cache=tmp_path)


def test_embedded_corpus_is_complete_and_split_by_address(tmp_path):
    folder = prepare_by_name(tmp_path / "d", "state-of-the-union")
    everything = list(addresses())
    assert len(everything) == 233
    assert (everything[0].year, everything[-1].year) == (1790, 2021)
    splits = Counter(split_of(number) for number in range(233))
    assert splits == {"train": 210, "valid": 12, "test": 11}
    sizes = {split: facts.tokens for split, facts in folder.facts.splits.items()}
    # The rules for tokens and sentences are part of what results on this corpus mean.
    assert sizes == {"train": 1_825_274, "valid": 100_985, "test": 96_571}
    assert len(folder.vocabulary) == 15_984


def test_no_character_of_an_address_is_lost_but_notes_on_the_audience():
    for number, address in enumerate(addresses()):
        if number % 40 == 0:
            joined = "".join("".join(sentence.split()) for sentence in sentences(address.text))
            spoken = re.sub(r"(?i)[(\[](laughter|applause)\.?[)\]]", "", address.text)
            assert joined == "".join(spoken.split())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Mr. J. Q. Adams spoke. So did I.", ["Mr. J. Q. Adams spoke .", "So did I ."]),
        ('He said: "Go!" They went.', ['He said : " Go ! "', "They went ."]),
        ("In the U.S. Senate, e.g., it rose 1,234.5 percent.", None),
        ("It's well-known\u2014isn't it?", ["It's well-known \u2014 isn't it ?"]),
        ("No end", ["No end"]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text, wanted):
    found = list(sentences(text))
    assert found == wanted if wanted is not None else len(found) == 1
