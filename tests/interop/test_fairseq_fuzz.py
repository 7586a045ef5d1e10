"""Whatever happens to a checkpoint: it is imported as it was, or refused in a sentence.

A case is a number, and makes the same file every time; a failure says which to try again.
"""

import functools
import io
import random
import time
import traceback

import pytest
import torch
from fairseq_checkpoints import CHECKPOINTS, DICT, contents
from interop.limited import SECONDS, run_limited
from interop.mutations import altered, crafted, crafted_stream, damaged

from zipflm.interop.fairseq_model import read_model
from zipflm.interop.torch_pickle import TorchUnpickler

SEED = 2019
MAX_MESSAGE = 10_000  # characters


@functools.cache
def whole(path):
    return contents(path)


def changed(case):
    """(the original, the bytes of the changed file, whether any change must be noticed)."""
    rng = random.Random(f"{SEED} {case}")
    path = rng.choice(CHECKPOINTS)
    is_archive = "legacy" not in path.name
    match rng.randrange(3):
        case 0:
            # A stream has no checksums: it may become other weights, but nothing worse.
            return path, damaged(rng, path.read_bytes()), is_archive
        case 1:
            return path, altered(rng, whole(path)), False
    if is_archive:
        return path, crafted(rng, path), False
    return path, crafted_stream(rng, path.read_bytes(), *_contents_place(path)), False


@functools.cache
def _contents_place(path):
    """Where the fourth pickle of a stream begins and ends."""
    stream = io.BytesIO(path.read_bytes())
    ends = []
    for _ in range(4):
        TorchUnpickler().load(stream)
        ends.append(stream.tell())
    return ends[2:]


def fuzz(folder, seconds, first_case=0):
    """(number of cases, number of those imported all the same, what went wrong)."""
    originals = {path: read_model(path, DICT) for path in CHECKPOINTS}
    end = time.monotonic() + seconds
    case, imported, wrong = first_case, 0, []
    while time.monotonic() < end and len(wrong) < 5:
        original, data, must_be_the_same = changed(case)
        path = folder / "m.pt"
        path.write_bytes(data)
        start = time.process_time()
        try:
            model = read_model(path, DICT)
            imported += 1
            if must_be_the_same and not _is_same(model, originals[original]):
                wrong.append((case, "imported, but another model"))
            if not model.config.name.isprintable() or len(model.config.name) > 200:
                wrong.append((case, f"the name {model.config.name!r}"))
        except ValueError as error:
            message = str(error)
            if not message.startswith(f"{path}: ") or len(message) > MAX_MESSAGE:
                wrong.append((case, message[:1_000]))
            elif not message.isprintable():
                wrong.append((case, repr(message)))
        except BaseException:
            wrong.append((case, traceback.format_exc()))
        if time.process_time() - start > SECONDS:
            wrong.append((case, f"took {time.process_time() - start} seconds"))
        case += 1
    return case - first_case, imported, wrong


def _is_same(model, original):
    return (
        model.config == original.config
        and model.updates == original.updates
        and model.weights.keys() == original.weights.keys()
        and all(torch.equal(t, original.weights[name]) for name, t in model.weights.items())
    )


@pytest.mark.timeout(0)  # as long as --fuzz-seconds says
def test_a_changed_checkpoint_is_imported_unchanged_or_refused(tmp_path, fuzz_seconds):
    cases, imported, wrong = run_limited(
        fuzz, tmp_path, fuzz_seconds, seconds=3 * fuzz_seconds + 120
    )
    assert not wrong
    assert cases > 10
    assert imported > 0  # of crafted files some are checkpoints, so the fuzzer reaches the end


def test_a_case_is_the_same_every_time():
    once, again = ([changed(case) for case in range(30)] for _ in range(2))
    assert once == again
    assert len({data for _, data, _ in once}) == 30
