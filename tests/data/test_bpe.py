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


def test_learns_merges_of_the_published_example():
    # The dictionary of Sennrich et al.: "es" and "est" are the most common.
    codes = Codes.learn(COUNTS, 4)
    assert codes.merges[:3] == [("e", "s"), ("es", "t</w>"), ("l", "o")]
    assert codes.split(["lowest"]) == [["lo@@", "w@@", "est"]]


def test_learning_is_deterministic():
    words = {f"{a}{b}{c}": 3 for a in "abcd" for b in "xyz" for c in "mn"}
    codes = Codes.learn(words, 7)
    assert len(codes.merges) == 7
    assert Codes.learn(dict(reversed(words.items())), 7).merges == codes.merges


def test_learning_needs_a_repeated_pair():
    with pytest.raises(ValueError, match="bpe=5: no pair of characters occurs twice"):
        Codes.learn({"abc": 1, "def": 1, "<unk>": 9}, 5)
    assert len(Codes.learn({"ab": 2, "cd": 1}, 5).merges) == 1


def test_reads_and_writes_subword_nmt_codes(tmp_path):
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
def test_rejects_invalid_codes(tmp_path, content, message):
    (tmp_path / "codes").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Codes.load(tmp_path / "codes")


LONG = 400_000
LONG_WORDS = {
    "one letter": "a" * LONG,
    "any letters": "".join(random.Random(0).choices("abcdefgh", k=LONG)),
}


@pytest.mark.parametrize("kind", LONG_WORDS)
def test_long_words_take_linear_time(kind):
    # Quadratic learning would take over a minute.
    word = LONG_WORDS[kind]
    start = time.monotonic()
    codes = Codes.learn(COUNTS | {word: 1}, 50)
    (pieces,) = codes.split([word])
    assert time.monotonic() - start < 10  # two seconds on an idle machine
    assert join(pieces) == word


@settings(max_examples=200)
@given(st.lists(WORDS, max_size=4), st.integers(1, 30))
def test_pieces_join_to_the_word(words, merges):
    codes = Codes.learn(dict.fromkeys(words, 3) | COUNTS | {"@@": 9, "x@@": 9}, merges)
    for word, pieces in zip(words, codes.split(words), strict=True):
        assert join(pieces) == word
        if word not in ("</s>", "<s>"):
            ends = [not piece.endswith("@@") for piece in pieces]
            assert ends == [False] * (len(pieces) - 1) + [True]


def test_golden_codes_are_unchanged():
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


def test_sigterm_stops_learning():
    # The library runs native code for seconds, during which Python handles no signals.
    with waiting(LEARN) as child:
        time.sleep(0.5)
        assert child.poll() is None, "learning finished too early"
        sent = time.monotonic()
        child.terminate()
        assert child.wait(60) == 7
        assert time.monotonic() - sent < 3


def test_characters_outside_the_merges_are_single_pieces(monkeypatch):
    built = []
    model = bpe.models.BPE
    monkeypatch.setattr(bpe.models, "BPE", lambda *a, **k: built.append(1) or model(*a, **k))
    codes = Codes([("e", "s"), ("es", "t</w>"), ("l", "o")])
    for character in "\u00e9\ue000\u4e2d\U0001f600":
        found = codes.split([f"lo{character}est", f"lo{character}", character * 2])
        inner = f"{character}@@"
        assert found == [["lo@@", inner, "est"], ["lo@@", character], [inner, character]]
    assert len(built) == 1
