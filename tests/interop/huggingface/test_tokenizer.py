import copy
import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from zipflm.config import Splitting
from zipflm.data.bpe import Codes
from zipflm.data.encoding import TextEncoder
from zipflm.data.vocabulary import Vocabulary
from zipflm.interop.huggingface import ZipfTokenizer
from zipflm.language.text import TextReader

PROSE = """The cat's on the mat, isn't it? "Well-known U.S. cats," he said, "paid $3,000.50!"
In 1990s Paris -- the O'Briens' -- it was \u201cnot\u201d 10:30 but ... e.g. www.example.com/a
\u039f\u0394\u039f\u03a3 \u0130stanbul don\u2019t \u4e2d\u6587 na\u00efve <unk> @-@ F-16 re-do
"""
RULES = [
    Splitting(rule, lower)
    for rule in ("whitespace", "words", "wikitext")
    for lower in (False, True)
]


def _vocabulary(words):
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return Vocabulary.from_counts(counts, min_count=1)


def _encoder(splitting, unit):
    """Return an encoder with some words or pieces of PROSE, so that others are unknown."""
    splitter = TextEncoder(_vocabulary(["a"]), None, splitting).splitter
    words = [piece.word for line in PROSE.splitlines() for piece in splitter.words(line)]
    if unit == "word":
        return TextEncoder(_vocabulary([*words[::2], "cat", "don't", "</S>"]), None, splitting)
    counts = {word: 3 for word in words}
    codes = Codes.learn(counts, 30)
    pieces = [piece for pieces in codes.split(words) for piece in pieces]
    return TextEncoder(_vocabulary([*pieces[::2], *pieces[:40]]), codes, splitting)


ENCODERS = {
    (splitting, unit): _encoder(splitting, unit) for splitting in RULES for unit in ("word", "bpe")
}
TOKENIZERS = {key: ZipfTokenizer(encoder=encoder, unit=key[1]) for key, encoder in ENCODERS.items()}

