"""Batched text generation, one token per text per step.

Texts can join before any step and leave when they finish. Each text has its own random generator,
so its random numbers do not depend on the rest of the batch. When the cache of a Transformer has
`block` tokens, it is refilled with the last `context` tokens of the text.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zipflm.config.checks import Bound, Checked, NonNegativeFloat, NonNegativeInt
from zipflm.data.bpe import MAX_PIECES
from zipflm.data.detokenizer import Detokenizer
from zipflm.data.vocabulary import UNKNOWN
from zipflm.evaluation.documents import Likely
from zipflm.language.engine import Engine, non_finite_error
from zipflm.language.text import Ids, TextReader, last_line
from zipflm.memory.mixing import Mixture
from zipflm.model.kv_cache import KeyValueCache
from zipflm.model.recorded_step import RecordedStep
from zipflm.model.sampling import NUM_TRIES, Mix, draw, most_likely

SEED_LIMIT = 2**63
_SEED_STRIDE = 0x1E3779B97F4A7C15
"""Offset between seeds of texts in one request. It is odd, so all seeds differ."""
_RANDOM_STEPS = 64
"""Number of steps for which random numbers are drawn at a time."""

_Words = Annotated[int | None, Bound(lambda n: n is None or n >= 1, "must be at least 1")]
_Tokens = Annotated[int | None, Bound(lambda n: n is None or n >= 0, "must be 0 or more")]
_Seed = Annotated[
    int | None, Bound(lambda n: n is None or 0 <= n < SEED_LIMIT, "must be from 0 to 2**63 - 1")
]
_TopP = Annotated[float, Bound(lambda p: 0 < p <= 1, "must be above 0 and at most 1 (all words)")]
_Strings = Annotated[
    Sequence[str],
    Bound(lambda s: not isinstance(s, str) and all(s), "must be a list of non-empty strings"),
]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(Checked):
    """Sampling and stopping options."""

    max_words: _Words = 50
    """Maximum number of words, including line ends (None: no limit)."""
    max_tokens: _Tokens = None
    """Maximum number of tokens (None: no limit). The text can end in the middle of a word."""
    temperature: NonNegativeFloat = 1.0
    """0: always the most likely word."""
    top_k: NonNegativeInt = 0
    """0: all words."""
    top_p: _TopP = 1.0
    seed: _Seed = None
    lines: NonNegativeInt = 1
    """Stop after this many line ends (0: no limit)."""
    stop: _Strings = ()
    """Stop before the first occurrence of any of these strings."""
    forbid_unknown: bool = True
    """Never generate `<unk>`."""


class GeneratedWord(NamedTuple):
    """A generated word or line end."""

    word: str
    """As in the vocabulary, with its pieces joined; `</s>` for a line end."""
    logprob: float
    """In nats, before temperature, top-k and top-p."""
    text: str
    """The added text, including any leading space."""


class GeneratedToken(NamedTuple):
    """A generated id."""

    token: int
    logprob: float
    """In nats, before temperature, top-k and top-p."""
    top: Likely
    """The most likely ids at this position."""
    offset: int
    """Character offset in the generated text."""


@dataclass
class Delta:
    """Output since the previous call to `TextInProgress.release`."""

    text: str = ""
    words: list[GeneratedWord] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    finish_reason: str | None = None


class TextInProgress:
    """A text that is being generated.

    A word is released when it is complete. With stop strings, the last characters are held back,
    because a stop string could start there.
    """

    def __init__(
        self,
        prompt: Ids,
        detokenizer: Detokenizer,
        options: SamplingOptions,
        *,
        index: int = 0,
        top: int = 0,
    ) -> None:
        """`prompt` does not include the initial `</s>`. `index` is the index of this text in its
        request, and `top` the number of most likely ids to report per step."""
        self.prompt, self.options, self.top = prompt, options, top
        self.ids: list[int] = []
        self.text: str = ""
        self.finish_reason: str | None = "length" if options.max_tokens == 0 else None
        """`length`, `lines` or `stop`; None while running."""
        self.has_slid: bool = False
        """True if the text is longer than the block of a Transformer, which no longer sees its
        start."""
        self._detokenizer = detokenizer
        self._current_word: list[tuple[int, float, Likely]] = []
        # Not released yet:
        self._words: deque[GeneratedWord] = deque()
        self._tokens: list[GeneratedToken] = []
        self._num_words = self._released = self._words_end = 0
        self._longest_stop = max(map(len, options.stop), default=0)
        self._generator = torch.Generator()
        if options.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((int(options.seed) + index * _SEED_STRIDE) % SEED_LIMIT)
        self._random_numbers: list[list[float]] = []

    def cache_positions(self, engine: Engine) -> int:
        """Return the maximum number of cache positions this text needs."""
        options, tokens = self.options, engine.blocks.block
        if options.max_tokens is not None:
            tokens = options.max_tokens
        elif options.max_words is not None:
            tokens = options.max_words * (MAX_PIECES if engine.unit == "bpe" else 1)
        return min(engine.blocks.block, len(self.prompt) + 1 + tokens)

    def random(self) -> list[float]:
        """Return random numbers in [0, 1) for the next step."""
        if not self._random_numbers:
            shape = (_RANDOM_STEPS, NUM_TRIES)
            drawn = torch.rand(shape, generator=self._generator, dtype=torch.float64)
            self._random_numbers = drawn.tolist()[::-1]
        return self._random_numbers.pop()

    def add(self, token: int, logprob: float, top: Likely) -> None:
        options, detokenizer, start = self.options, self._detokenizer, len(self.text)
        self.ids.append(token)
        self._current_word.append((token, logprob, top))
        added = detokenizer.add(token)
        is_full = len(self.ids) == options.max_tokens
        if is_full:
            added += detokenizer.finish()
        if detokenizer.is_within_word:
            return
        self.text += added
        self._complete_word(added)
        if detokenizer.num_lines == options.lines > 0:
            self.finish_reason = "lines"
        elif is_full or self._num_words == options.max_words:
            self.finish_reason = "length"
        if options.stop:
            self._cut_at_stop(start)

    def _complete_word(self, text: str) -> None:
        offsets = self._detokenizer.offsets[-len(self._current_word) :]
        for drawn, offset in zip(self._current_word, offsets, strict=True):
            self._tokens.append(GeneratedToken(*drawn, offset))
        logprob = sum(logprob for _, logprob, _ in self._current_word)
        self._words.append(GeneratedWord(self._detokenizer.word, logprob, text))
        self._num_words += 1
        self._current_word = []

    def _cut_at_stop(self, start: int) -> None:
        """Cut the text at a stop string that ends after `start`."""
        first = max(0, start - self._longest_stop + 1)
        stops = self.options.stop
        offsets = [offset for stop in stops if (offset := self.text.find(stop, first)) >= 0]
        if not offsets:
            return
        end, self.finish_reason = len(self.text), "stop"
        self.text = self.text[: min(offsets)]
        while end > len(self.text):
            last = self._words.pop()
            end -= len(last.text)
            if end < len(self.text):
                self._words.append(last._replace(text=self.text[end:]))

    def release(self) -> Delta:
        """Return the final text and words that were not returned before, and all new tokens."""
        # Hold back text that could be the start of a stop string.
        held_back = 0 if self.finish_reason else max(self._longest_stop - 1, 0)
        end = max(len(self.text) - held_back, self._released)
        delta = Delta(self.text[self._released : end], [], self._tokens, self.finish_reason)
        self._released, self._tokens = end, []
        while self._words and self._words_end + len(self._words[0].text) <= end:
            delta.words.append(self._words.popleft())
            self._words_end += len(delta.words[-1].text)
        return delta


class TextDecoder:
    """Generates a batch of texts with one model."""

    def __init__(self, engine: Engine, reader: TextReader, *, use_cuda_graph: bool = False) -> None:
        """`use_cuda_graph`: run steps as a CUDA graph, which is faster if texts only join at the
        start."""
        self._engine = engine
        is_never = reader.vocabulary.is_never_generated[: reader.num_predicted]
        never = torch.from_numpy(np.flatnonzero(is_never)).to(engine.device)
        self._forbidden = {True: never, False: never[never != UNKNOWN]}
        self.rows: list[TextInProgress] = []
        self._cache: Any = engine.model.new_cache(0, 0)
        self._hidden_ND = torch.zeros(0)
        memories, output = engine.memories, engine.model.output
        self._memory = None if memories is None else memories.rows(output.edges[-1])
        self._mixture: Mixture | None = None
        is_transformer = isinstance(self._cache, KeyValueCache)
        self._use_cuda_graph = use_cuda_graph and is_transformer and engine.device.type == "cuda"
        self._recorded: RecordedStep | None = None

    def fitting(self, waiting: Iterable[tuple[TextInProgress, float]]) -> list[TextInProgress]:
        """Return the first of these texts, as long as they fit into the batch, which is padded to
        its longest text. Each comes with the number of texts for which it must leave room. An
        empty batch takes at least one text."""
        fitting: list[TextInProgress] = []
        longest = max((row.cache_positions(self._engine) for row in self.rows), default=0)
        for count, (row, room) in enumerate(waiting, len(self.rows) + 1):
            longest = max(longest, row.cache_positions(self._engine))
            if count > 1 and count + room > self._engine.batch_tokens // longest:
                break
            fitting.append(row)
        return fitting

    @torch.inference_mode()
    def join(self, rows: Sequence[TextInProgress]) -> None:
        """Add texts to the batch."""
        inputs = [self._engine.inputs(row.prompt) for row in rows]
        for row in rows:
            row.has_slid = len(row.prompt) + 1 > self._engine.longest
        texts, cache = self._read(inputs)
        hidden_ND = torch.stack([hidden_TD[-1] for hidden_TD in texts])
        if self._memory is not None:
            pairs = zip(rows, texts, strict=True)
            self._memory.join([self._engine.pairs(row.prompt, text) for row, text in pairs])
        capacity = max(row.cache_positions(self._engine) for row in [*self.rows, *rows])
        self._cache.join(cache, capacity)
        self._hidden_ND = torch.cat([self._hidden_ND, hidden_ND]) if self.rows else hidden_ND
        self.rows = [*self.rows, *rows]

    @torch.inference_mode()
    def leave(self, rows: Sequence[TextInProgress]) -> None:
        """Remove texts from the batch."""
        if not rows:
            return
        leaving = set(rows)
        dropped = {index for index, row in enumerate(self.rows) if row in leaving}
        order = self._cache.drop(dropped)
        self.rows = [self.rows[index] for index in order]
        if not self.rows:
            self._recorded = None  # frees the cache it refers to
        indices_N = self._tensor(order)
        self._hidden_ND = self._hidden_ND[indices_N]
        if self._memory is not None:
            self._memory.keep(order, indices_N)

    @torch.inference_mode()
    def step(self) -> None:
        """Generate one id per row, and remove finished rows."""
        if self._memory is not None:
            self._mixture = self._memory.lookup(self._hidden_ND)
        drawn, top = self._draw(), self._top()
        for row, (token, logprob), likely in zip(self.rows, drawn, top, strict=True):
            row.add(token, logprob, likely)
        if complete := [row for row in self.rows if row.finish_reason]:
            self.leave(complete)
        if self.rows:
            self._advance()

    def _tensor(self, indices: Sequence[int]) -> Tensor:
        return torch.tensor(indices, dtype=torch.int64, device=self._engine.device)

    def _mix(self, indices_M: Tensor) -> Mix | None:
        return None if self._mixture is None else self._mixture.for_rows(indices_M)

    def _draw(self) -> list[tuple[int, float]]:
        """Sample an id for each row, with its log-probability. Rows with equal options are
        batched."""
        groups: dict[tuple[float, int, float, bool], list[int]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            options = row.options
            key = (options.temperature, options.top_k, options.top_p, options.forbid_unknown)
            groups[key].append(index)
        results: dict[int, tuple[int, float]] = {}
        for (temperature, top_k, top_p, forbid_unknown), indices in groups.items():
            is_all, indices_M = len(indices) == len(self.rows), self._tensor(indices)
            ids, logprobs = draw(
                self._engine.model.output,
                self._hidden_ND if is_all else self._hidden_ND[indices_M],
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                forbidden=self._forbidden[forbid_unknown],
                uniform=[self.rows[index].random() for index in indices],
                mix=self._mix(indices_M),
            )
            drawn = zip(ids.tolist(), logprobs.tolist(), strict=True)
            results |= zip(indices, drawn, strict=True)
        if not all(math.isfinite(logprob) for _, logprob in results.values()):
            raise non_finite_error()
        return [results[index] for index in range(len(self.rows))]

    def _top(self) -> list[Likely]:
        top: list[Likely] = [[] for _ in self.rows]
        indices = [index for index, row in enumerate(self.rows) if row.top]
        if indices:
            k = max(self.rows[index].top for index in indices)
            indices_M = self._tensor(indices)
            hidden_MD, mix = self._hidden_ND[indices_M], self._mix(indices_M)
            values, ids = most_likely(self._engine.model.output, hidden_MD, k, mix)
            for index, *likely in zip(indices, ids.tolist(), values.tolist(), strict=True):
                top[index] = list(zip(*likely, strict=True))[: self.rows[index].top]
        return top

    def _advance(self) -> None:
        """Run the model on the last id of each row."""
        ids = [row.ids[-1] for row in self.rows]
        ids_N = self._tensor(ids)
        if self._memory is not None:
            self._memory.add(self._hidden_ND, ids, ids_N)
        full = self._cache.empty_full(self._engine.blocks.block)
        if len(full) < len(self.rows):
            self._hidden_ND = self._next(ids_N)
        if full:  # replaces the hidden states that `_next` computed for these rows
            self._slide(full)

    def _next(self, ids_N: Tensor) -> Tensor:
        model, cache = self._engine.model, self._cache
        if not self._use_cuda_graph:
            hidden_ND: Tensor = model(ids_N.unsqueeze(1), cache)[:, -1]
            return hidden_ND
        if self._recorded is None or not self._recorded.fits:
            self._recorded = RecordedStep(model, cache)
        return self._recorded(ids_N)

    def _slide(self, indices: list[int]) -> None:
        """Refill the caches of these rows with their last tokens."""
        context = max(self._engine.blocks.context, 1)
        rows = [self.rows[index] for index in indices]
        inputs = [np.append(row.prompt, row.ids)[-context:] for row in rows]
        texts, cache = self._read(inputs)
        hidden_ND = torch.stack([hidden_TD[-1] for hidden_TD in texts])
        self._cache.fill(indices, cache)
        self._hidden_ND = self._hidden_ND.index_copy(0, self._tensor(indices), hidden_ND)
        for row in rows:
            row.has_slid = True

    def _read(self, inputs: Sequence[Ids]) -> tuple[list[Tensor], Any]:
        """Return the hidden states and the cache of these inputs. Duplicate inputs are computed
        once."""
        distinct = {ids.tobytes(): ids for ids in inputs}
        index_of = {key: index for index, key in enumerate(distinct)}
        texts, cache = self._engine.model.read([*map(torch.from_numpy, distinct.values())])
        if len(distinct) < len(inputs):
            indices = [index_of[ids.tobytes()] for ids in inputs]
            texts, cache = [texts[index] for index in indices], cache.select(indices)
        return texts, cache


@dataclass(frozen=True)
class Generation:
    """One continuation of a prompt."""

    prompt: str
    continuation: str
    words: tuple[GeneratedWord, ...]
    has_slid: bool
    """True if the text is longer than the block of a Transformer, so later words did not see its
    start."""

    @property
    def text(self) -> str:
        return self.prompt + self.continuation

    @property
    def logprob(self) -> float:
        """Log-probability of the continuation in nats."""
        return sum(word.logprob for word in self.words)

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "continuation": self.continuation,
            "logprob": self.logprob,
            "words": [{"word": word.word, "logprob": word.logprob} for word in self.words],
            "has_slid": self.has_slid,
        }

    def __str__(self) -> str:
        return self.text


class TextGenerator:
    """Generates `num` continuations of a prompt in batches of at most `batch_tokens`."""

    def __init__(
        self, engine: Engine, reader: TextReader, prompt: str, options: SamplingOptions, num: int
    ) -> None:
        if num < 1:
            raise ValueError(f"num={num}: must be at least 1")
        self._prompt = prompt
        encoded = reader.text(prompt, ends=False)
        self.unknown_in_prompt: list[str] = [
            word
            for word, first_id in zip(encoded.words, encoded.ids[encoded.starts], strict=True)
            if first_id == UNKNOWN
        ]
        self._decoder = TextDecoder(engine, reader, use_cuda_graph=True)
        self._rows = []
        for index in range(num):
            detokenizer = reader.detokenizer(last_line(encoded), prompt[-1:].isspace())
            row = TextInProgress(encoded.ids, detokenizer, options, index=index)
            self._rows.append(row)

    @property
    def has_slid(self) -> bool:
        return any(row.has_slid for row in self._rows)

    def all(self) -> list[Generation]:
        """Generate all texts."""
        for _ in self._steps():
            pass
        return [
            Generation(self._prompt, row.text, tuple(row.release().words), row.has_slid)
            for row in self._rows
        ]

    def words(self) -> Iterator[GeneratedWord]:
        """Yield the words of the first text as they are generated."""
        for _ in self._steps():
            yield from self._rows[0].release().words

    def _steps(self) -> Iterator[None]:
        waiting = [row for row in self._rows if not row.finish_reason]
        while waiting or self._decoder.rows:
            if not self._decoder.rows:  # together, so that they read the prompt once
                joining = self._decoder.fitting((row, 0) for row in waiting)
                waiting = waiting[len(joining) :]
                self._decoder.join(joining)
            self._decoder.step()
            yield
