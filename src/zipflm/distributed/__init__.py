"""Devices, and several processes that train or score together."""

STALL_SECONDS = 1800.0
"""Default number of seconds without progress after which all processes stop."""
