"""Foreign formats in and out of this package's own."""
