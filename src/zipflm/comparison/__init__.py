"""Studies: train the members of a comparison, score them, and hand their tables to `analysis`."""
