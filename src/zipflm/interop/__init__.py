"""Import of fairseq checkpoints, and import and export of Hugging Face models."""
