"""The HTTP service: OpenAI-style completions, per-word scores, and a web page."""
