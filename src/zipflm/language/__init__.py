"""Using trained models: scoring, rescoring and generating text."""
