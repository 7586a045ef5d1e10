"""Scores of a text as it grows, for decoders that keep many hypotheses (shallow fusion).

A `TextState` holds what the model remembers of a text and never changes, so that any number of
texts can continue from it. The decoder reads the last token of a state when it is first continued:
a word that nothing follows costs only its score.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from zipflm.data.vocabulary import UNKNOWN
from zipflm.language.engine import Engine, diverged
from zipflm.language.text import Ids
from zipflm.model.kv_cache import KeyValueCache, RaggedCache


class TextState:
    """A text so far. Immutable: `TrainedModel.advance` returns new ones."""

    __slots__ = ("_before", "_cache", "_hidden", "_pairs", "inputs")

    def __init__(
        self,
        inputs: tuple[int, ...],
        cache: KeyValueCache | None,
        before: TextState | None = None,
    ) -> None:
        self.inputs: tuple[int, ...] = inputs
        """Ids that the model sees: `</s>` and the text, or its end."""
        # Of all inputs but the last; with the last, once `_hidden` [D] is there, which predicts
        # the next token.
        self._cache = cache
        self._hidden: Tensor | None = None
        # For memories: the state before the last token; of the first one, the prefix.
        self._before = before
        self._pairs: tuple[Tensor, Ids] | None = None

    def __repr__(self) -> str:
        return f"TextState({len(self.inputs)} tokens)"


def start(engine: Engine, prefix: Ids) -> TextState:
    """The state of a text after a prefix, which may be empty."""
    return TextState(tuple(engine.inputs(prefix).tolist()), None)


@torch.inference_mode()
def advance(
    engine: Engine, states: Sequence[TextState], tokens: Sequence[Sequence[int]]
) -> list[tuple[float, TextState]]:
    """log p of each state's next tokens, at least one, and the states after them."""
    logprobs, after = np.zeros(len(states)), list(states)
    for place in range(max(map(len, tokens), default=0)):
        rows = [row for row, ids in enumerate(tokens) if place < len(ids)]
        next_ids = [tokens[row][place] for row in rows]
        hidden = _hidden(engine, [after[row] for row in rows])
        targets = torch.tensor(next_ids, device=engine.device)
        nll = engine.model.output.nll(hidden, targets)
        if engine.memories is not None:
            size = engine.model.output.edges[-1]
            remembered = engine.memories.rows(size)
            remembered.join([_remembered(after[row]) for row in rows])
            nll = remembered.look(hidden).nll(nll, targets.where(targets < size, UNKNOWN))
        logprobs[rows] -= nll.double().cpu().numpy()
        for row, id in zip(rows, next_ids, strict=True):
            after[row] = _after(engine, after[row], id)
    if not np.isfinite(logprobs).all():
        raise diverged()
    return list(zip(logprobs.tolist(), after, strict=True))


def _after(engine: Engine, state: TextState, token: int) -> TextState:
    inputs = (*state.inputs, token)
    before = None if engine.memories is None else state
    if len(inputs) <= engine.blocks.block:
        return TextState(inputs, state._cache, before)
    return TextState(inputs[-max(engine.blocks.context, 1) :], None, before)


def _remembered(state: TextState) -> tuple[Tensor, Ids]:
    """All tokens of a text with the vectors that predicted them."""
    vectors, ids = [], []
    while state._before is not None:
        ids.append(state.inputs[-1])
        state = state._before
        assert state._hidden is not None
        vectors.append(state._hidden)
    assert state._pairs is not None
    hidden, prefix = state._pairs
    if not vectors:
        return hidden, prefix
    return torch.cat([hidden, torch.stack(vectors[::-1])]), np.append(prefix, ids[::-1])


def _hidden(engine: Engine, states: Sequence[TextState]) -> Tensor:
    """The vectors [N, D] from which the next token of each state is predicted."""
    waiting = list({id(state): state for state in states if state._hidden is None}.values())
    for state in waiting:
        if state._cache is None:
            _read_all(engine, state)
    if begun := [state for state in waiting if state._hidden is None]:
        _read_last(engine, begun)
    return torch.stack([state._hidden for state in states if state._hidden is not None])


def _read_all(engine: Engine, state: TextState) -> None:
    words = torch.tensor([state.inputs], device=engine.device)
    state._cache = engine.model.new_cache(1, len(state.inputs))
    hidden = engine.model(words, state._cache)[0]
    state._hidden = hidden[-1]
    state._pairs = hidden[:-1], np.array(state.inputs[1:], dtype=np.int64)


def _read_last(engine: Engine, states: Sequence[TextState]) -> None:
    together = RaggedCache()
    for state in states:
        assert state._cache is not None
        together.join(state._cache, [state._cache.length], len(state.inputs))
    words = torch.tensor([[state.inputs[-1]] for state in states], device=engine.device)
    hidden = engine.model(words, together)[:, -1]
    for row, state in enumerate(states):
        state._cache, state._hidden = together.row(row), hidden[row]
