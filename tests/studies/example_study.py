"""A study with random losses, for tests of tables, figures and pages."""

import math
from dataclasses import replace
from functools import cache

import numpy as np

from zipflm.config import Blocks
from zipflm.data.vocabulary import Vocabulary
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.presets import preset
from zipflm.studies.members import CurvePoint, StudyMember, split_score
from zipflm.studies.study import SplitText, build_study

LABELS = ("SM", "SM-T", "BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T")


def vocabulary(size=400):
    """Zipf counts from 150,000 down."""
    return Vocabulary.from_counts(
        {f"w{rank}": max(3, 150_000 // (rank * rank)) for rank in range(1, size + 1)}
    )


def text(size=3000):
    words = vocabulary()
    ids = np.random.default_rng(0).zipf(1.3, size=size)
    ids = np.where(ids < len(words) - 12, ids + 3, 2)
    lines = np.arange(0, size, 12)
    return SplitText(split="test", word_ids=ids, vocabulary=words, line_starts=lines)


@cache
def _shared_text():
    return text()


def member(label, seed=1, *, problem="", rank=0):
    scored = _shared_text()
    config = preset("tiny", label.split(" ")[0] if label.split(" ")[0] in LABELS else "SM")
    random = np.random.default_rng([rank, seed])
    counts = np.maximum(scored.vocabulary.counts[scored.word_ids], 1)
    nll = 10 - 0.6 * np.log(counts) - 0.04 * rank + random.normal(0, 0.5, len(counts))
    nll = np.abs(nll)
    protocol = ScoringProtocol(
        unit="bpe" if "BPE" in label else "word",
        blocks=Blocks(break_mode="complete", block=64),
        tokens=len(nll),
        words=len(nll),
        unk=0,
        eos=1,
        positions=len(nll),
        dtype="float32",
    )
    score = split_score(nll, scored.word_ids, protocol)
    curve = tuple(
        CurvePoint(
            update=10 * i,
            seconds=i * (1.0 + rank / 10),
            loss=score.loss + 4 / i,
            valid_loss=score.loss + 3 / i if i % 2 == 0 else None,
        )
        for i in range(1, 11)
    )
    return StudyMember(
        label=label,
        factorization=label.split(" ")[0],
        run=f"members/{label}/seed-{seed}",
        checkpoint=None if problem else "update-00000100",
        scores={} if problem else {"valid": score, "test": score},
        nll=None if problem else nll,
        curve=curve[:3] if problem else curve,
        updates=None if problem else 100,
        words_seen=None if problem else 102_400,
        seconds=None if problem else 10.0 + rank,
        compile_seconds=None if problem else 20.0 - rank,
        tokens_per_second=None if problem else 12_345.0,
        memory=None if problem else 123_456_789,
        config=replace(config, training=replace(config.training, seed=seed)),
        problem=problem,
    )


@cache
def study(dataset="tiny", seeds=1, broken=""):
    members = [
        member(label, seed, rank=rank, problem="diverged: <loss> nan" if label == broken else "")
        for rank, label in enumerate(LABELS)
        for seed in range(1, seeds + 1)
    ]
    metadata = {"data": "data/", "updates": "100", "zipflm": "0.1.0"}
    return build_study(
        members, text(), title="Factorizations of test", dataset=dataset, protocol=metadata
    )


def study_of(*members, dataset="tiny", on=None):
    return build_study(members, on or text(), title="t", dataset=dataset, protocol={})


def with_unknown(of):
    """The same study with an additional bin of unknown words."""
    unknown = replace(of.word_bins[0], name="UNK", tokens=5)
    return replace(of, word_bins=(unknown, *of.word_bins))


def total_loss(of, label):
    row = next(row for row in of.rows if row.label == label)
    return math.log(row.perplexity[of.split].mean)
