"""Options, texts and timing shared by the benchmarks."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from zipflm.config import Config
from zipflm.data.batches import Batches
from zipflm.data.corpora import EMBEDDED, corpus_texts
from zipflm.data.token_file import TokenArray
from zipflm.data.vocabulary import SPECIALS, Vocabulary
from zipflm.evaluation.scoring import score
from zipflm.memory.specs import Memories
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision


def parser_of(doc: str, preset: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the option `--device`; with a default preset, also `--preset` and
    overrides."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, choices=["cuda", "cpu"])
    if preset is not None:
        parser.add_argument("--preset", default=preset)
        parser.add_argument("overrides", nargs="*", help="e.g. decoder.num_layers=2")
    return parser


def title(device: str | torch.device, *details: str) -> str:
    """Return the device, the version of torch and other details in one line."""
    on_gpu = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads"
    return ", ".join([name, f"torch {torch.__version__}", *details])


def synchronize(device: str | torch.device) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str | torch.device) -> float:
    """Return the time of some work, including that on the device."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def real_tokens(vocab_size: int, num_tokens: int) -> TokenArray:
    """Return the bundled text, repeated, with ids by frequency."""
    with corpus_texts(EMBEDDED, Path()) as texts:
        words = texts["train"][0].read_text(encoding="utf-8").split()
    ranks = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common())}
    ids = np.array([ranks[word] for word in words]) % (vocab_size - 4) + 4
    ids = np.resize(ids, num_tokens)
    return TokenArray.of(np.array_split(ids, max(num_tokens // 25, 1)))


def random_tokens(vocab_size: int, num_tokens: int) -> TokenArray:
    """Return ids that follow Zipf's law, in sentences of 25."""
    random = np.random.default_rng(0)
    ids = np.exp(random.uniform(0, np.log(vocab_size - 4), num_tokens)).astype(np.int64) + 3
    return TokenArray.of(np.array_split(ids, max(num_tokens // 25, 1)))


def fake_vocabulary(config: Config) -> Vocabulary:
    """Return a vocabulary of the right size to build a model."""
    words = [f"w{number}" for number in range(config.vocab_size - len(SPECIALS))]
    counts = [config.vocab_size - number for number in range(len(words))]
    return Vocabulary([*SPECIALS, *words], [0] * len(SPECIALS) + counts)


def scoring_rate(
    model: LanguageModel,
    batches: Batches,
    device: str,
    precision: Precision,
    memories: Memories | None = None,
) -> float:
    """Return the tokens per second of `score`, context included."""
    ends_word = np.ones(model.config.vocab_size, dtype=np.bool_)
    start = time.perf_counter()
    scores = score(
        model,
        batches,
        device=device,
        ends_word=ends_word,
        precision=precision,
        memories=memories,
    )
    return scores.protocol.positions / (time.perf_counter() - start)