PARTS = st.one_of(
    st.sampled_from(PROSE.split()),
    st.sampled_from(
        ["<s>", "</s>", "<unk>", "<pad>", "</S>", "<PAD>", "madeupword0000", "@@", "-"]
    ),
    st.sampled_from(" \t\n\r\x0b\x0c\x1c\x1d\x85\xa0\u2028\u3000\ufeff'\u2019\u201c.,3"),
    st.sampled_from(["\r\n", " ", " ", "\n"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
)
TEXTS = st.lists(PARTS, min_size=1, max_size=25).map("".join).filter(bool)


@pytest.mark.parametrize("unit", ["word", "bpe"])
@pytest.mark.parametrize("splitting", RULES, ids=str)
@settings(max_examples=40, derandomize=True)
@given(text=TEXTS)
@example(text=PROSE)
@example(text="\ufeffcat\ufeff\r\r\n\ncat</s>cat <pad> <PAD>")
@example(text=" ".join(PROSE.split() * 3) + "x" * 1500)
def test_ids_match_the_run(splitting, unit, text):
    reader = TextReader(ENCODERS[splitting, unit], unit)
    expected = reader.text(text, ends=False).ids.tolist()
    tokenizer = TOKENIZERS[splitting, unit]
    assert tokenizer(text).input_ids == [2, *expected]
    assert tokenizer(text, add_special_tokens=False).input_ids == expected


@pytest.mark.parametrize("unit", ["word", "bpe"])
@pytest.mark.parametrize("splitting", RULES, ids=str)
def test_offsets_match_the_run(splitting, unit):
    reader = TextReader(ENCODERS[splitting, unit], unit)
    encoded = reader.text(PROSE, ends=False)
    offsets = TOKENIZERS[splitting, unit](
        PROSE, add_special_tokens=False, return_offsets_mapping=True
    ).offset_mapping
    first = encoded.starts
    last = np.append(first[1:], len(encoded.ids)) - 1
    found = [(offsets[a][0], offsets[b][1]) for a, b in zip(first, last, strict=True)]
    assert found == [tuple(span) for span in encoded.spans]


@pytest.mark.parametrize("splitting", RULES, ids=str)
def test_decoded_text_is_readable(splitting):
    encoder = ENCODERS[splitting, "word"]
    known = [word for word in encoder.vocabulary.words if word.isalpha()][:4]
    lines = [" ".join(known), "the mat , he said"]
    tokenizer = TOKENIZERS[splitting, "word"]
    ids = tokenizer("\n".join(lines) + "\n").input_ids
    joined = []
    for line in lines:
        pieces = encoder.line(line)
        words = [encoder.vocabulary.words[id] for piece in pieces for id in piece.ids]
        joined.append("".join(map(encoder.splitter.joiner().add, words)))
    assert tokenizer.decode(ids) == "\n" + "\n".join(joined) + "\n"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "\n".join(joined)
    assert tokenizer.decode([1, 1, *ids, 1], skip_special_tokens=True) == "\n".join(joined)


def test_words_of_a_word_model_keep_marks_of_pieces():
    encoder = TextEncoder(_vocabulary(["a", "x@@", "@@"]))
    ids = encoder.vocabulary.ids(["x@@", "@@", "a"]).tolist()
    assert TextReader(encoder, "word").detokenizer().add(ids[0]) == "x@@"
    assert ZipfTokenizer(encoder=encoder).decode([2, *ids]) == "\nx@@ @@ a"


def test_decode_joins_the_pieces_of_long_words():
    encoder = TextEncoder(_vocabulary(["a@@", "b"]), Codes([]))
    tokenizer, word = ZipfTokenizer(encoder=encoder, unit="bpe"), 100 * "a" + "b"
    assert tokenizer.decode(tokenizer(word).input_ids, skip_special_tokens=True) == word


def test_decode_joins_pieces_and_adds_a_leading_space():
    tokenizer = TOKENIZERS[Splitting("words", False), "bpe"]
    encoded = {word: tokenizer(word, add_special_tokens=False).input_ids for word in PROSE.split()}
    word, ids = next((w, ids) for w, ids in encoded.items() if len(ids) > 2 and w.isalpha())
    assert tokenizer.decode([2, *ids, *ids], skip_special_tokens=True) == f"{word} {word}"
    assert tokenizer.decode(ids) == f" {word}"
    assert (
        tokenizer.decode([2, *ids[:-1]], skip_special_tokens=True)
        == word[: -len(tokenizer.convert_ids_to_tokens(ids[-1]))]
    )
    words = TOKENIZERS[Splitting("wikitext", True), "word"]
    assert words.decode(words("'s", add_special_tokens=False).input_ids)[0] != " "
    for bad in (-100, 10_000):
        with pytest.raises(ValueError, match=f"id {bad}: outside the vocabulary"):
            tokenizer.decode([2, bad])


@pytest.mark.parametrize("unit", ["word", "bpe"])
def test_streams_decode_like_the_tokenizer(unit):
    """transformers serve decodes with the Rust tokenizer."""
    tokenizer = TOKENIZERS[Splitting("words", False), unit]
    ids = tokenizer("The cat's on the mat, it was not", add_special_tokens=False).input_ids
    stream = DecodeStream(skip_special_tokens=False)
    streamed = "".join(stream.step(tokenizer._tokenizer, id) or "" for id in ids)
    assert streamed.strip() == tokenizer.decode(ids).strip()


@pytest.mark.parametrize("unit", ["word", "bpe"])
def test_save_copy_and_pickle(unit, tmp_path):
    splitting = Splitting("wikitext", True)
    tokenizer = TOKENIZERS[splitting, unit]
    names = {path.split("/")[-1] for path in tokenizer.save_pretrained(tmp_path)}
    codes = {"bpe.codes"} if unit == "bpe" else set()
    assert names == {"tokenizer_config.json", "vocabulary.txt", "splitting.json"} | codes
    expected = tokenizer(PROSE).input_ids
    loaded = ZipfTokenizer.from_pretrained(tmp_path)
    assert loaded.text_encoder.vocabulary.counts.tolist() == (tokenizer.vocabulary.counts.tolist())
    for other in (loaded, copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert other(PROSE).input_ids == expected
        assert other.decode(expected) == tokenizer.decode(expected)
        assert len(other) == other.vocab_size == len(tokenizer.vocabulary)
        assert (other.bos_token_id, other.eos_token_id, other.pad_token_id) == (2, 2, 1)


def test_bos_token_and_padding_side(exported):
    tokenizer = AutoTokenizer.from_pretrained(exported["ADP-T"])
    assert isinstance(tokenizer, ZipfTokenizer) and tokenizer.is_fast
    bare = AutoTokenizer.from_pretrained(exported["ADP-T"], add_bos_token=False)
    assert [2, *bare("ba de").input_ids] == tokenizer("ba de").input_ids
    short, long = tokenizer("ba").input_ids, tokenizer("ba de fa").input_ids
    for side, rows in (("left", [[1, 1, *short], long]), ("right", [[*short, 1, 1], long])):
        both = tokenizer(["ba", "ba de fa"], padding=True, padding_side=side)
        assert both.input_ids == rows
        assert both.attention_mask == [[int(id != 1) for id in row] for row in rows]


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "pad_token", "unk_token"])
def test_rejects_other_special_tokens(name, exported):
    for token in ("<s>", "<none>", None):
        with pytest.raises(ValueError, match=f"{name}="):
            AutoTokenizer.from_pretrained(exported["ADP-T"], **{name: token})


def test_pad_token_can_be_the_line_end(exported, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(exported["ADP-T"], pad_token="</s>")
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        padded = each(["a", "a a"], padding=True)
        assert each.pad_token_id == 2 and padded.input_ids[0][2:] == [2]
        assert padded.attention_mask[0] == [1, 1, 0]


def test_rejects_changes_of_the_vocabulary():
    tokenizer = TOKENIZERS[RULES[0], "word"]
    with pytest.raises(ValueError, match="token 'new': not in the vocabulary, which is fixed"):
        tokenizer.add_tokens(["new"])
    with pytest.raises(ValueError, match="vocabulary.txt: missing"):
        ZipfTokenizer()


@pytest.mark.parametrize("name", ["bpe.codes", "splitting.json", "vocabulary.txt"])
def test_rejects_missing_or_replaced_files(name, tmp_path):
    TOKENIZERS[Splitting("words", True), "bpe"].save_pretrained(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"{name}.*: missing"):
        ZipfTokenizer.from_pretrained(tmp_path)
    TOKENIZERS[Splitting("wikitext", True), "bpe"].save_pretrained(tmp_path / "other")
    (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(ValueError, match=f"{name}.*: missing, damaged or from another run"):
        ZipfTokenizer.from_pretrained(tmp_path)


def test_rejects_duplicate_words(tmp_path):
    path = tmp_path / "vocabulary.txt"
    path.write_text("the 9\n<unk> 5 #fairseq:overwrite\n")
    with pytest.raises(ValueError, match="the word '<unk>' has two ids"):
        ZipfTokenizer(vocabulary_file=str(path))
