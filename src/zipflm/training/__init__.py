"""Training. The loop is in `trainer`, a single update in `step`."""

STALL_SECONDS = 1800.0
"""Default number of seconds without progress after which all processes stop."""
