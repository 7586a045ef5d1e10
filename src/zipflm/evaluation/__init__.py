"""Scoring of texts with trained models: per-token nll and perplexity."""
