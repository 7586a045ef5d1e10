"""Functions run in a process of their own, with little memory to spare and a limited time.

What a hostile file would do to the interpreter, it does to that process.
"""

import multiprocessing
import os
import resource
import time

import torch
from fairseq_checkpoints import DICT, NEWEST

from zipflm.interop.fairseq_model import read_model

MEGABYTES = 500
SECONDS = 5  # of the processor, for one file: the machine may be busy with other things


def run_limited(function, *arguments, seconds=120):
    """The result of a function of a module, which is called with `MEGABYTES` left to use."""
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=_work, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        assert mine.poll(seconds), f"no answer after {seconds} seconds"
        return mine.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"the process died with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()


def _work(connection, function, arguments):
    torch.set_num_threads(1)
    read_model(NEWEST, DICT)  # whatever is loaded on first use
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEGABYTES * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    connection.send(function(*arguments))


def refusals(paths):
    """What importing each file ends in: a sentence, or a list of what is wrong with that."""
    return [_refusal(path) for path in paths]


def _refusal(path):
    start = time.process_time()
    try:
        read_model(path, DICT)
        message = ["imported"]
    except ValueError as error:
        message = str(error)
    except BaseException as error:
        message = [repr(error)]
    seconds = time.process_time() - start
    return message if seconds < SECONDS else [f"{seconds} seconds", message]
