"""Training. The loop is in `trainer`, a single update in `step`."""

STALL_SECONDS = 1800.0
"""Default time after which a collective operation without an answer stops all processes."""
