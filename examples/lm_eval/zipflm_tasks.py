"""Functions for the two tasks in this folder. Importing this module registers zipflm's models.

`lm_eval` imports tasks before it loads a model, so `--tasks examples/lm_eval` is enough for
`--model hf` to find zipflm's architecture.
"""

from pathlib import Path

from datasets import Dataset

import zipflm.interop.huggingface  # noqa: F401  # registers the architecture

_HERE = Path(__file__).parent


def texts(text=None, **_):
    """Return texts of one or more lines, with words separated by whitespace.

    Use `--metadata '{"text": "FILE"}'` to score a UTF-8 file of your own as one text.
    """
    if text is None:
        return {"test": Dataset.from_json(str(_HERE / "words.jsonl"))}
    content = Path(text).read_text(encoding="utf-8")
    return {"test": Dataset.from_list([{"text": content.removesuffix("\n")}])}


def endings(**_):
    """Return line beginnings with two endings each, one of them correct."""
    return {"test": Dataset.from_json(str(_HERE / "endings.jsonl"))}


def whole_lines(doc):
    """Return the text with a newline at the end."""
    return doc["text"] + "\n"


def whole_endings(doc):
    """Return both endings with a newline at the end."""
    return [ending + "\n" for ending in doc["endings"]]


def per_word(doc, results):
    """Compute perplexity per word. Line ends are counted as words, as in `zipflm score`."""
    (log_likelihood,) = results
    text = whole_lines(doc)
    return {"word_perplexity": (log_likelihood, len(text.split()) + text.count("\n"))}
