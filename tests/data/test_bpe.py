import hashlib
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from child_code import waiting
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data import bpe
from zipflm.data.bpe import Codes, join

GOLDEN_TEXT = Path(__file__).parent.parent / "golden" / "data" / "text"
COUNTS = {"low": 5, "lower": 2, "newest": 6, "widest": 3, "<unk>": 50}
WORDS = st.text(st.sampled_from("low@erns</w>"), min_size=1, max_size=10)


def test_most_frequent_pairs_are_merged_first_as_in_the_published_example():
    # Sennrich et al.'s dictionary: "es" and "est" are the commonest, and end their words.
    codes = Codes.learn(COUNTS, 4)
    assert codes.merges[:3] == [("e", "s"), ("es", "t</w>"), ("l", "o")]
    assert codes.split(["lowest"]) == [["lo@@", "w@@", "est"]]


def test_number_of_merges_is_exact_and_learning_is_repeatable():
    words = {f"{a}{b}{c}": 3 for a in "abcd" for b in "xyz" for c in "mn"}
    codes = Codes.learn(words, 7)
    assert len(codes.merges) == 7
    assert Codes.learn(dict(reversed(words.items())), 7).merges == codes.merges


def test_nothing_to_learn_is_an_error():
    with pytest.raises(ValueError, match="--bpe 5: no two letters stand together twice"):
        Codes.learn({"abc": 1, "def": 1, "<unk>": 9}, 5)
    assert len(Codes.learn({"ab": 2, "cd": 1}, 5).merges) == 1


def test_codes_of_subword_nmt_are_read_and_written(tmp_path):
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\ne s\nes t</w>\nl o\n")
    codes = Codes.load(path)
    assert codes.split(["lowest", "newest", "es"]) == [
        ["lo@@", "w@@", "est"],
        ["n@@", "e@@", "w@@", "est"],
        ["e@@", "s"],
    ]
    codes.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"e s\n", "not '#version: 0.2'"),
        (b"", "not '#version: 0.2'"),
        (b"#version: 0.2\n", "no codes"),
        (b"#version: 0.2\ne s\ne s t\n", "line 3"),
        (b"#version: 0.2\n\xff s\n", "not UTF-8 at byte 14"),
    ],
)
def test_bad_codes_are_refused(tmp_path, content, message):
    (tmp_path / "codes").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Codes.load(tmp_path / "codes")


LONG = 400_000
LONG_WORDS = {
    "one letter": "a" * LONG,
    "any letters": "".join(random.Random(0).choices("abcdefgh", k=LONG)),
}


@pytest.mark.parametrize("kind", LONG_WORDS)
def test_a_word_of_any_length_is_learned_and_split_in_no_time(kind):
    """It took over a minute, with the square of the length."""
    word = LONG_WORDS[kind]
    start = time.monotonic()
    codes = Codes.learn(COUNTS | {word: 1}, 50)
    (pieces,) = codes.split([word])
    assert time.monotonic() - start < 10  # two seconds at most where nobody else is at work
    assert join(pieces) == word
    assert len(pieces) < len(word) / 1.5


@settings(max_examples=200)
@given(st.lists(WORDS, max_size=4), st.integers(1, 30), st.sampled_from([2, 5, 9, 1000]))
def test_pieces_join_back_and_only_the_last_ends_the_word(words, merges, longest):
    """With short stretches, most words have several."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bpe, "_LONGEST_STRETCH", longest)
        codes = Codes.learn(dict.fromkeys(words, 3) | COUNTS | {"@@": 9, "x@@": 9}, merges)
        split = codes.split(words)
    for word, pieces in zip(words, split, strict=True):
        assert join(pieces) == word
        if word not in ("</s>", "<s>"):
            ends = [not piece.endswith("@@") for piece in pieces]
            assert ends == [False] * (len(pieces) - 1) + [True]


def test_a_word_at_the_limit_is_split_as_a_whole_and_a_longer_one_in_stretches():
    codes = Codes.learn({"ab": 5, "xab": 3}, 2)
    assert codes.merges == [("a", "b</w>"), ("x", "ab</w>")]
    codes = Codes([("a", "b"), ("a", "b</w>"), ("c", "a")])
    at_most = "ab" * 500
    assert codes.split([at_most]) == [["ab@@"] * 499 + ["ab"]]
    # The stretch ends between a and b: neither piece crosses it.
    assert codes.split(["c" + at_most]) == [["c@@"] + ["ab@@"] * 499 + ["a@@", "b"]]


def test_codes_of_ordinary_words_are_those_they_always_were():
    """Of the golden text, hashed before words could be too long."""
    counts = Counter((GOLDEN_TEXT / "train.txt").read_text(encoding="utf-8").split())
    codes = Codes.learn(counts, 300)
    pieces = "\n".join(" ".join(split) for split in codes.split(counts))
    assert codes.hash == "3ac79d60e537362be7556e3c96c7f66eb40e1479bdcd08b1809032c0f4ee4c66"
    assert (
        hashlib.sha256(pieces.encode()).hexdigest()
        == "91c4e4253f5dd50b87d21d709692e04da0918349812d44b45c316448909b67f3"
    )


LEARN = """
import random
from zipflm.data.bpe import Codes
draw = random.Random(0)
words = {"".join(draw.choices("abcdefghijklmnopqrst", k=9)): 2 for _ in range(150_000)}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
say("ready")
Codes.learn(words, 20_000)
"""


def test_a_signal_ends_learning_at_once():
    """The library that learns stays in its own code for seconds, where Python sees no signal."""
    with waiting(LEARN) as child:
        time.sleep(2)
        assert child.poll() is None, "it has learned all already"
        sent = time.monotonic()
        child.terminate()
        assert child.wait(60) == 7
        assert time.monotonic() - sent < 2


def test_characters_outside_the_merges_stay_single_and_build_no_new_model(monkeypatch):
    built = []
    model = bpe.models.BPE
    monkeypatch.setattr(bpe.models, "BPE", lambda *a, **k: built.append(1) or model(*a, **k))
    codes = Codes([("e", "s"), ("es", "t</w>"), ("l", "o")])
    for character in "\u00e9\ue000\u4e2d\U0001f600":
        found = codes.split([f"lo{character}est", f"lo{character}", character * 2])
        inner = f"{character}@@"
        assert found == [["lo@@", inner, "est"], ["lo@@", character], [inner, character]]
    assert len(built) == 1
