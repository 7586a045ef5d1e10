"""Scores of texts under trained models: per-token nll, perplexity, run folders."""
