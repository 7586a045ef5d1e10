"""Ids of texts and texts of ids, for harnesses that count tokens before they ask.

lm-evaluation-harness has a "remote" tokenizer that asks these three paths; with it a run can be
evaluated without a tokenizer file of any other library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zipflm.data.vocabulary import END, SPECIALS, UNKNOWN
from zipflm.serving.errors import bad_request
from zipflm.serving.fields import Fields
from zipflm.serving.models import ServedModel
from zipflm.serving.prompts import encoded_or_refused, read_prompts, spelled
from zipflm.serving.requests import chosen_model
from zipflm.serving.tickets import Limits


def tokenizer_info() -> dict[str, Any]:
    """The same word ends a line and stands before every text."""
    end = SPECIALS[END]
    return {"eos_token": end, "bos_token": end, "pad_token": None, "unk_token": SPECIALS[UNKNOWN]}


def tokenized(
    values: Mapping[str, Any], models: Mapping[str, ServedModel], limits: Limits
) -> dict[str, Any]:
    """The ids of a text, of which there may be none."""
    fields = Fields(values)
    model = chosen_model(fields, models)
    text = fields.text("prompt")
    ids = read_prompts(model, text)[0].tokens.tolist() if text.strip() else _of_blanks(model, text)
    return {"tokens": ids, "count": len(ids), "max_model_len": limits.max_words}


def _of_blanks(model: ServedModel, text: str) -> list[int]:
    """Nothing, or lines that have ended."""
    return encoded_or_refused(model.reader, text).ids.tolist() if text else []


def detokenized(values: Mapping[str, Any], models: Mapping[str, ServedModel]) -> dict[str, Any]:
    """The text of ids, from which `tokenized` makes the same ids wherever spelling allows it."""
    fields = Fields(values)
    model = chosen_model(fields, models)
    tokens = fields.get("tokens")
    if tokens == []:
        return {"prompt": ""}
    if not isinstance(tokens, list) or isinstance(tokens[0], list | str):
        raise bad_request("tokens", "tokens: give a list of ids")
    (prompt,) = read_prompts(model, tokens)
    ids = prompt.tokens.tolist()
    if prompt.has_start:
        text = spelled(model.reader, ids[1:])[0]
        return {"prompt": f"{SPECIALS[END]} {text}" if text else SPECIALS[END]}
    return {"prompt": prompt.text}
