"""Training. `trainer` has the loop, `step` a single update."""
