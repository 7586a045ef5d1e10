"""Generated texts follow the model, with its log-probabilities."""

from itertools import islice

import numpy as np
import pytest
import torch
from loaded_models import loaded
from small_data import make_folder

from zipflm.config import Splitting
from zipflm.data.vocabulary import END
from zipflm.language import decoding
from zipflm.language.decoding import SamplingOptions, TextGenerator

PROMPT = "ba de"


def test_log_probabilities_match_scoring_of_tokens(lm, monkeypatch):
    drawn = {}
    add = decoding.TextInProgress.add

    def record(row, token, logprob, top):
        drawn.setdefault(row, []).append(token)
        add(row, token, logprob, top)

    monkeypatch.setattr(decoding.TextInProgress, "add", record)
    texts = lm.generate(PROMPT, max_words=6, seed=3, num=4, temperature=0.9, top_p=0.9)
    # Score the drawn tokens: reading the text can split words into other pieces.
    before = lm.reader.text(PROMPT, ends=False).ids
    for tokens, text in zip(drawn.values(), texts, strict=True):
        (nll,) = lm.engine.nll([np.concatenate([before, tokens, [END]])], skip=len(before))
        ends = np.flatnonzero(lm.reader.ends_word[np.array(tokens)])
        words = np.split(nll[:-1], ends[:-1] + 1)
        assert len(text.words) <= 7
        assert [w.logprob for w in text.words] == pytest.approx([-w.sum() for w in words], abs=1e-4)
        assert text.logprob == pytest.approx(sum(word.logprob for word in text.words))


@pytest.mark.parametrize("label", ["SM", "CNN", "ADP-T"])
def test_log_probabilities_match_scoring_of_text(label, models):
    lm = models[label]
    for text in lm.generate(PROMPT, max_words=6, seed=3, num=4, temperature=0.9, top_p=0.9):
        scored = lm.score(text.text).words[2:]
        for ours, theirs in zip(text.words, scored, strict=False):
            assert (ours.word, ours.logprob) == (theirs.word, pytest.approx(theirs.logprob, 1e-4))


def test_temperature_0_takes_the_most_likely_word(adp):
    forbidden = {"<s>", "<pad>", "<unk>"}
    (text,) = adp.generate(PROMPT, max_words=8, temperature=0, lines=0)
    so_far = PROMPT
    for word in text.words:
        best = next(w for w in adp.next_words(so_far, 12) if w.word not in forbidden)
        assert (word.word, word.logprob) == (best.word, pytest.approx(best.logprob, abs=1e-4))
        so_far += word.text


def test_seeds_are_reproducible(lm):
    one, two, other = (
        lm.generate(PROMPT, seed=seed, num=3, lines=0, temperature=4.0) for seed in (1, 1, 2)
    )
    assert one == two != other
    assert len({text.text for text in one}) > 1


@pytest.mark.parametrize("batch_tokens", [16, 30])
def test_batches_are_limited(word_data, monkeypatch, batch_tokens):
    options = {"max_words": 4, "seed": 1, "num": 5, "lines": 0}
    together = loaded(word_data).generate(PROMPT, **options)
    sizes, step = [], decoding.TextDecoder.step
    monkeypatch.setattr(
        decoding.TextDecoder, "step", lambda self: sizes.append(len(self.rows)) or step(self)
    )
    texts = loaded(word_data, batch_tokens=batch_tokens).generate(PROMPT, **options)
    assert [text.text for text in texts] == [text.text for text in together]
    assert max(sizes) == batch_tokens // 7  # two words of the prompt, `</s>` and four words


def test_never_generates_special_tokens(lm):
    texts = lm.generate("", max_words=60, lines=0, num=8, seed=0, temperature=3.0)
    written = {word.word for text in texts for word in text.words}
    assert not written & {"<unk>", "<pad>", "<s>"}
    assert not any("madeupword" in word for word in written)
    assert len(written) > 20


