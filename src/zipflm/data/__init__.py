"""From raw text to batches: splitting, vocabulary, token files, data folders, batches."""
