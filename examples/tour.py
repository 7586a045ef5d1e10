"""Prepare text, train a model, then evaluate, score, run a beam search and generate.

python examples/tour.py train.txt valid.txt out
"""

import sys
from pathlib import Path

import zipflm


def beam_search(lm: zipflm.TrainedModel, lattice: list[dict[str, float]], width: int = 4) -> str:
    """Shallow fusion: add log p of each word to its score in a lattice of recognized words."""
    beams = [(0.0, "", lm.start())]
    for scores in lattice:
        pairs = [(hypothesis, word) for hypothesis in beams for word in scores]
        advanced = lm.advance_many([state for (_, _, state), _ in pairs], [w for _, w in pairs])
        beams = [
            (total + scores[word] + logprob, f"{text} {word}".strip(), state)
            for ((total, text, _), word), (logprob, state) in zip(pairs, advanced, strict=True)
        ]
        beams = sorted(beams, key=lambda entry: entry[0], reverse=True)[:width]
    return max(beams, key=lambda entry: entry[0] + lm.advance(entry[2], "\n")[0])[1]


def main(train: str, valid: str, out: str) -> None:
    data = zipflm.prepare(train, valid=valid, min_count=1, out=Path(out) / "data")
    run = zipflm.train("toy/ADP-T", data=data, out=Path(out) / "run", device="cpu")
    print(f"perplexity {zipflm.evaluate(run, data=data, split='valid').perplexity:.2f} per word")
    lm = zipflm.load(run)
    print(*(f"{word.word} {word.logprob:.2f}" for word in lm.score("the cat sat on it").words))
    pairs = zip("the cat sat on the mat".split(), "a mat rat in a cat".split(), strict=True)
    lattice = [{word: -0.7, similar_word: -0.6} for word, similar_word in pairs]
    print("recognized:", beam_search(lm, lattice))
    for text in lm.generate("the dog", max_words=20, num=2, seed=1):
        print("generated:", text.text.rstrip())


if __name__ == "__main__":
    main(*sys.argv[1:])
