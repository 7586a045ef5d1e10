"""Word-by-word scores for beam search (shallow fusion).

To callers, a `TextState` is immutable, so several texts can continue from it. The decoder reads the
last token of a state when the state is first continued, and caches the result in the state. It
never runs on a token that is not continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import torch
from torch import Tensor

from zipflm.data.vocabulary import UNKNOWN
from zipflm.language.engine import Engine, non_finite_error
from zipflm.language.text import Ids
from zipflm.model.decoders.constant_state import RowStates
from zipflm.model.kv_cache import KeyValueCache

_Pairs = tuple[Tensor, Ids]
"""Hidden states and the tokens they predicted, for cache memories."""


class TextState:
    """The state of a text. `TrainedModel.advance` returns new states and never changes this one."""

    __slots__ = ("_cache", "_hidden", "_past", "inputs", "origin")

    def __init__(
        self,
        origin: UUID,
        inputs: tuple[int, ...],
        cache: KeyValueCache | RowStates | None,
        past: _Pairs | None = None,
    ) -> None:
        self.origin: UUID = origin
        """Identifies the model, which has settings that a state depends on."""
        self.inputs: tuple[int, ...] = inputs
        """Ids that the model could read again: the last part of the text, or all of it."""
        # The cache, unless it is None, covers all inputs but the last. Once `_hidden` [D], which
        # predicts the next token, has been computed, the cache covers all inputs.
        self._cache = cache
        self._hidden: Tensor | None = None
        self._past = past  # for cache memories


@torch.inference_mode()
def start(engine: Engine, origin: UUID, prefix: Ids) -> TextState:
    """Return the state after a prefix, which can be empty."""
    state = TextState(origin, tuple(engine.inputs(prefix).tolist()), None)
    hidden = _read_all(engine, state)
    if engine.memories is not None:
        state._past = engine.pairs(prefix, hidden)
    return state


@torch.inference_mode()
def advance(
    engine: Engine, states: Sequence[TextState], tokens: Sequence[Sequence[int]]
) -> list[tuple[float, TextState]]:
    """Return log p in nats of the tokens that continue each state (at least one per state), and the
    states after them."""
    logprobs, after = np.zeros(len(states)), list(states)
    for position in range(max(map(len, tokens), default=0)):
        rows = [row for row, ids in enumerate(tokens) if position < len(ids)]
        next_ids = [tokens[row][position] for row in rows]
        hidden = _hidden(engine, [after[row] for row in rows])
        targets = torch.tensor(next_ids, device=engine.device)
        nll = engine.model.output.nll(hidden, targets)
        if engine.memories is not None:
            size = engine.model.output.edges[-1]
            memories = engine.memories.rows(size)
            memories.join([past for row in rows if (past := after[row]._past) is not None])
            nll = memories.lookup(hidden).nll(nll, targets.where(targets < size, UNKNOWN))
        logprobs[rows] -= nll.cpu().double().numpy()
        for row, id in zip(rows, next_ids, strict=True):
            after[row] = _after(engine, after[row], id)
    if not np.isfinite(logprobs).all():
        raise non_finite_error()
    return list(zip(logprobs.tolist(), after, strict=True))


def _after(engine: Engine, state: TextState, token: int) -> TextState:
    # Decoders with a state of constant size never read earlier inputs again.
    kept = () if engine.model.config.decoder.has_constant_state else state.inputs
    inputs, past = (*kept, token), state._past
    if past is not None:
        assert state._hidden is not None and engine.memories is not None
        reach = max(engine.memories.largest_window, 1)  # older tokens are not needed
        hidden = torch.cat([past[0], state._hidden[None]])[-reach:]
        past = hidden, np.append(past[1], token)[-reach:]
    if len(inputs) <= engine.longest:
        return TextState(state.origin, inputs, state._cache, past)
    return TextState(state.origin, inputs[-max(engine.blocks.context, 1) :], None, past)


def _hidden(engine: Engine, states: Sequence[TextState]) -> Tensor:
    """Return the hidden states [N, D] that predict the next token of each state."""
    unread = list({id(state): state for state in states if state._hidden is None}.values())
    for state in unread:
        if state._cache is None:
            _read_all(engine, state)
    if cached := [state for state in unread if state._hidden is None]:
        _read_last(engine, cached)
    return torch.stack([state._hidden for state in states if state._hidden is not None])


def _read_all(engine: Engine, state: TextState) -> Tensor:
    """Read all inputs of a state. Return the hidden states [T, D]."""
    words = torch.tensor([state.inputs], device=engine.device)
    state._cache = engine.model.new_cache(1, len(state.inputs))
    hidden: Tensor = engine.model(words, state._cache)[0]
    state._hidden = hidden[-1]
    return hidden


def _read_last(engine: Engine, states: Sequence[TextState]) -> None:
    cache: Any = engine.model.new_cache(0, 0)
    longest = max(len(state.inputs) for state in states)
    for state in states:
        cache.join(state._cache, longest)
    words = torch.tensor([[state.inputs[-1]] for state in states], device=engine.device)
    hidden = engine.model(words, cache)[:, -1]
    for row, state in enumerate(states):
        state._cache, state._hidden = cache.row(row), hidden[row]
