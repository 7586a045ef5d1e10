"""Cost of memories: scoring with and without a cache, and exact search.

    python benchmarks/memory.py --device cpu [--preset wikitext-2/ADP-T] [--window 2000]
    python benchmarks/memory.py --device cuda --preset wikitext-103/ADP-T --window 10000 \
        --keys 80000000

Weights, text and keys are random, which does not affect the time. Scoring with and without the
cache alternates in one process. Goals: a cache of 2,000 tokens costs at most 30% of the speed on a
CPU, and one of 10,000 at most half of it on a GPU; exact search among 80 million keys takes at most
10 ms per query on a GPU, for a batch of 8,192 queries. If the keys do not fit into GPU memory, a
part of them is searched repeatedly, so the time to read keys from disk is not included.
"""

from __future__ import annotations

import json
from statistics import median

import torch
from common import parser_of, random_tokens, scoring_rate, seconds, title

from zipflm.config import Blocks
from zipflm.data.batches import Batches
from zipflm.memory.cache import Cache, CacheSettings
from zipflm.memory.mixing import unit_vectors
from zipflm.memory.neighbors import exact_search
from zipflm.memory.specs import Memories
from zipflm.model.language_model import LanguageModel
from zipflm.presets import from_name
from zipflm.settings import override


def search_milliseconds(num_keys: int, dim: int, queries: int, k: int, device: str) -> float:
    """Return the milliseconds per query of exact search among `num_keys` keys."""
    generator = torch.Generator(device).manual_seed(0)
    num_fitting = num_keys
    if device == "cuda":
        # Like `Neighbors`: at most 60% of the free memory, in float16.
        num_fitting = min(num_keys, int(0.6 * torch.cuda.mem_get_info()[0]) // (2 * dim))
    keys = torch.empty(num_fitting, dim, dtype=torch.float16, device=device)
    for first in range(0, num_fitting, 1 << 20):
        size = min(1 << 20, num_fitting - first)
        block = torch.randn(size, dim, generator=generator, device=device)
        keys[first : first + size] = unit_vectors(block).half()
    vectors = unit_vectors(torch.randn(queries, dim, generator=generator, device=device))
    exact_search(keys[: 1 << 20], vectors, min(k, num_fitting))  # warm-up

    def search() -> None:
        done = 0
        while done < num_keys:
            part = keys[: num_keys - done]
            exact_search(part, vectors, min(k, len(part)))
            done += len(part)

    return 1000 * seconds(search, device) / queries


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__, "wikitext-2/ADP-T")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--window", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=None, help="length of the text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keys", type=int, default=200_000, help="number of keys; 0: no search")
    parser.add_argument("--queries", type=int, help="default: 8,192 on a GPU, else 256")
    parser.add_argument("--neighbors", type=int, default=1024)
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    tokens = options.tokens or (1_000_000 if on_gpu else 20_000)
    config = override(from_name(options.preset), options.overrides)
    model = LanguageModel(config).to(options.device).eval()
    batches = Batches(
        random_tokens(config.vocab_size, tokens),
        Blocks(break_mode="none", block=options.block, context=0),
        max_tokens=max(options.block, 32_768 if on_gpu else 4_096),
        shuffle=False,
    )
    print(title(options.device, options.preset))
    cache = Cache(CacheSettings(window=options.window))
    memories = Memories([f"cache:{options.window}"], [cache])
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.repeats + 1):  # the first is warm-up
        for has_cache, measured in rates.items():
            chosen = memories if has_cache else None
            measured.append(scoring_rate(model, batches, options.device, options.dtype, chosen))
    without, with_cache = (median(measured[1:]) for measured in rates.values())
    result = {
        "window": options.window,
        "dtype": options.dtype,
        "tokens_per_s": round(without),
        "with_cache_tokens_per_s": round(with_cache),
        "ratio": round(with_cache / without, 3),
    }
    if on_gpu:
        result["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    print(json.dumps(result))
    if options.keys:
        del model
        queries = options.queries or (8192 if on_gpu else 256)
        dim, k = config.decoder.dim, min(options.neighbors, options.keys)
        milliseconds = search_milliseconds(options.keys, dim, queries, k, options.device)
        search = {"keys": options.keys, "dim": dim, "k": k, "queries": queries}
        print(json.dumps(search | {"ms_per_query": round(milliseconds, 4)}))


if __name__ == "__main__":
    main()
