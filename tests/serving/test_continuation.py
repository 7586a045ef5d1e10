"""Text from ids, and stop sequences."""

from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.language.decoding import SamplingOptions, TextInProgress

SOME = "ba be noro boro bu"


def written(model, tokens, **options):
    options = {"max_words": None, "max_tokens": 100, "lines": 0} | options
    reader = model.reader
    text = TextInProgress(reader.prefix("ba"), reader.detokenizer(), SamplingOptions(**options))
    deltas = []
    for token in tokens:
        text.add(token, -1.0, [])
        deltas.append(text.release())
        if text.finish_reason:
            break
    return text, deltas


def test_pieces_are_shown_as_whole_words(pieces):
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
def test_stop_sequences(models, names, stop):
    words = models["words"]
    whole = " ".join(names)
    tokens = [words.reader.vocabulary.id(name) for name in names]
    text, deltas = written(words, tokens, stop=stop, max_tokens=len(tokens))
    places = [whole.find(each) for each in stop if each in whole]
    # Text grows by words: the first word that completes a stop sequence ends it.
    assert not places or text.finish_reason == "stop"
    assert text.text == (whole if not places else whole[: len(text.text)])
    assert not any(each in text.text for each in stop)
    assert "".join(delta.text for delta in deltas) == text.text
    assert deltas[-1].finish_reason in ("stop", "length")


def test_long_stop_sequences_are_fast(words):
    class Counted(str):
        calls = 0

        def startswith(self, *arguments):
            Counted.calls += 1
            return super().startswith(*arguments)

    tokens = [words.reader.vocabulary.id("ba")] * 300
    text, _ = written(words, tokens, stop=[Counted("x" * 1000)])
    assert text.finish_reason == "length" and text.text == " ".join(["ba"] * 100)
    assert Counted.calls < 1000  # not one per character at every word