def test_can_allow_unknown_words(adp):
    texts = adp.generate(max_words=60, lines=0, num=16, seed=0, temperature=9, forbid_unknown=False)
    assert any(word.word == "<unk>" for text in texts for word in text.words)


def test_stops_after_lines_or_words(lm):
    for text in lm.generate(PROMPT, max_words=30, lines=2, num=8, seed=5, temperature=4.0):
        ends = [word.word for word in text.words].count("</s>")
        is_full = len(text.words) == 30 and ends < 2
        assert is_full or (ends == 2 and text.words[-1].word == "</s>")
        assert text.continuation.count("\n") == ends


def test_sub_word_models_generate_whole_words(bpe):
    texts = bpe.generate(PROMPT, max_words=10, lines=0, num=4, seed=1, temperature=2.0)
    for text in texts:
        assert len(text.words) == 10
        assert not any(word.word.endswith("@@") for word in text.words[:-1])
        assert "@@" not in text.text or any("@@" in word.word for word in text.words)


def test_stream_matches_generate(lm):
    options = {"max_words": 7, "seed": 4, "lines": 0}
    (text,) = lm.generate(PROMPT, **options)
    assert tuple(lm.stream(PROMPT, **options)) == text.words
    assert text.continuation == "".join(word.text for word in text.words)


def test_generates_nothing_without_tokens(adp):
    assert list(adp.stream(PROMPT, max_tokens=0)) == []


@pytest.mark.parametrize("stop", [[" "], ["a"], ["o", "u b"], ["\n"]])
def test_stops_before_a_stop_sequence(lm, stop):
    options = {"max_words": 9, "seed": 4, "num": 6, "lines": 0, "temperature": 2.0}
    for whole, text in zip(
        lm.generate(PROMPT, **options), lm.generate(PROMPT, stop=stop, **options), strict=True
    ):
        assert whole.continuation.startswith(text.continuation)
        assert not any(each in text.continuation for each in stop)
        assert "".join(word.text for word in text.words) == text.continuation
        is_cut = any(each in whole.continuation for each in stop)
        assert (text.continuation != whole.continuation) == is_cut
    del options["num"]
    (text,) = lm.generate(PROMPT, stop=stop, **options)
    assert tuple(lm.stream(PROMPT, stop=stop, **options)) == text.words


@pytest.mark.parametrize("words", [3, 40])
def test_long_texts_slide(word_data, words):
    lm = loaded(word_data, block=8, context=4)
    for text in lm.generate(PROMPT, max_words=words, lines=0, num=3, seed=1):
        assert len(text.words) >= words
        assert text.has_slid == (words > 8)


def test_words_after_the_block_see_the_context(word_data):
    lm = loaded(word_data, block=8, context=3)
    (text,) = lm.generate(PROMPT, max_words=12, lines=0, temperature=0)
    words = [*PROMPT.split(), *(word.word for word in text.words)]
    # The cache holds `</s>`, the prompt and five words; then three words start a new one.
    ids = [lm.vocabulary.id(word) for word in words]
    with torch.no_grad():
        log_probs = lm.model.log_probs(torch.tensor([ids[5:8]]))[0, -1]
    assert text.words[6].logprob == pytest.approx(float(log_probs[ids[8]]), abs=1e-4)


def test_long_prompts_are_cut_at_the_start(word_data):
    lm = loaded(word_data, block=8, context=4)
    (text,) = lm.generate("ba de fila " * 9, max_words=3, temperature=0, lines=0)
    assert text.has_slid and len(text.words) == 3


def test_joins_prose_without_double_spaces(tmp_path):
    data = make_folder(tmp_path, "prose", splitting=Splitting(rule="words"))
    lm = loaded(data)
    (text,) = lm.generate("ba de", max_words=3, lines=0, seed=1)
    assert text.text.startswith("ba de ") and "  " not in text.text
    (spaced,) = lm.generate("ba de ", max_words=3, lines=0, seed=1)
    assert spaced.text == text.text
    (empty,) = lm.generate("", max_words=3, lines=0, seed=1)
    assert not empty.text.startswith(" ")


