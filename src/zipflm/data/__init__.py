"""From raw text to batches: vocabulary, token files, data folders, plans of batches."""
