"""Ids become text as the library writes it, and stop sequences end it in time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data.vocabulary import END
from zipflm.serving.continuation import Continuation, Spelling

SOME = "ba be noro boro bu"


def written(model, tokens, **options):
    options = {"max_tokens": 100, "lines": 0} | options
    text = Continuation(Spelling(model.reader), **options)
    deltas = []
    for token in tokens:
        text.add(token, -1.0, [])
        deltas.append(text.take())
        if text.finish_reason:
            break
    return text, deltas


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_words_are_joined_and_lines_end(models, name):
    ids = models[name].reader.text(f"{SOME}\nba\n").ids.tolist()
    text, _ = written(models[name], ids)
    assert text.text == f"{SOME}\nba\n" and text.finish_reason is None


def test_the_last_line_end_is_no_part_of_the_text(words):
    ids = words.reader.text(f"{SOME}\nba").ids.tolist()
    text, _ = written(words, ids, lines=1)
    assert (text.text, text.finish_reason) == (SOME, "stop")
    assert text.tokens[-1].token == END
    text, _ = written(words, ids, lines=2)
    assert (text.text, text.finish_reason) == (f"{SOME}\nba", "stop")


def test_a_word_in_pieces_is_shown_when_it_is_complete_or_the_text_ends(pieces):
    reader = pieces.reader
    word = next(w for w in SOME.split() if len(reader.encoder.ids([w])[0]) > 1)
    ids = list(reader.encoder.ids([word])[0])
    text, deltas = written(pieces, ids)
    assert text.text == word and [delta.text for delta in deltas[:-1]] == [""] * (len(ids) - 1)
    text, _ = written(pieces, ids, max_tokens=1)
    assert text.finish_reason == "length" and word.startswith(text.text) and text.text


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["ba", "be", "bu", "ban"]), min_size=1, max_size=8),
    st.lists(st.text("baenu ", min_size=1, max_size=6), max_size=3),
)
def test_a_stream_shows_the_text_up_to_the_first_stop(models, names, stop):
    words = models["words"]
    whole = " ".join(names)
    tokens = [words.reader.vocabulary.id(name) for name in names]
    text, deltas = written(words, tokens, stop=stop, max_tokens=len(tokens))
    places = [whole.find(each) for each in stop if each in whole]
    # A word is the unit in which a text grows: the first stop sequence of the first word that
    # completes one, which may not be the one that begins first.
    assert not places or text.finish_reason == "stop"
    assert text.text == (whole if not places else whole[: len(text.text)])
    assert not any(each in text.text for each in stop)
    assert "".join(delta.text for delta in deltas) == text.text
    assert deltas[-1].finish_reason in ("stop", "length")


def test_tokens_know_where_they_begin(words):
    ids = words.reader.text("ba be bu").ids.tolist()[:-1]
    text, _ = written(words, ids)
    assert [token.offset for token in text.tokens] == [0, 3, 6]


def test_pieces_know_where_they_begin_once_their_word_is_complete(pieces):
    ids = pieces.reader.text("ba noro be").ids.tolist()[:-1]
    text, deltas = written(pieces, ids)
    names = pieces.reader.vocabulary.words
    shown = [names[token.token].removesuffix("@@") for token in text.tokens]
    assert len(shown) == len(ids) > 3 and deltas[1].tokens == []
    for piece, token in zip(shown, text.tokens, strict=True):
        assert text.text[token.offset :].startswith(piece)
    assert sum((delta.tokens for delta in deltas), []) == text.tokens


def test_nothing_is_written_where_no_token_is_wanted(words):
    text = Continuation(Spelling(words.reader), max_tokens=0)
    assert text.finish_reason == "length" and text.text == ""


def test_long_stop_sequences_cost_little(words):
    class Counted(str):
        calls = 0

        def startswith(self, *arguments):
            Counted.calls += 1
            return super().startswith(*arguments)

    tokens = [words.reader.vocabulary.id("ba")] * 300
    text, _ = written(words, tokens, stop=[Counted("x" * 1000)])
    assert text.finish_reason == "length" and text.text == " ".join(["ba"] * 100)
    assert Counted.calls < 1000  # not one for each character of the text at every word
