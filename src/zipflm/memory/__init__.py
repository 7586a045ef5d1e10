"""Memories on top of a trained model: a continuous cache and nearest neighbours."""
