"""Evaluation with a context window against the forward pass of a training step, on a GPU.

    python benchmarks/evaluation.py [--preset wikitext-103/ADP-T] [--block 3072] [--context 2560]

Both rates count every token that goes through the decoder, context included. The weights are
random, which changes no time. The claim: evaluation runs at more than half of training's rate.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from zipflm.evaluation.perplexity import Precision, score

from zipflm.data.batches import Batches
from zipflm.data.tokens import TokenArray
from zipflm.model.language_model import LanguageModel
from zipflm.presets import from_name


def training_forward(model: LanguageModel, tokens: int, block: int, precision: Precision) -> float:
    """Tokens per second of the forward half of a step: dropout on, every token scored."""
    words = torch.randint(model.config.vocab_size, (tokens // block, block + 1), device="cuda")
    model.train()
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", getattr(torch, precision), enabled=precision != "float32"):
            loss = model.nll(words[:, :-1], words[:, 1:]).mean()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        del loss
    return words[:, 1:].numel() / sorted(times)[len(times) // 2]


def evaluation(model: LanguageModel, batches: Batches, precision: Precision) -> float:
    """Tokens per second that `score` puts through the model."""
    ends_word = np.ones(model.config.vocab_size, dtype=np.bool_)
    start = time.perf_counter()
    scores = score(model, batches, device="cuda", ends_word=ends_word, precision=precision)
    return scores.protocol.positions / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="wikitext-103/ADP-T")
    parser.add_argument("--block", type=int, default=3072)
    parser.add_argument("--context", type=int, default=2560)
    parser.add_argument("--tokens", type=int, default=60_000, help="length of the text")
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    options = parser.parse_args()
    model = LanguageModel(from_name(options.preset)).cuda()
    ids = np.random.default_rng(0).zipf(1.3, options.tokens) % model.config.vocab_size
    text = TokenArray(ids.astype(np.int64), np.array([0, options.tokens]))
    batches = Batches(
        text,
        break_mode="none",
        block=options.block,
        context=options.context,
        max_tokens=options.batch_tokens,
        shuffle=False,
    )
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.preset}")
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision in precisions:
        forward = training_forward(model, options.batch_tokens, options.block, precision)
        evaluation(model, batches, precision)  # warm
        torch.cuda.reset_peak_memory_stats()
        rate = evaluation(model, batches, precision)
        result = {
            "precision": precision,
            "training_forward_tokens_per_s": round(forward),
            "evaluation_tokens_per_s": round(rate),
            "ratio": round(rate / forward, 3),
            "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
