"""Speed of evaluation with a context window, compared with the forward pass of training.

    python benchmarks/evaluation.py [--preset wikitext-103/ADP-T] [--block 3072] [--context 2560]

Both rates count every token that goes through the decoder, context included. The weights are
random, which does not affect the time. The goal on a GPU is more than half the rate of the forward
pass of training.
"""

from __future__ import annotations

import json

import torch
from common import parser_of, random_tokens, scoring_rate, seconds, title

from zipflm.config import Blocks
from zipflm.data.batches import Batches
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision, autocast
from zipflm.presets import from_name
from zipflm.settings import override

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


def training_forward_rate(
    model: LanguageModel, tokens: int, block: int, device: str, precision: Precision
) -> float:
    """Return the tokens per second of a training step's forward pass."""
    words = torch.randint(model.config.vocab_size, (tokens // block, block + 1), device=device)
    model.train()

    def forward() -> None:
        with autocast(precision, device):
            model.nll(words[:, :-1], words[:, 1:]).mean()

    times = [seconds(forward, device) for _ in range(8)]
    return words[:, 1:].numel() / sorted(times)[len(times) // 2]


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__, "wikitext-103/ADP-T")
    parser.add_argument("--block", type=int, default=3072)
    parser.add_argument("--context", type=int, default=2560)
    parser.add_argument("--tokens", type=int, default=60_000, help="length of the text")
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    config = override(from_name(options.preset), options.overrides)
    model = LanguageModel(config).to(options.device)
    batches = Batches(
        random_tokens(config.vocab_size, options.tokens),
        Blocks(break_mode="none", block=options.block, context=options.context),
        max_tokens=options.batch_tokens,
        shuffle=False,
    )
    print(title(options.device, options.preset))
    for precision in PRECISIONS:
        forward = training_forward_rate(
            model, options.batch_tokens, options.block, options.device, precision
        )
        scoring_rate(model, batches, options.device, precision)  # warm-up
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        rate = scoring_rate(model, batches, options.device, precision)
        result = {
            "precision": precision,
            "training_forward_tokens_per_s": round(forward),
            "evaluation_tokens_per_s": round(rate),
            "ratio": round(rate / forward, 3),
        }
        if on_gpu:
            result["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
