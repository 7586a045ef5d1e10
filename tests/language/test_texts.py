"""Encoding of raw text: lines, words, spans and ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.language.text import _lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ba", ["ba", "</s>"]),
        ("ba\n", ["ba", "</s>"]),
        ("ba\r\nde\rba", ["ba", "</s>", "de", "</s>", "ba", "</s>"]),
        ("\n", ["</s>"]),
        ("\n\nba", ["</s>", "</s>", "ba", "</s>"]),
        ("\ufeffba", ["ba", "</s>"]),
        (" ", ["</s>"]),
        ("ba\x0bde\u2028ba", ["ba", "de", "ba", "</s>"]),
    ],
)
def test_line_ends(adp, text, words):
    assert list(adp.reader.text(text).words) == words


def test_last_line_can_be_open(adp):
    assert adp.reader.text("ba\nde", ends=False).words == ["ba", "</s>", "de"]
    assert adp.reader.text("ba\n", ends=False).words == ["ba", "</s>"]
    assert adp.reader.prefix("").tolist() == []


@given(st.lists(st.sampled_from(["ba", "de", " ", "\n", "\r\n", "\t", "zzz", "fila"]), min_size=1))
def test_spans_match_the_words(models, parts):
    text = " ".join(parts)
    encoded = models["ADP-T"].reader.text(text)
    last = 0
    for word, (start, end) in zip(encoded.words, encoded.spans, strict=True):
        assert last <= start <= end and not text[last:start].strip()
        assert text[start:end] == word or (word == "</s>" and not text[start:end].strip("\r\n"))
        last = end
    assert not text[last:].strip()


def test_ids_come_from_the_vocabulary(adp):
    encoded = adp.reader.text("ba qqq\nba")
    ba = adp.vocabulary.id("ba")
    assert encoded.ids.tolist() == [ba, UNKNOWN, END, ba, END]
    assert encoded.ids.dtype == np.int64


def test_pieces_of_a_word_stay_together(bpe):
    encoded = bpe.reader.text("ba fila soro")
    assert encoded.words == ["ba", "fila", "soro", "</s>"]
    assert len(encoded.ids) > len(encoded.starts) == 4
    assert bpe.reader.ends_word[
        encoded.ids[np.append(encoded.starts[1:], len(encoded.ids)) - 1]
    ].all()


@given(st.text(st.sampled_from("ab \t\n\r\x1c\u2028\u00a0.")))
def test_fast_path_matches_the_splitter(models, text):
    reader = models["SM"].reader
    assert reader.encoder.splitter.splitting.is_plain
    encoded = reader.text(f"a{text}")
    lines = [*_lines(f"a{text}")]
    slow = reader._with_spans(lines, [True] * len(lines))
    assert list(encoded.words) == [word.word for word in slow]
    assert encoded.ids.tolist() == [token for word in slow for token in word.ids]
    assert list(encoded.spans) == [word.span for word in slow]
