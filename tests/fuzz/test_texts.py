"""Any text gets the ids of a reference implementation, or is rejected."""

import gzip
import shutil
from collections import Counter

import pytest
from fuzz.cases import tried
from fuzz.mutations import damaged

from zipflm.data import scan
from zipflm.data.bpe import join
from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.data.text import chunks
from zipflm.data.vocabulary import SPECIALS

WORDS = ["a", "b", "the", "cat", "sat", "caf\u00e9", "\u4e2d\u6587", "\U0001f600", "e\u0301"]
WORDS += [*SPECIALS, "<unk>x", "@@", "a@@", "madeupword0000", "#fairseq:overwrite", "</w>"]
WORDS += ["\ufeff", "\u00ad", "\ufffd", "\u200b", "\x01", "\x7f", "'", '"', "\\", "-", "0"]
WORDS += ["\U000f0000", "1" * 400]
SPACES = [*"   \t\x0b\x0c\x1c\x1f\x85\xa0\u2003\u3000", "  "]
LINE_ENDS = ["\n", "\n", "\n", "\r\n", "\r", "\n\n", " \n ", "\r\r\n", "\u2028", "\u2029"]
ODD = [b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
ODD += [b"\xef\xbb\xbf"]


def text(rng, longest):
    """Return the bytes of a text with few distinct words."""
    words = rng.sample(WORDS, rng.randrange(1, len(WORDS)))
    if rng.random() < 0.05:
        words.append(rng.choice(["x", "\u00e9"]) * longest)
    parts = []
    for _ in range(rng.choice([1, 3, 30, 300])):
        parts += [rng.choice(words), rng.choice(LINE_ENDS if rng.random() < 0.2 else SPACES)]
    data = "".join(parts).encode()
    if rng.random() < 0.2:
        data = b"\xef\xbb\xbf" * rng.choice([1, 2]) + data
    if rng.random() < 0.2:
        place = rng.randrange(len(data) + 1)
        data = data[:place] + rng.choice(ODD) + data[place:]
    if rng.random() < 0.1:
        data = damaged(rng, data)
    return rng.choice([data, data, data, data, rng.randbytes(rng.randrange(300)), b"", b"\n \r\t"])


def lines_of(data, errors):
    """Return the words of every line, or None if the text must be rejected."""
    if errors == "strict":
        if b"\0" in data:
            return None
        try:
            decoded = data.decode()
        except UnicodeDecodeError:
            return None
    else:
        decoded = data.decode(errors="replace").replace("\0", "\ufffd")
    decoded = decoded.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = decoded.split("\n")
    if lines[-1] == "":
        lines.pop()
    lines = [line.split() for line in lines]
    return lines if any(lines) else None


def expected_ids(lines, vocabulary):
    ids = []
    for line in lines:
        known = [vocabulary.words.index(w) if w in vocabulary.words else 3 for w in line]
        ids += [3 if i == 1 else i for i in known] + [2]  # a text cannot pad
    return ids


def expected_words(lines, min_count):
    counts = Counter(word for line in lines for word in line)
    kept = [w for w, n in counts.items() if n >= min_count and w not in SPECIALS]
    return [*SPECIALS, *sorted(kept, key=lambda word: (-counts[word], word))]


def read_back(folder):
    """Return the words of every line, with pieces joined."""
    tokens, words = folder.tokens("train"), folder.vocabulary.words
    lines = []
    for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True):
        line, pieces = [], []
        for i in tokens.ids[int(start) : int(end) - 1]:
            pieces.append(words[i])
            if not words[i].endswith("@@"):
                line.append(join(pieces))
                pieces = []
        assert not pieces and tokens.ids[int(end) - 1] == 2
        lines.append(line)
    return lines


def check_metadata(metadata, lines, ids):
    counts = Counter(word for line in lines for word in line)
    assert metadata.words == sum(counts.values()) + len(lines)
    assert (metadata.sentences, metadata.types) == (len(lines), len(counts) + 1)
    assert metadata.bytes == sum(len(" ".join(line).encode()) + 1 for line in lines)
    assert metadata.continued == sum(n for word, n in counts.items() if word.endswith("@@"))
    assert (metadata.tokens, metadata.unknown) == (len(ids), ids.count(3))
    assert metadata.out_of_vocabulary == ids.count(3) - counts["<unk>"]


def attempt(rng, place, monkeypatch):
    pieces = rng.random() < 0.3
    # Learning merges is quadratic in the word length.
    data = text(rng, longest=1_000 if pieces else 10**6)
    is_packed = rng.random() < 0.2
    path = place / ("text.txt.gz" if is_packed else "text.txt")
    path.write_bytes(gzip.compress(data, 1) if is_packed else data)
    errors = rng.choice(["strict", "strict", "replace"])
    options = Options(
        errors=errors, bpe=rng.choice([1, 5, 50]) if pieces else None, min_count=rng.choice([1, 2])
    )
    size = rng.choice([1, 20, 1 << 22])
    monkeypatch.setattr(scan, "chunks", lambda name, _, **how: chunks(name, size, **how))
    lines = lines_of(data, errors)
    try:
        prepare(place / "data", {"train": [path]}, options)
        folder = DataFolder.open(place / "data")
        folder.verify()
        assert lines is not None, "not refused"
        ids = folder.tokens("train").ids.tolist()
        check_metadata(folder.split("train"), lines, ids)
        if pieces:
            require_same_words(read_back(folder), lines)
        else:
            assert ids == expected_ids(lines, folder.vocabulary)
            expected = expected_words(lines, options.min_count)
            assert folder.vocabulary.words[: len(expected)] == expected
        return "prepared"
    except ValueError as error:
        message = str(error)
        if lines is None:
            assert str(path) in message, message
            return "refused"
        too_rare = "no word occurs" in message and len(expected_words(lines, 2)) == 4
        assert too_rare or (pieces and "no pair of characters" in message), message
        return "too little"
    finally:
        shutil.rmtree(place / "data", ignore_errors=True)
        path.unlink()


def require_same_words(read, lines):
    for found, words in zip(read, lines, strict=True):
        for one, word in zip(found, words, strict=True):
            assert one == word or one == "<unk>", (one, word)


@pytest.mark.timeout(0)  # --fuzz-seconds is the limit
def test_fuzz_texts(tmp_path, monkeypatch, fuzz_seed, fuzz_seconds):
    outcomes = tried(lambda rng: attempt(rng, tmp_path, monkeypatch), fuzz_seed, fuzz_seconds)
    assert outcomes["prepared"] > 3 and outcomes["refused"]
