"""Damaged scores are computed again, and reports are not overwritten by others."""

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
from zipflm.studies.report import claim_folder

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
    """Return a valid archive with absurd numbers or other facts."""
    with np.load(io.BytesIO(data)) as held:
        nll, facts = held["nll"], str(held["facts"])
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
            facts = altered_json(rng, facts).decode("utf-8", "replace")
        case _:
            key = json.loads(facts)
            key["protocol"]["words"] += 1
            facts, nll = json.dumps(key), np.append(nll, 1.0)
    file = io.BytesIO()
    np.savez(file, nll=nll, facts=np.array(facts))
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


TABLES = [{"made_by": "study", "models": [1, 2]}, {"made_by": "analysis", "models": []}]


def attempt_claim(rng, out):
    """Only a command of the same kind may overwrite a report."""
    table = rng.choice(TABLES)
    data = json.dumps(table).encode()
    path = out / "table.json"
    folder = Folder(out, [])
    folder.originals["table.json"] = data
    try:
        if rng.random() < 0.2:
            folder.touch("table.json")
            path.write_bytes(data)
            replace_file(rng, path)
            if not path.is_symlink() and not path.exists():
                return "absent"
        else:
            folder.write("table.json", rng.choice([altered_json, damaged])(rng, data))
        maker = rng.choice(["study", "analysis"])
        claim_folder(out, maker)
        assert json.loads(path.read_bytes())["made_by"] == maker
        return "claimed"
    except ValueError as error:
        require_named(error, out, ["table.json", "out="])
        return "refused"
    finally:
        folder.restore()


@pytest.mark.timeout(0)
def test_fuzz_reports(tmp_path, fuzz_seed, fuzz_seconds):
    outcomes = tried(lambda rng: attempt_claim(rng, tmp_path), fuzz_seed, fuzz_seconds / 4)
    assert outcomes["claimed"] and outcomes["refused"]


# --- Bugs found by fuzzing ---


@pytest.mark.parametrize("loss", [np.nan, -1.0])
def test_invalid_losses_are_scored_again(studies, loss):
    folder, data, before = studies[0]
    with np.load(folder.path / KEPT) as held:
        nll, facts = held["nll"], held["facts"]
    nll[3] = loss
    np.savez(folder.path / KEPT, nll=nll, facts=facts)
    assert scored(folder.path, data) == before


def test_encrypted_archive_is_scored_again(studies):
    # A flipped bit marks it as encrypted, for which zipfile raises RuntimeError.
    folder, data, before = studies[0]
    content = bytearray(folder.originals[KEPT])
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(mark) + place] |= 1
    folder.write(KEPT, bytes(content))
    assert scored(folder.path, data) == before


@pytest.mark.parametrize("made_by", [None, "someone", 3, ["study"]])
def test_unknown_reports_are_not_overwritten(tmp_path, made_by):
    (tmp_path / "table.json").write_text(json.dumps({"made_by": made_by}))
    for maker in ("study", "analysis"):
        with pytest.raises(ValueError, match="table.json: not a readable report"):
            claim_folder(tmp_path, maker)
