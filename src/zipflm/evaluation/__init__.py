"""From a model and batches to scores."""