def test_reports_unknown_words_in_the_prompt(adp):
    generator = TextGenerator(adp.engine, adp.reader, "ba qqqq zzzz", SamplingOptions(seed=1), 1)
    assert generator.unknown_in_prompt == ["qqqq", "zzzz"]
    assert generator.all()[0].text.startswith("ba qqqq zzzz")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"temperature": -1.0}, "temperature=-1.0: must be a finite number, 0 or more"),
        ({"temperature": None}, "temperature=None: must be a finite number, 0 or more"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"max_words": 0}, "max_words=0"),
        ({"num": 0}, "num=0"),
        ({"lines": -1}, "lines=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"stop": "be"}, "stop='be': must be a list"),
        ({"stop": [""]}, "stop="),
    ],
)
def test_rejects_invalid_options(adp, options, reason):
    with pytest.raises(ValueError, match=reason):
        adp.generate(PROMPT, **options)


def test_words_follow_the_distribution(adp):
    """Chi-square test of 4,000 first words."""
    texts = adp.generate(PROMPT, max_words=1, num=4000, seed=7, lines=1)
    log_probs = adp.log_probs([PROMPT])[0].double()
    forbidden = [0, 1, 3, *(i for i, w in enumerate(adp.vocabulary.words) if "madeup" in w)]
    log_probs[forbidden] = -torch.inf
    expected = log_probs.softmax(0) * len(texts)
    drawn = torch.tensor([adp.vocabulary.id(text.words[0].word) for text in texts])
    counts = torch.bincount(drawn, minlength=len(expected)).double()
    large = expected >= 5
    rest = expected[~large].sum() + 1e-9
    statistic = ((counts - expected)[large] ** 2 / expected[large]).sum()
    statistic += (counts[~large].sum() - rest) ** 2 / rest
    assert float(statistic) < int(large.sum()) + 4 * (2 * int(large.sum())) ** 0.5


def test_endless_words_are_cut(bpe_data, monkeypatch):
    lm = loaded(bpe_data, "BPE")
    inner = next(i for i, ends in enumerate(lm.reader.ends_word) if not ends)

    def always_inside(output, hidden, **choice):
        return torch.full((len(hidden),), inner), torch.full((len(hidden),), -0.5)

    monkeypatch.setattr("zipflm.language.decoding.draw", always_inside)
    (text,) = lm.generate("", max_words=2, lines=0)
    assert len(text.words) == 2 and text.words[0].logprob == -32.0


@pytest.mark.parametrize("lines", [0, 10**6])
def test_line_ends_count_as_words(adp, monkeypatch, lines):
    def always_end(output, hidden, **choice):
        return torch.full((len(hidden),), END), torch.full((len(hidden),), -0.5)

    monkeypatch.setattr("zipflm.language.decoding.draw", always_end)
    words = islice(adp.stream("ba", max_words=5, lines=lines, temperature=0), 20)
    assert [word.word for word in words] == ["</s>"] * 5


@pytest.mark.gpu
def test_gpu_matches_cpu(word_data):
    on_cpu, on_gpu = loaded(word_data, block=8), loaded(word_data, block=8, device="cuda")
    options = {"max_words": 30, "lines": 0, "temperature": 0, "num": 3}
    for one, other in zip(
        on_cpu.generate(PROMPT, **options), on_gpu.generate(PROMPT, **options), strict=True
    ):
        assert one.continuation == other.continuation
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    drawn = [on_gpu.generate(PROMPT, seed=1, num=8, lines=3, max_words=20) for _ in range(2)]
    assert drawn[0] == drawn[1] and len({text.text for text in drawn[0]}) > 1
    for text in drawn[0]:
        assert text.logprob == pytest.approx(sum(word.logprob for word in text.words))
