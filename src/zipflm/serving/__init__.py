"""The HTTP service: OpenAI-style completions, scores per word, and a web page."""
