"""Tables and figures from scores; no models."""
