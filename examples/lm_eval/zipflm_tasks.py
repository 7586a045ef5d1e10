"""What the two tasks beside this file need of Python; loading it makes zipflm's models known.

`lm_eval` loads tasks that are named by a file or a folder before it loads a model, so that
`--tasks examples/lm_eval` is all that `--model hf` needs to find one of zipflm's.
"""

from pathlib import Path

from datasets import Dataset

import zipflm.interop.huggingface  # noqa: F401  # registers the architecture

_HERE = Path(__file__).parent


def texts(text=None, **_):
    """Texts of one line or several, words separated by white space.

    `--metadata '{"text": "FILE"}'` names a UTF-8 file of your own, which is one running text.
    """
    if text is None:
        return {"test": Dataset.from_json(str(_HERE / "words.jsonl"))}
    content = Path(text).read_text(encoding="utf-8")
    return {"test": Dataset.from_list([{"text": content.removesuffix("\n")}])}


def endings(**_):
    """Beginnings of lines with two endings each, and which of them is right."""
    return {"test": Dataset.from_json(str(_HERE / "endings.jsonl"))}


def whole_lines(doc):
    """The text, its last line ended like all others."""
    return doc["text"] + "\n"


def whole_endings(doc):
    """Both endings, each up to the end of its line."""
    return [ending + "\n" for ending in doc["endings"]]


def per_word(doc, results):
    """Words as `zipflm score` counts them: a line end is one."""
    (log_likelihood,) = results
    text = whole_lines(doc)
    return {"word_perplexity": (log_likelihood, len(text.split()) + text.count("\n"))}
