"""Runs behind HTTP: OpenAI-style completions, scores per word, a page to look at."""
