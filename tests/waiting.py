"""For tests on a GPU: an error where the host would wait for the device."""

import warnings
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting():
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        # torch says so, once, of the mode itself; warnings are errors in these tests.
        warnings.filterwarnings(
            "ignore", "Synchronization debug mode is a prototype feature", UserWarning
        )
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
