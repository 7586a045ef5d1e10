"""Damaged scores are computed again."""

import io
import json
import shutil

import numpy as np
import pytest
from fuzz.cases import tried
from fuzz.folders import Folder, require_named
from fuzz.mutations import altered_json, damaged, replace_file

from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.studies.members import score_once

OPTIONS = ScoringOptions(device="cpu")
KEPT = "scores/valid.npz"


def scored(run, data):
    found = score_once(run, data, ["valid"], OPTIONS)
    scores = found.splits["valid"]
    protocol = scores.protocol
    counts = protocol.tokens, protocol.words, protocol.unk
    return found.checkpoint, counts, scores.nll.tolist()


@pytest.fixture
def studies(trained_runs, tmp_path):
    made = []
    for path, data in trained_runs.items():
        run = shutil.copytree(path, tmp_path / path.name)
        before = scored(run, data)
        made.append((Folder(run, [KEPT]), data, before))
    return made


def altered_scores(rng, data):
    """Return a valid archive with absurd numbers or other metadata."""
    with np.load(io.BytesIO(data)) as held:
        nll, metadata = held["nll"], str(held["metadata"])
    place = rng.randrange(len(nll))
    match rng.randrange(6):
        case 0:
            nll[place] = rng.choice([np.nan, np.inf, -np.inf, -1.0, -1e300])
        case 1:
            nll = rng.choice([nll[:-1], nll[None], np.append(nll, 1.0), nll[:0], nll[0]])
        case 2:
            nll = nll.astype(rng.choice(["f4", ">f8", "c16", "i8", "U3", "?"]))
        case 3:
            nll = rng.choice([np.array("x"), np.zeros((0, 3)), np.zeros(10**5)])
        case 4:
            metadata = altered_json(rng, metadata).decode("utf-8", "replace")
        case _:
            key = json.loads(metadata)
            key["protocol"]["words"] += 1
            metadata, nll = json.dumps(key), np.append(nll, 1.0)
    file = io.BytesIO()
    np.savez(file, nll=nll, metadata=np.array(metadata))
    return file.getvalue()


def attempt_on(studies):
    def attempt(rng):
        folder, data, before = rng.choice(studies)
        is_file = rng.random() < 0.9
        try:
            if is_file:
                change = rng.choice([damaged, damaged, altered_scores])
                folder.write(KEPT, change(rng, folder.originals[KEPT]))
            else:
                folder.touch(KEPT)
                replace_file(rng, folder.path / KEPT)
            after = scored(folder.path, data)
            assert after == before, f"other scores: {after} and {before}"
            return "the same"
        except OSError as error:  # a file cannot replace a folder
            assert not is_file
            require_named(error, folder.path, ["valid.npz"])
            return "refused"
        finally:
            folder.restore()

    return attempt


@pytest.mark.timeout(0)  # --fuzz-seconds is the limit
def test_fuzz_scores(studies, fuzz_seed, fuzz_seconds):
    outcomes = tried(attempt_on(studies), fuzz_seed, fuzz_seconds)
    assert outcomes["the same"] > 10


# --- Bugs found by fuzzing ---


@pytest.mark.parametrize("loss", [np.nan, -1.0])
def test_invalid_losses_are_scored_again(studies, loss):
    folder, data, before = studies[0]
    with np.load(folder.path / KEPT) as held:
        nll, metadata = held["nll"], held["metadata"]
    nll[3] = loss
    np.savez(folder.path / KEPT, nll=nll, metadata=metadata)
    assert scored(folder.path, data) == before


def test_encrypted_archive_is_scored_again(studies):
    # A flipped bit marks it as encrypted, for which zipfile raises RuntimeError.
    folder, data, before = studies[0]
    content = bytearray(folder.originals[KEPT])
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(mark) + place] |= 1
    folder.write(KEPT, bytes(content))
    assert scored(folder.path, data) == before
