"""Training. `trainer` has the loop, `step` a single update."""

STALL_SECONDS = 1800.0
"""Default number of seconds without progress after which all processes stop."""
