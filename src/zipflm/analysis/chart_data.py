"""The data of the page's charts, as `report.js` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.palette import Style, style_of
from zipflm.analysis.paper_bins import BIN_MODELS, bins_of_paper
from zipflm.analysis.study import Row, Study

_PAPER_NAMES = {
    "wikitext-103": "the paper, WikiText-103",
    "billion-word": "the paper, Billion Word",
}


def chart_data(study: Study) -> dict[str, Any]:
    """Plain values; an empty bin's loss is null, never zero."""
    looks = style_of(study)
    return {
        "split": study.split,
        "reference": study.reference,
        "headline": study.headline_name,
        "models": [_model(row, study) | _look(looks[row.label]) for row in study.rows],
        "bins": {
            "word": _sources(study, study.word_bins, previous=False),
            "previous": _sources(study, study.previous_bins, previous=True),
        },
    }


def _model(row: Row, study: Study) -> dict[str, Any]:
    summary = study.headline(row) if row.perplexity else None
    interval = study.headline_interval(row) if row.perplexity else None
    return {
        "label": row.label,
        "params": row.num_params,
        "perplexity": summary.mean if summary else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "curve": [asdict(point) for point in row.curve],
    }


def _look(style: Style) -> dict[str, str]:
    return {"pattern": style.pattern, "marker": style.marker, "dash": style.dash}


def _sources(study: Study, bins: Sequence[FrequencyBin], *, previous: bool) -> list[dict[str, Any]]:
    """Our bins first, then the paper's, where it has some of our models."""
    ours = {"name": "this study", "reference": study.reference, "bins": [asdict(b) for b in bins]}
    labels = {row.label for row in study.rows}
    theirs = [
        {
            "name": name,
            "reference": "ADP-T",
            "bins": [asdict(b) for b in bins_of_paper(dataset, previous=previous)],
        }
        for dataset, name in _PAPER_NAMES.items()
        if labels & set(BIN_MODELS[dataset])
    ]
    return [ours, *theirs]
