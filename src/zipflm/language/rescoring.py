"""Rescoring of n-best lists.

The model reads the common prefix of an utterance's hypotheses once. Utterances with a short common
prefix, and hypotheses longer than the block, are scored like other texts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zipflm.data.text import shown
from zipflm.data.vocabulary import END, PAD
from zipflm.evaluation.progress import progress_label, report_progress
from zipflm.language.engine import Engine, non_finite_error
from zipflm.language.files import Writable, destination
from zipflm.language.nbest import TOTAL, WORDS, Entry, NBest, format_score
from zipflm.language.text import Ids
from zipflm.messages import quoted, unquoted
from zipflm.model.language_model import LanguageModel

# Minimum fraction of positions saved. Below it, batching an utterance with others is faster.
_MIN_SAVED = 0.25

_NO_TARGET = -1


@dataclass(frozen=True)
class _Utterance:
    """The hypotheses of an utterance that fit into a block."""

    indices: list[int]
    """Indices among all hypotheses."""
    inputs: list[Ids]
    """`</s>` and the ids of each hypothesis."""
    shared: int
    """Length of the common prefix."""

    @property
    def longest(self) -> int:
        return max(map(len, self.inputs))

    @property
    def is_worth_sharing(self) -> bool:
        saved = (len(self.inputs) - 1) * self.shared
        return 0 < saved >= _MIN_SAVED * sum(map(len, self.inputs))


class PrefixSharingScorer:
    """A `HypothesisScorer` that reads common prefixes once."""

    def __init__(self, engine: Engine, encode: Callable[[str], Ids]) -> None:
        """`encode` returns the ids of a text, including the final `</s>`."""
        self._engine, self._encode = engine, encode

    def log_probs_of(self, utterances: Sequence[Sequence[str]]) -> list[list[float]]:
        documents = [self._encode(text) for texts in utterances for text in texts]
        log_probs = np.zeros(len(documents))
        unshared = set(range(len(documents)))
        by_shared = defaultdict(list)
        first = 0
        for texts in utterances:
            utterance = self._utterance(documents, range(first, first + len(texts)))
            first += len(texts)
            # Memories need all words of each text in order.
            if utterance.is_worth_sharing and self._engine.memories is None:
                by_shared[utterance.shared].append(utterance)
                unshared -= set(utterance.indices)
        for shared in sorted(by_shared):
            for batch in self._batches(by_shared[shared]):
                indices = [index for utterance in batch for index in utterance.indices]
                log_probs[indices] = self._shared(documents, batch)
        rest = sorted(unshared)
        for index, nll in zip(rest, self._engine.nll([documents[i] for i in rest]), strict=True):
            log_probs[index] = -nll.sum(dtype=np.float64)
        values = iter(log_probs.tolist())
        return [[next(values) for _ in texts] for texts in utterances]

    def _utterance(self, documents: Sequence[Ids], indices: Sequence[int]) -> _Utterance:
        block = self._engine.blocks.block
        fitting = [index for index in indices if len(documents[index]) <= block]
        inputs = [np.append(END, documents[index][:-1]) for index in fitting]
        return _Utterance(fitting, inputs, _common_length(inputs))

    def _batches(self, utterances: list[_Utterance]) -> Iterator[list[_Utterance]]:
        batch: list[_Utterance] = []
        for utterance in sorted(utterances, key=lambda utterance: utterance.longest):
            # The last utterance is the longest and determines the cache size of the batch.
            if batch and (len(batch) + 1) * utterance.longest > self._engine.batch_tokens:
                yield batch
                batch = []
            batch.append(utterance)
        if batch:
            yield batch

    @torch.inference_mode()
    def _shared(self, documents: Sequence[Ids], batch: list[_Utterance]) -> NDArray[np.float64]:
        """Return log p of the hypotheses of utterances with common prefixes of the same length."""
        model, device = self._engine.model, self._engine.device
        shared, longest = batch[0].shared, max(utterance.longest for utterance in batch)
        prefixes = [utterance.inputs[0][:shared] for utterance in batch]
        inputs_UP = torch.from_numpy(np.stack(prefixes))
        inputs_UP = inputs_UP.to(device)
        cache = model.new_cache(len(batch), longest)
        hidden_UPD = model(inputs_UP, cache)
        # The loss of the prefix. Its last hidden state predicts the first word after it.
        nll_U = _sums(model, hidden_UPD[:, :-1], inputs_UP[:, 1:])
        num_hypotheses = [len(utterance.inputs) for utterance in batch]
        owners = np.repeat(np.arange(len(batch)), num_hypotheses)
        indices = [index for utterance in batch for index in utterance.indices]
        rests = [documents[index][shared - 1 :] for index in indices]
        order = np.argsort([len(rest) for rest in rests], kind="stable")
        nll_N = torch.zeros(len(indices), dtype=torch.float64, device=device)
        batch_rows = max(self._engine.batch_tokens // longest, 1)
        for start in range(0, len(order), batch_rows):
            rows = order[start : start + batch_rows]
            owners_N = torch.from_numpy(owners[rows]).to(device)
            targets_NW = _padded([rests[row] for row in rows], _NO_TARGET).to(device)
            hidden_NWD = hidden_UPD[owners_N, -1:]
            if targets_NW.shape[1] > 1:
                words_NW = _padded([rests[row][:-1] for row in rows], PAD).to(device)
                later_NWD = model(words_NW, cache.select(owners[rows].tolist()))
                hidden_NWD = torch.cat([hidden_NWD, later_NWD], dim=1)
            at = torch.from_numpy(rows).to(device)
            nll_N[at] = nll_U[owners_N] + _sums(model, hidden_NWD, targets_NW)
        log_probs: NDArray[np.float64] = -nll_N.cpu().numpy()
        if not np.isfinite(log_probs).all():
            raise non_finite_error()
        return log_probs


def _sums(model: LanguageModel, hidden_NWD: Tensor, targets_NW: Tensor) -> Tensor:
    """Return -log p [N] in float64, summed over the targets of each row that are not padding."""
    scored_NW = targets_NW != _NO_TARGET
    nll = model.output.nll(hidden_NWD[scored_NW], targets_NW[scored_NW])
    sums_N = torch.zeros(len(targets_NW), dtype=torch.float64, device=nll.device)
    rows_NW = torch.arange(len(targets_NW), device=nll.device)[:, None].expand_as(targets_NW)
    return sums_N.index_add(0, rows_NW[scored_NW], nll.double())


def _padded(rows: Sequence[Ids], padding: int) -> Tensor:
    tensors = [torch.from_numpy(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=padding)


def _common_length(rows: Sequence[Ids]) -> int:
    """Return the length of the common prefix."""
    if not rows:
        return 0
    length = min(map(len, rows))
    table = np.stack([row[:length] for row in rows])
    differs = (table != table[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else length


_HYPOTHESES_PER_GROUP = 1_024


class HypothesisScorer(Protocol):
    """A language model for rescoring."""

    def log_probs_of(self, utterances: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return log p in nats of every text of every utterance, including `</s>`.

        The texts of an utterance are distinct and can be empty.
        """
        ...


