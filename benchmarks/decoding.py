"""Words per second of generation: tails opened where they matter, against all words every step.

    python benchmarks/decoding.py --device cpu [--batch 1 64] [--words 20] [decoder.num_layers=4]
    python benchmarks/decoding.py --device cuda --precision bfloat16
    python benchmarks/decoding.py --device cpu --run runs/adp-t

Both sides use the key-value cache and draw from the same distribution; `full` computes the
log-probabilities of all words and does what is usual with them (the largest, a sort for a nucleus,
one random number and a running sum for a draw). They take turns, so that a busy machine treats them
alike; with `--cpu-time --threads 1` time counts while this process runs. `ratio` compares whole
steps, decoder included; `output_ratio` the choice of the word alone, from the hidden vector on;
`before_ratio` a step that has neither cache nor lazy output, but computes all that is there anew.
On a GPU `recorded_ratio` is what `zipflm generate` does there: a recorded step and the full output.

Without `--run` the weights are random. A random model hardly ever wants a tail, which a trained one
does; so the vectors of the tails are turned until each has its `--tail-mass` on average, which is
by default about the share that those bands have of the words of WikiText-103.

The goal: at batch 1 at least 3 times the words per second of the full output on a CPU, and 1.5
times on an H200. docs/results/decoding.md says how far that holds.
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
from torch import Tensor

from zipflm.model.all_words import AllWords
from zipflm.model.language_model import LanguageModel
from zipflm.model.next_word import NextWord
from zipflm.model.outputs import AdaptiveSoftmax
from zipflm.model.recorded_step import RecordedStep
from zipflm.overrides import override
from zipflm.presets import from_name
from zipflm.runs.loaded import load_run

END_OF_LINE = 2
CHOICES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
    "draw": {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    "top 50": {"temperature": 1.0, "top_k": 50, "top_p": 1.0},
    "nucleus 0.95 at 0.8": {"temperature": 0.8, "top_k": 0, "top_p": 0.95},
}
Choose = Callable[[Tensor], Tensor]
"""Hidden vectors [N, D] to the ids [N] of the words that follow."""


def lazy(next_word: NextWord, choice: dict[str, float]) -> Choose:
    return lambda hidden_ND: next_word.draw(hidden_ND, **choice)[0]  # type: ignore[arg-type]


def full(every: AllWords, choice: dict[str, float]) -> Choose:
    """The same choice from the log-probabilities of all words."""
    return lambda hidden_ND: every.draw(hidden_ND, **choice)[0]  # type: ignore[arg-type]


class Generation:
    """Rows that grow by a word a step, always from the same prompt."""

    def __init__(
        self, model: LanguageModel, prompt_BT: Tensor, steps: int, clock: Callable[[], float]
    ):
        self.model, self.prompt_BT, self.steps, self.clock = model, prompt_BT, steps, clock
        rows, length = prompt_BT.shape
        self.cache = model.new_cache(rows, length + steps)
        self.hidden_BD = model(prompt_BT, self.cache)[:, -1]
        self.last = [self.hidden_BD]
        self.is_on_gpu = prompt_BT.is_cuda

    def seconds(self, choose: Choose) -> float:
        """Of one step, on average."""
        self.cache.truncate(self.prompt_BT.shape[1])
        hidden_BD, self.last = self.hidden_BD, []
        start = self.clock()
        for _ in range(self.steps):
            words_B = choose(hidden_BD)
            hidden_BD = self.model(words_B.unsqueeze(1), self.cache)[:, -1]
            self.last.append(hidden_BD)
        return (self.clock() - start) / self.steps

    def seconds_recorded(self, choose: Choose) -> float:
        """Of one step that was recorded as a whole."""
        self.cache.truncate(self.prompt_BT.shape[1])
        step, hidden_BD = self.step, self.hidden_BD
        start = self.clock()
        for _ in range(self.steps):
            hidden_BD = step(choose(hidden_BD))
        return (self.clock() - start) / self.steps

    @cached_property
    def step(self) -> RecordedStep:
        return RecordedStep(self.model, self.cache)

    def output_seconds(self, choose: Choose) -> float:
        """Of choosing the words alone, for the vectors of the last generation."""
        start = self.clock()
        for hidden_BD in self.last:
            choose(hidden_BD)
        return (self.clock() - start) / len(self.last)

    def seconds_without_cache(self, choose: Choose) -> float:
        """Of a step that computes everything anew, at the length of the prompt."""
        start = self.clock()
        choose(self.model(self.prompt_BT)[:, -1])
        return self.clock() - start


def measure(
    generation: Generation, next_word: NextWord, chosen: dict[str, Choose], rounds: int
) -> dict[str, Any]:
    """Medians over rounds in which all take turns."""
    times: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds)

    for choose in chosen.values():  # warm
        generation.seconds(choose)
        generation.seconds_without_cache(choose)
        if generation.is_on_gpu:
            generation.seconds_recorded(choose)
    openings = next_word.openings
    before = openings.calls, openings.calls_with_tails, openings.rows, openings.tails
    for _ in range(rounds):
        for name, choose in chosen.items():
            note(name, generation.seconds(choose))
        for name, choose in chosen.items():
            note(f"{name} output", generation.output_seconds(choose))
        note("before", generation.seconds_without_cache(chosen["full"]))
        if generation.is_on_gpu:
            note("recorded", generation.seconds_recorded(chosen["full"]))
    after = openings.calls, openings.calls_with_tails, openings.rows, openings.tails
    calls, calls_with_tails, rows, tails = (b - a for a, b in zip(before, after, strict=True))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    batch = len(generation.prompt_BT)
    recorded = {}
    if generation.is_on_gpu:
        recorded = {
            "recorded_words_per_s": round(batch / seconds["recorded"], 1),
            "recorded_ratio": round(seconds["full"] / seconds["recorded"], 2),
        }
    return {
        "words_per_s": round(batch / seconds["lazy"], 1),
        "full_words_per_s": round(batch / seconds["full"], 1),
        "ratio": round(seconds["full"] / seconds["lazy"], 2),
        "output_ms": round(1e3 * seconds["lazy output"], 2),
        "full_output_ms": round(1e3 * seconds["full output"], 2),
        "output_ratio": round(seconds["full output"] / seconds["lazy output"], 2),
        "before_ratio": round(seconds["before"] / seconds["lazy"], 2),
        "steps_with_tails": round(calls_with_tails / calls, 3),
        "tails_per_word": round(tails / rows, 3),
        **recorded,
    }


def turn_tails(model: LanguageModel, masses: list[float], device: str) -> None:
    """Give each tail this average probability, through what hidden vectors have in common."""
    output = model.output
    assert isinstance(output, AdaptiveSoftmax)
    masses = masses[: output.bands.num_tails]
    text = (
        torch.rand(8, 32, device=device).pow(8) * model.config.vocab_size
    )  # frequent words mostly
    hidden_ND = model(text.long()).flatten(0, 1)
    mean_D = hidden_ND.mean(0)
    wanted_C = torch.tensor(masses, device=device).log()
    logits_C = torch.zeros_like(wanted_C)
    for _ in range(30):
        output.clusters[: len(masses)] = torch.outer(logits_C, mean_D / mean_D.square().sum())
        found_C = output.head_log_probs(hidden_ND)[:, output.bands.sizes[0] :].exp().mean(0)
        logits_C = logits_C + wanted_C - found_C[: len(masses)].log()


def drawn_prompt(model: LanguageModel, next_word: NextWord, rows: int, length: int) -> Tensor:
    """What the model itself says after the end of a line."""
    device = next(model.parameters()).device
    words = [torch.full((rows, 1), END_OF_LINE, device=device)]
    cache = model.new_cache(rows, length)
    for _ in range(length - 1):
        ids_B, _ = next_word.draw(model(words[-1], cache)[:, -1])
        words.append(ids_B.unsqueeze(1))
    return torch.cat(words, dim=1)


def build(options: argparse.Namespace) -> tuple[LanguageModel, str]:
    if options.run:
        run = load_run(options.run)
        return run.model.to(options.device).eval(), str(run)
    config = override(from_name(options.preset), options.overrides)
    model = LanguageModel(config).to(options.device).eval()
    title = f"{options.preset}, {config.decoder.num_layers} layers, random weights"
    if isinstance(model.output, AdaptiveSoftmax) and model.output.bands.num_tails:
        turn_tails(model, options.tail_mass, options.device)
        title += f", tails turned to probabilities of {options.tail_mass}"
    return model, title


def _clock_of_device() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="wikitext-103/ADP-T")
    parser.add_argument("--run", help="a trained run, instead of a preset with random weights")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--threads", type=int, help="of the CPU; all it has, if not given")
    parser.add_argument("--cpu-time", action="store_true", help="for one thread on a busy machine")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--prompt", type=int, default=64, help="words before the first step")
    parser.add_argument("--words", type=int, default=64, help="steps of one generation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tail-mass", type=float, nargs="+", default=[0.06, 0.04])
    parser.add_argument("--choices", nargs="+", default=list(CHOICES), choices=list(CHOICES))
    parser.add_argument("overrides", nargs="*", help="e.g. decoder.num_layers=2")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    model, title = build(options)
    if options.precision == "bfloat16":  # weights too, as `zipflm.load(dtype=...)` has it
        model = model.bfloat16()
    on_gpu = options.device == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}, {options.precision}, {title}", flush=True)
    # What a text must not contain: the three symbols that are no words, and fillers at the end.
    forbidden_V = torch.zeros(model.config.vocab_size, dtype=torch.bool, device=options.device)
    forbidden_V[[0, 1, 3]] = forbidden_V[-7:] = True
    next_word = NextWord(model.output, forbidden_V)
    clock = _clock_of_device if on_gpu else time.perf_counter
    if options.cpu_time:
        clock = time.process_time
    for batch in options.batch:
        prompt_BT = drawn_prompt(model, next_word, batch, options.prompt)
        generation = Generation(model, prompt_BT, options.words, clock)
        for choice in options.choices:
            chosen = {
                "lazy": lazy(next_word, CHOICES[choice]),
                "full": full(AllWords(model.output, forbidden_V), CHOICES[choice]),
            }
            result = measure(generation, next_word, chosen, options.rounds)
            print(json.dumps({"batch": batch, "choice": choice} | result), flush=True)


if __name__ == "__main__":
    main()
