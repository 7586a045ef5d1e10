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
from zipflm.serving.prompts import encoded_or_refused, read_prompts, spelled, start_of
from zipflm.serving.requests import chosen_model, require_length
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
    start = start_of(text)
    ids = [END] if start else []
    if rest := text[start:]:
        ids += encoded_or_refused(model.reader, rest).ids.tolist()
    return {"tokens": ids, "count": len(ids), "max_model_len": limits.max_words}


def detokenized(
    values: Mapping[str, Any], models: Mapping[str, ServedModel], limits: Limits
) -> dict[str, Any]:
    """The text of ids, from which `tokenized` makes the same ids wherever spelling allows it."""
    fields = Fields(values)
    model = chosen_model(fields, models)
    tokens = fields.get("tokens")
    if tokens == []:
        return {"prompt": ""}
    if not isinstance(tokens, list) or isinstance(tokens[0], list | str):
        raise bad_request("tokens", "tokens: give a list of ids")
    require_length("tokens", len(tokens), limits)
    (prompt,) = read_prompts(model, tokens)
    ids = prompt.tokens.tolist()
    if prompt.has_start:
        text = spelled(model.reader, ids[1:])[0]
        return {"prompt": f"{SPECIALS[END]} {text}" if text else SPECIALS[END]}
    return {"prompt": prompt.text}