@dataclass(frozen=True, slots=True)
class ScoredEntry:
    """An entry with the score of the language model."""

    entry: Entry
    lm: float

    def value(self, name: str, lm: str) -> float:
        """Return a score by name. `lm` is the name of the model's score."""
        if name == lm:
            return self.lm
        return float(len(self.entry.words)) if name == WORDS else self.entry.scores[name]

    def total(self, weights: Mapping[str, float], lm: str) -> float:
        """Return the weighted sum, computed in the order of the weights, as in tuning."""
        total = 0.0
        for name, weight in weights.items():
            if weight:
                total += weight * self.value(name, lm)
        return total


def scored(
    utterances: Iterable[list[Entry]], scorer: HypothesisScorer, total: int | None = None
) -> Iterator[list[ScoredEntry]]:
    """Add the model's scores to utterances. `total` is the number of hypotheses, for progress."""
    for group in _groups(utterances):
        yield from _scored_group(group, scorer)
        with progress_label("rescoring"):
            report_progress(sum(map(len, group)), total)


def _groups(utterances: Iterable[list[Entry]]) -> Iterator[list[list[Entry]]]:
    group: list[list[Entry]] = []
    for entries in utterances:
        group.append(entries)
        if sum(map(len, group)) >= _HYPOTHESES_PER_GROUP:
            yield group
            group = []
    if group:
        yield group


def _scored_group(
    group: list[list[Entry]], scorer: HypothesisScorer
) -> Iterator[list[ScoredEntry]]:
    # Score each text once: some hypotheses only differ in alignment or times.
    texts = [list(dict.fromkeys(" ".join(entry.words) for entry in entries)) for entries in group]
    scores = scorer.log_probs_of(texts)
    for entries, distinct, log_probs in zip(group, texts, scores, strict=True):
        by_text = dict(zip(distinct, log_probs, strict=True))
        yield [ScoredEntry(entry, by_text[" ".join(entry.words)]) for entry in entries]


def ranked(
    utterance: list[ScoredEntry], weights: Mapping[str, float], lm: str
) -> list[tuple[ScoredEntry, float]]:
    """Return the hypotheses with their totals, best first. Ties keep the order of the list."""
    totals = [(entry, entry.total(weights, lm)) for entry in utterance]
    return sorted(totals, key=lambda pair: -pair[1])


@dataclass(frozen=True, kw_only=True)
class Results:
    """Output options."""

    out: str | None = None
    """Output file; stdout by default."""
    scores_out: str | None = None
    """For Kaldi: a file of lines `hypothesis lm total`, in the order of the lists."""
    one_best: bool = False
    """Write only the best hypothesis of every utterance."""


