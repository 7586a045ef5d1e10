"""Compare the speed of scoring short sentences with `evaluate` on the same tokens in full blocks.

    python benchmarks/scoring.py [--device cuda] [--preset wikitext-103/ADP-T] [OVERRIDES]

Sentences have 5 to 35 words of an artificial vocabulary, drawn by Zipf's law; the weights are
random. `evaluate` scores tokens in blocks of 512. `lm.score` starts from text: it splits and looks
up words, batches sentences by length and returns a score per word. `rows` is
`zipflm score --per word` without starting a process or printing.

The goal for `lm.score` is at least 0.8 times the tokens/s of `evaluate`.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import fake_vocabulary, parser_of, seconds, title

from zipflm.config import PLAIN, Blocks, Config
from zipflm.data.batches import Batches
from zipflm.data.token_file import TokenArray
from zipflm.data.vocabulary import SPECIALS, Vocabulary
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.evaluation.scoring import score
from zipflm.language.model import TrainedModel
from zipflm.language.score_command import ScoreOptions, score_files
from zipflm.presets import from_name
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder
from zipflm.runs.load import LoadedRun, untrained_model
from zipflm.settings import override

BLOCK = 512


def artificial_run(config: Config) -> LoadedRun:
    vocabulary, path = fake_vocabulary(config), Path("artificial")
    return LoadedRun(
        folder=RunFolder(path),
        checkpoint=Checkpoint(path / "checkpoints" / "update-00000000"),
        model=untrained_model(config, vocabulary).eval(),
        config=config,
        vocabulary=vocabulary,
        codes=None,
        splitting=PLAIN,
        weights_hash="",
    )


def artificial_lines(vocabulary: Vocabulary, num_lines: int) -> list[str]:
    draw = np.random.default_rng(1)
    lengths = random.Random(1).choices(range(5, 36), k=num_lines)
    # With exponent 1, Zipf's law is uniform in the logarithm of the rank.
    ranks = np.exp(draw.uniform(0, np.log(vocabulary.num_words), sum(lengths))).astype(int) - 1
    words = iter(vocabulary.words[len(SPECIALS) + rank] for rank in ranks.tolist())
    return [" ".join(next(words) for _ in range(length)) for length in lengths]


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__, "wikitext-103/ADP-T")
    parser.add_argument("--lines", type=int, help="default: 20,000 on a GPU, 300 on a CPU")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    config = override(from_name(options.preset), options.overrides)
    lm = TrainedModel(artificial_run(config), ScoringOptions(device=options.device, block=BLOCK))
    default = 300 if lm.device.type == "cpu" else 20_000
    lines = artificial_lines(lm.vocabulary, options.lines or default)
    ids = [lm.reader.line(line).ids for line in lines]
    tokens = TokenArray(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))
    blocks = Blocks(break_mode="none", block=BLOCK)
    plan = Batches(tokens, blocks, max_tokens=lm.engine.batch_tokens, shuffle=False)
    ends_word = np.ones(len(lm.vocabulary), dtype=np.bool_)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "lines.txt"
        text.write_text("\n".join(lines) + "\n")
        sides: dict[str, Callable[[], object]] = {
            "evaluate": lambda: score(lm.model, plan, device=lm.device, ends_word=ends_word),
            "lm.score": lambda: lm.score(lines),
            "rows": lambda: sum(map(len, score_files(lm, [str(text)], ScoreOptions()))),
        }
        best = dict.fromkeys(sides, float("inf"))
        for _ in range(options.rounds + 1):  # the first one warms up
            for name, work in sides.items():
                best[name] = min(best[name], seconds(work, options.device))
    rates = {name: len(tokens) / taken for name, taken in best.items()}
    print(title(options.device, options.preset, f"{len(tokens):,} tokens"))
    for name, rate in rates.items():
        print(f"{name:10} {rate:>12,.0f} tokens/s  {rate / rates['evaluate']:.2f} of evaluate")


if __name__ == "__main__":
    main()
