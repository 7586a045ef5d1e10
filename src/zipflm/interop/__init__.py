"""Import and export of other formats: fairseq checkpoints and Hugging Face models."""
