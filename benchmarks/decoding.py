"""Measure the words per second of generation.

    python benchmarks/decoding.py --device cpu [--batch 1 64] [--words 20] [decoder.num_layers=4]
    python benchmarks/decoding.py --device cuda --precision bfloat16
    python benchmarks/decoding.py --device cpu --run runs/adp-t

`words_per_s` counts full steps with the key-value cache, and `output_ms` is the time of the output
layer and sampling alone. `before_ratio` is the speedup over a step that reads the prompt again
instead of using the cache. On a GPU, `recorded_ratio` is the speedup from CUDA graphs, which
`zipflm generate` uses. On a busy machine, `--cpu-time --threads 1` measures CPU time. Without
`--run`, the weights are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from common import parser_of, synchronize, title
from torch import Tensor

from zipflm.model.language_model import LanguageModel
from zipflm.model.recorded_step import RecordedStep
from zipflm.model.sampling import draw
from zipflm.presets import from_name
from zipflm.runs.load import load_run
from zipflm.settings import override

END_OF_LINE = 2
CHOICES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
    "draw": {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    "top 50": {"temperature": 1.0, "top_k": 50, "top_p": 1.0},
    "nucleus 0.95 at 0.8": {"temperature": 0.8, "top_k": 0, "top_p": 0.95},
}
Choose = Callable[[Tensor], Tensor]
"""Returns the ids [N] of the next words, given hidden vectors [N, D]."""


def make_choose(model: LanguageModel, choice: dict[str, float], forbidden: Tensor) -> Choose:
    return lambda hidden_ND: draw(model.output, hidden_ND, forbidden=forbidden, **choice)[0]  # type: ignore[arg-type]


class Generation:
    """Rows that grow by one word per step, always from the same prompt."""

    def __init__(
        self, model: LanguageModel, prompt_BT: Tensor, steps: int, clock: Callable[[], float]
    ):
        self.model, self.prompt_BT, self.steps, self.clock = model, prompt_BT, steps, clock
        rows, length = prompt_BT.shape
        self.cache = model.new_cache(rows, length + steps)
        self.hidden_BD = model(prompt_BT, self.cache)[:, -1]
        self.last = [self.hidden_BD]
        self.after_prompt = self.cache.snapshot()
        self.recorded = model.new_cache(0, 0)
        self.recorded.join(self.cache, length + steps)
        self.is_on_gpu = prompt_BT.is_cuda

    def seconds(self, choose: Choose) -> float:
        """Return the average time of one step."""
        self.cache.restore(self.after_prompt)
        hidden_BD, self.last = self.hidden_BD, []
        start = self.clock()
        for _ in range(self.steps):
            words_B = choose(hidden_BD)
            hidden_BD = self.model(words_B.unsqueeze(1), self.cache)[:, -1]
            self.last.append(hidden_BD)
        return (self.clock() - start) / self.steps

    def seconds_recorded(self, choose: Choose) -> float:
        """Return the average time of one recorded step."""
        self.cache.restore(self.after_prompt)
        self.recorded.fill(range(len(self.prompt_BT)), self.cache)
        step, hidden_BD = self.step, self.hidden_BD
        start = self.clock()
        for _ in range(self.steps):
            hidden_BD = step(choose(hidden_BD))
        return (self.clock() - start) / self.steps

    @cached_property
    def step(self) -> RecordedStep:
        return RecordedStep(self.model, self.recorded)

    def output_seconds(self, choose: Choose) -> float:
        """Return the average time to choose words from the hidden vectors of the last
        generation."""
        start = self.clock()
        for hidden_BD in self.last:
            choose(hidden_BD)
        return (self.clock() - start) / len(self.last)

    def seconds_without_cache(self, choose: Choose) -> float:
        """Return the time of a step that reads the full prompt again."""
        start = self.clock()
        choose(self.model(self.prompt_BT)[:, -1])
        return self.clock() - start


def measure(generation: Generation, choose: Choose, rounds: int) -> dict[str, Any]:
    """Return medians over rounds. Each round runs all variants."""
    variants = {
        "step": generation.seconds,
        "output": generation.output_seconds,
        "before": generation.seconds_without_cache,
    }
    if generation.is_on_gpu:
        variants["recorded"] = generation.seconds_recorded
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds + 1):
        for name, variant in variants.items():
            seconds = variant(choose)
            if round_number:  # the first round warms up
                times[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    batch = len(generation.prompt_BT)
    result = {
        "words_per_s": round(batch / medians["step"], 1),
        "output_ms": round(1e3 * medians["output"], 2),
        "before_ratio": round(medians["before"] / medians["step"], 2),
    }
    if generation.is_on_gpu:
        result["recorded_words_per_s"] = round(batch / medians["recorded"], 1)
        result["recorded_ratio"] = round(medians["step"] / medians["recorded"], 2)
    return result


def sample_prompt(model: LanguageModel, rows: int, length: int) -> Tensor:
    """Return words sampled from the model after the end of a line."""
    device = next(model.parameters()).device
    words = [torch.full((rows, 1), END_OF_LINE, device=device)]
    cache = model.new_cache(rows, length)
    for _ in range(length - 1):
        ids_B, _ = draw(model.output, model(words[-1], cache)[:, -1])
        words.append(ids_B.unsqueeze(1))
    return torch.cat(words, dim=1)


def build(options: argparse.Namespace) -> LanguageModel:
    if options.run:
        return load_run(options.run).model.to(options.device).eval()
    config = override(from_name(options.preset), options.overrides)
    return LanguageModel(config).to(options.device).eval()


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__, "wikitext-103/ADP-T")
    parser.add_argument("--run", help="a trained run, instead of a preset with random weights")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure CPU time; use with --threads 1"
    )
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--prompt", type=int, default=64, help="words in the prompt")
    parser.add_argument("--words", type=int, default=64, help="words to generate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--choices", nargs="+", default=list(CHOICES), choices=list(CHOICES))
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    model = build(options)
    if options.precision == "bfloat16":  # including weights, like `zipflm.load(dtype=...)`
        model = model.bfloat16()
    print(title(options.device, options.precision, options.run or options.preset), flush=True)
    # Special tokens that are not words, and ids at the end that pad the vocabulary.
    size = model.config.vocab_size
    forbidden = torch.tensor([0, 1, 3, *range(size - 7, size)], device=options.device)

    def clock() -> float:
        synchronize(options.device)
        return time.process_time() if options.cpu_time else time.perf_counter()

    for batch in options.batch:
        prompt_BT = sample_prompt(model, batch, options.prompt)
        generation = Generation(model, prompt_BT, options.words, clock)
        for name in options.choices:
            choose = make_choose(model, CHOICES[name], forbidden)
            result = measure(generation, choose, options.rounds)
            print(json.dumps({"batch": batch, "choice": name} | result), flush=True)


if __name__ == "__main__":
    main()