@dataclass(frozen=True)
class OpenLists:
    """An n-best file with a weight for every score."""

    nbest: NBest
    weights: Mapping[str, float]
    lm: str
    """Name of the model's score."""
    utterances: Iterator[list[Entry]]
    """Raises ValueError with the line number if an entry lacks a weighted score."""


def open_lists(nbest: NBest, given: Mapping[str, float], lm: str = "lm") -> OpenLists:
    """Read the first utterance, and complete the `given` weights for its scores."""
    rest = nbest.utterances()
    first = next(rest)
    weights = complete_weights(given, first[0].scores, lm)
    needed = [name for name, weight in weights.items() if weight and name not in (lm, WORDS)]
    utterances = (_check_scores(nbest, entries, needed) for entries in chain([first], rest))
    return OpenLists(nbest, weights, lm, utterances)


def _check_scores(nbest: NBest, entries: list[Entry], needed: Sequence[str]) -> list[Entry]:
    for entry in entries:
        for name in needed:
            if name not in entry.scores:
                raise ValueError(
                    f"{shown(nbest.name)}: line {entry.line}: has no score {unquoted(name)}; add "
                    "it, or set its weight to 0"
                )
    return entries


def rescore(lists: OpenLists, scorer: HypothesisScorer, results: Results) -> int:
    """Score, sort and write lists. Return the number of utterances."""
    utterances = scored(lists.utterances, scorer, lists.nbest.num_lines())
    return write(lists.nbest, utterances, lists.weights, lm=lists.lm, results=results)


def write(
    nbest: NBest,
    utterances: Iterable[list[ScoredEntry]],
    weights: Mapping[str, float],
    *,
    lm: str,
    results: Results,
) -> int:
    """Write utterances, best hypothesis first. Return their number."""
    count = 0
    with ExitStack() as files:
        out = files.enter_context(destination(results.out))
        scores_out: Writable | None = None
        if results.scores_out is not None:
            scores_out = files.enter_context(destination(results.scores_out))
        if not results.one_best and (header := nbest.format.header((lm, TOTAL))):
            out.write(f"{header}\n")
        for utterance in utterances:
            count += 1
            order = ranked(utterance, weights, lm)
            if results.one_best:
                out.write(f"{nbest.format.best(order[0][0].entry)}\n")
            else:
                for item, total in order:
                    new = {lm: item.lm, TOTAL: total}
                    out.write(f"{nbest.format.line(item.entry, new)}\n")
            if scores_out is not None:
                for item, total in order:
                    numbers = f"{format_score(item.lm)} {format_score(total)}"
                    scores_out.write(f"{item.entry.source} {numbers}\n")
    return count


# --- Weights, e.g. lm=0.7,words=-0.2 ---


def parse_weights(text: str) -> dict[str, float]:
    """Parse the value of `--weights`.

    >>> parse_weights("lm=0.7,words=-0.2")
    {'lm': 0.7, 'words': -0.2}
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        name = name.strip()
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not (equals and name and math.isfinite(value)):
            raise ValueError(
                f"--weights: {quoted(part)} is not NAME=NUMBER, e.g. lm=0.7,words=-0.2"
            )
        if name in weights:
            raise ValueError(f"--weights: {unquoted(name)} is repeated; use it once")
        weights[name] = value
    return weights


def format_weights(weights: Mapping[str, float]) -> str:
    """Format weights for `parse_weights`.

    >>> format_weights({"lm": 0.7, "words": -2.0})
    'lm=0.7,words=-2'
    """
    return ",".join(f"{name}={value:.12g}" for name, value in weights.items())


def complete_weights(given: Mapping[str, float], names: Iterable[str], lm: str) -> dict[str, float]:
    """Add default weights for the scores of a list, the model's score `lm` and the words.

    Raises ValueError for unknown names, and if the total could already include a weighted score.
    """
    names = list(names)
    if lm in names:
        raise ValueError(
            f"--name {unquoted(lm)}: the list already has a score with this name; choose another"
        )
    known = [*names, lm, WORDS]
    for name in given:
        if name not in known:
            raise ValueError(
                f"--weights, --tune: no score {unquoted(name)}; choose from "
                f"{', '.join(map(unquoted, known))}"
            )
    parts = [name for name in given if name in names and name != TOTAL]
    if TOTAL in names and TOTAL not in given and parts:
        raise ValueError(
            f"--weights: the total of the list may already include {unquoted(parts[0])}; also set "
            f"{TOTAL}=0 to ignore the total, or {TOTAL}=1 to add to it"
        )
    defaults = {name: float(TOTAL not in names or name == TOTAL) for name in names}
    return defaults | {lm: 1.0, WORDS: 0.0} | dict(given)


def check_name(lm: str) -> None:
    """Raise ValueError if the model's score cannot have this name."""
    if lm in (WORDS, TOTAL, "id", "text") or not lm.isidentifier():
        raise ValueError(
            f"--name {unquoted(lm)}: must consist of letters, digits and _, and not be "
            f"{WORDS}, {TOTAL}, id or text"
        )
