"""From a config and a data folder to checkpoints: one loop, read `trainer` from top to bottom."""
