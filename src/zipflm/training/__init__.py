"""From a config and a data folder to checkpoints: one loop, read `trainer` from top to bottom."""

STALL_SECONDS = 1800.0
"""How long an operation of several processes may wait for one of them."""
