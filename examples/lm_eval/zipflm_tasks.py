"""Functions for the two tasks in this folder. Importing this module registers zipflm models.

`lm_eval` imports tasks before it loads a model, so with `--tasks examples/lm_eval`, `--model hf`
recognizes the architecture.
"""

from pathlib import Path

from datasets import Dataset

import zipflm.interop.huggingface  # noqa: F401  # registers the architecture

_HERE = Path(__file__).parent


def load_texts(text=None, **_):
    """Return texts of one or more lines, with words separated by whitespace.

    Use `--metadata '{"text": "FILE"}'` to score a UTF-8 file of your own as one text.
    """
    if text is None:
        return {"test": Dataset.from_json(str(_HERE / "words.jsonl"))}
    content = Path(text).read_text(encoding="utf-8")
    return {"test": Dataset.from_list([{"text": content.removesuffix("\n")}])}


def load_endings(**_):
    """Return beginnings of lines with two endings each, one of them correct."""
    return {"test": Dataset.from_json(str(_HERE / "endings.jsonl"))}


def text_with_newline(doc):
    return doc["text"] + "\n"


def endings_with_newline(doc):
    return [ending + "\n" for ending in doc["endings"]]


def count_words(doc, results):
    """Return the log-likelihood and the number of words, from which lm_eval computes perplexity.

    Line ends are counted as words, as in `zipflm score`.
    """
    (log_likelihood,) = results
    text = text_with_newline(doc)
    return {"word_perplexity": (log_likelihood, len(text.split()) + text.count("\n"))}
