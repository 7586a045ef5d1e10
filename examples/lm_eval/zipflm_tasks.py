"""Functions for the two tasks in this folder. Importing it registers zipflm's models.

`lm_eval` imports tasks before it loads a model, so `--tasks examples/lm_eval` is enough for
`--model hf` to find zipflm's architecture.
"""

from pathlib import Path

from datasets import Dataset

import zipflm.interop.huggingface  # noqa: F401  # registers the architecture

_HERE = Path(__file__).parent


def texts(text=None, **_):
    """Texts of one or more lines, with words separated by whitespace.

    Use `--metadata '{"text": "FILE"}'` to score a UTF-8 file of your own as one text.
    """
    if text is None:
        return {"test": Dataset.from_json(str(_HERE / "words.jsonl"))}
    content = Path(text).read_text(encoding="utf-8")
    return {"test": Dataset.from_list([{"text": content.removesuffix("\n")}])}


def endings(**_):
    """Line beginnings with two endings each, one of them correct."""
    return {"test": Dataset.from_json(str(_HERE / "endings.jsonl"))}


def whole_lines(doc):
    """The text with a newline at the end."""
    return doc["text"] + "\n"


def whole_endings(doc):
    """Both endings with a newline at the end."""
    return [ending + "\n" for ending in doc["endings"]]


def per_word(doc, results):
    """Perplexity per word, counting line ends as `zipflm score` does."""
    (log_likelihood,) = results
    text = whole_lines(doc)
    return {"word_perplexity": (log_likelihood, len(text.split()) + text.count("\n"))}
