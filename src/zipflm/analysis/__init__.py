"""From per-word losses to tables, figures and the report; knows no models."""
