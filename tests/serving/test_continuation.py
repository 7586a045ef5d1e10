"""Ids become text as the library writes it, and stop sequences end it in time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.language.decoding import GrowingText, SamplingOptions, Spelling

SOME = "ba be noro boro bu"


def written(model, tokens, **options):
    options = {"max_words": None, "max_tokens": 100, "lines": 0} | options
    reader = model.reader
    text = GrowingText(reader, reader.prefix("ba"), Spelling(reader), SamplingOptions(**options))
    deltas = []
    for token in tokens:
        text.add(token, -1.0, [])
        deltas.append(text.take())
        if text.finish_reason:
            break
    return text, deltas


def test_a_word_in_pieces_is_shown_when_it_is_complete_or_the_text_ends(pieces):
    reader = pieces.reader
    word = next(w for w in SOME.split() if len(reader.encoder.ids([w])[0]) > 1)
    ids = list(reader.encoder.ids([word])[0])
    text, deltas = written(pieces, ids)
    assert text.text == word and [delta.text for delta in deltas[:-1]] == [""] * (len(ids) - 1)
    text, _ = written(pieces, ids, max_tokens=1)
    assert text.finish_reason == "length" and word.startswith(text.text) and text.text


@settings(max_examples=60)
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
