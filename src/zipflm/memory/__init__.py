"""Memories for a trained model: a continuous cache and nearest neighbors."""
