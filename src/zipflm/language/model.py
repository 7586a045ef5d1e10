"""`zipflm.load` and the model it returns.

    lm = zipflm.load("runs/adp-t")
    lm.score("the cat sat on the mat").perplexity
    lm.next_words("the cat sat on the", k=10)
    lm.generate("the cat", max_words=50, temperature=0.8, seed=1)
    logprob, state = lm.advance(lm.start(), "the")

Raw text is split into words in the same way as the training text of the run. Texts longer than
`block` tokens are scored in parts of `block - context` tokens, and the model also sees up to
`context` tokens before each part.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, overload
from uuid import uuid4

import torch
from torch import Tensor
from torch.nn import functional as F

from zipflm.config import Blocks
from zipflm.data.encoding import TextEncoder
from zipflm.data.vocabulary import END, SPECIALS, UNKNOWN, Vocabulary
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.language.decoding import (
    GeneratedWord,
    Generation,
    SamplingOptions,
    TextGenerator,
)
from zipflm.language.engine import Engine, scored_documents
from zipflm.language.incremental import TextState, advance, start
from zipflm.language.next_words import (
    LikelyWord,
    most_likely_words,
    require_k,
    require_no_nan,
)
from zipflm.language.text import EncodedText, ScoredText, TextReader, WordStatistics, nll_per_word
from zipflm.memory.specs import MemoryNames, memory_names, open_memories
from zipflm.messages import quoted, unquoted
from zipflm.model.language_model import LanguageModel
from zipflm.runs.checkpoint import is_checkpoint
from zipflm.runs.folder import Choice, parse_choice
from zipflm.runs.load import LoadedRun, UnseenWords, load_run
from zipflm.settings import read_value

# Maximum number of words outside the vocabulary that a model with `input.predicted_words` can read.
# Their spellings take about 100 MB.
_MAX_UNSEEN = 1 << 20

_DTYPES = ("float32", "bfloat16", "float16", "float64")


def load(
    path: str | PathLike[str],
    *,
    checkpoint: Choice | str | None = None,
    device: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    block: int | None = None,
    context: int | None = None,
    memory: MemoryNames = (),
) -> TrainedModel:
    """Load a trained model.

    `path` is a run folder or one of its checkpoints, `state-of-the-union` for the bundled model, a
    folder from `zipflm export`, or the id of an exported model on the Hugging Face Hub (the last
    two need the extra `hf`). `checkpoint` is `"newest"` (the default), `"best"` or a number of
    updates. `device` defaults to a GPU if one is available. `dtype` is the precision of weights and
    matrix products; log-probabilities are at least float32. `block` and `context` are in tokens and
    default to the settings of the run (`context` to half a block if the run has none or only
    `block` is given). `memory` is one or more memories whose predictions are mixed with those of
    the model: a cache of the last 2,000 tokens of the text (`cache:2000`), or the folder of a store
    from `zipflm memory build`.
    """
    choice = parse_choice(checkpoint)
    options = ScoringOptions(
        block=block, context=context, device=device, memory=memory_names(memory)
    )
    exported = _exported_path(path)
    if exported is None:
        run = load_run(path, choice)
    elif choice is not None:
        raise ValueError(f"checkpoint={choice}: {exported} has no checkpoints; leave it out")
    else:
        is_local = os.path.isdir(exported)
        exchange = import_exchange("" if is_local else f"{exported}: no such folder; ")
        run = exchange.load_exported(exported if is_local else exchange.download(exported))
    return TrainedModel(run, options, dtype=dtype)


def import_exchange(problem: str = "") -> ModuleType:
    """Import the exchange with transformers. Raises ValueError, starting with `problem`, if
    transformers is not installed."""
    try:
        from zipflm.interop.huggingface import exchange
    except ImportError as error:  # the message names the extra to install
        raise ValueError(f"{problem}{error}") from None
    return exchange


def _exported_path(path: str | PathLike[str]) -> str | None:
    """Return the path if it is an exported folder or looks like an id on the Hugging Face Hub, else
    None."""
    config = Path(path) / "config.json"
    if config.is_file() and not is_checkpoint(Path(path)):
        return os.fspath(path) if "model_type" in read_value(dict[str, Any], config) else None
    owner, slash, name = str(path).partition("/")
    # "runs/a" is a folder, not an id, if runs/ exists.
    is_id = bool(slash) and re.fullmatch(r"[\w.-]+", owner + name) and not os.path.exists(owner)
    return str(path) if is_id else None


class TrainedModel:
    """A trained model for scoring and generating text."""

    def __init__(
        self,
        run: LoadedRun,
        options: ScoringOptions | None = None,
        *,
        dtype: torch.dtype | str = torch.float32,
    ) -> None:
        self.run = run
        options = options or ScoringOptions()
        self.running_blocks: Blocks = options.blocks(run.config)
        """Blocks for `zipflm score --lines running`, as in `evaluate`."""
        self.engine: Engine = _engine(run, options, dtype)
        has_unpredicted_words = run.config.num_predicted < run.config.vocab_size
        self.unseen: UnseenWords | None = (
            UnseenWords(self.model, _MAX_UNSEEN) if has_unpredicted_words else None
        )
        self._origin = uuid4()
        encoder = TextEncoder(run.vocabulary, run.codes, run.splitting, self.unseen)
        self.reader: TextReader = TextReader(
            encoder, run.config.batches.unit, run.config.num_predicted
        )
        bands = run.config.output_bands
        self.statistics: WordStatistics = WordStatistics.of(
            run.vocabulary, () if bands is None else bands.cutoffs, run.config.num_predicted
        )

    def __repr__(self) -> str:
        return (
            f"<{self.run.config.name}, {self.run.checkpoint.name} of {self.run}, "
            f"{len(self.vocabulary):,} entries, on {self.device}>"
        )

    @property
    def model(self) -> LanguageModel:
        return self.engine.model

    @property
    def vocabulary(self) -> Vocabulary:
        """Words, or pieces of words, in the order of their ids."""
        return self.run.vocabulary

    @property
    def device(self) -> torch.device:
        return self.engine.device

    # --- Scoring ---

    # To a type checker, a string is also a sequence of strings; the first overload wins.
    @overload
    def score(self, text: str, *, prefix: str = "") -> ScoredText: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, text: Sequence[str], *, prefix: str = "") -> list[ScoredText]: ...

    def score(
        self, text: str | Sequence[str], *, prefix: str = ""
    ) -> ScoredText | list[ScoredText]:
        """Score every word of a text, or of each text in a list of independent texts.

        A text can have several lines; later lines see earlier ones. The model sees `</s>` before
        the text, and every line end, including the end of the text, is scored as `</s>`. With a
        `prefix`, each text continues the prefix, which is not scored.
        """
        if isinstance(text, str):
            return self.score([text], prefix=prefix)[0]
        before = self.reader.prefix(prefix)
        encoded = map(self._encode, text)
        return [
            ScoredText(
                document.text,
                nll_per_word(document.text, document.nll),
                self.statistics,
                self.engine.protocol(
                    document.text.ids, len(document.text.starts), skip=len(before)
                ),
            )
            for group in scored_documents(self.engine, encoded, before)
            for document in group
        ]

    def perplexity(self, text: str) -> float:
        """Return the perplexity per word, line ends included."""
        return self.score([text])[0].perplexity

    # --- Ids and embeddings ---

    def encode(self, text: str) -> list[int]:
        """Convert a text to ids. Line ends become `</s>`, but no `</s>` is added at the end of the
        text."""
        ids: list[int] = self.reader.prefix(text).tolist()
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Convert ids to text. `</s>` becomes a line end, and ids outside the vocabulary become
        `<unk>`."""
        detokenizer = self.reader.detokenizer(max_pieces=sys.maxsize)
        size = len(self.vocabulary)
        known = (id if 0 <= id < size else UNKNOWN for id in ids)
        return "".join(map(detokenizer.add, known)) + detokenizer.finish()

    @torch.inference_mode()
    def embedding(self, word: str) -> Tensor:
        """Return the input embedding [D] of a word, summed over its pieces.

        Raises ValueError for words that the model reads as `<unk>`.
        """
        ids = self.encode(word)
        if not ids or (UNKNOWN in ids and word != SPECIALS[UNKNOWN]):
            raise ValueError(f"word={quoted(word)}: not in the vocabulary of {self.run}")
        vectors: Tensor = self.model.input(torch.tensor(ids, device=self.device))
        return vectors.float().sum(0)

    @torch.inference_mode()
    def similar(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """Return the `k` words of the vocabulary whose input embeddings are most similar to that of
        `word`, with their cosine similarities.

        With a subword model, the result only includes words that are a single piece.
        """
        require_k(k, self.reader)
        vector, parts = self.embedding(word), []
        size, chunk = len(self.vocabulary), 8192
        for first in range(0, size, chunk):
            ids = torch.arange(first, min(first + chunk, size), device=self.device)
            parts.append(F.cosine_similarity(self.model.input(ids).float(), vector, dim=-1))
        cosines = torch.cat(parts).cpu()
        cosines[torch.from_numpy(self.vocabulary.is_never_generated)] = -torch.inf
        cosines[END] = -torch.inf
        nearest: list[tuple[str, float]] = []
        for id in cosines.argsort(descending=True).tolist():
            name = self.vocabulary.words[id]
            if len(nearest) == k or cosines[id] == -torch.inf:
                break
            if name != word and self.reader.is_encoding_of(name, (id,)):
                nearest.append((name, float(cosines[id])))
        return nearest

    # --- Word-by-word scoring ---

    def start(self, prefix: str = "") -> TextState:
        """Return the state of an empty text, or the state after `prefix`."""
        return start(self.engine, self._origin, self.reader.prefix(prefix))

    def advance(self, state: TextState, word: str) -> tuple[float, TextState]:
        """Return log p(word | state) in nats, and the state after the word; "\\n" ends a line.

        A state does not change, so several words can continue the same state. The model reads
        the last token of a word only when the state after it is continued. Scores equal those of
        `score` as long as the text fits in one block. After that, a Transformer keeps only the
        last `context` tokens, as in `generate`; other decoders keep their state.
        """
        return self.advance_many([state], [word])[0]

    def advance_many(
        self, states: Sequence[TextState], words: Sequence[str]
    ) -> list[tuple[float, TextState]]:
        """Advance several states in one batch, one word per state, for example in beam search."""
        if len(states) != len(words):
            raise ValueError(
                f"{len(words)} words for {len(states)} states; give one word per state"
            )
        if any(state.origin != self._origin for state in states):
            raise ValueError("states: of another model; continue states from `start` of this model")
        ids = [self.encode(word) for word in words]
        for word, word_ids in zip(words, ids, strict=True):
            if not word_ids:
                raise ValueError(f"word={quoted(word)}: empty; give a word")
        return advance(self.engine, states, ids)

    def _encode(self, text: str) -> EncodedText:
        encoded = self.reader.text(text)
        if len(encoded.words) == 1 and not text.endswith(("\n", "\r")):
            raise ValueError(f"text={quoted(text)}: empty; give at least one word or line end")
        return encoded

    # --- Next words ---

    @overload
    def next_words(self, prefix: str, k: int = 10) -> list[LikelyWord]: ...  # type: ignore[overload-overlap]

    @overload
    def next_words(self, prefix: Sequence[str], k: int = 10) -> list[list[LikelyWord]]: ...

    def next_words(
        self, prefix: str | Sequence[str], k: int = 10
    ) -> list[LikelyWord] | list[list[LikelyWord]]:
        """Return the `k` most likely words after a prefix, or after each prefix in a list.

        The most likely word comes first; `</s>` and `<unk>` are included. The result of a subword
        model includes words of several pieces and is exact.
        """
        if isinstance(prefix, str):
            return self.next_words([prefix], k)[0]
        ids = [self.reader.prefix(text) for text in prefix]
        return most_likely_words(self.engine, self.reader, ids, k)

    @torch.inference_mode()
    def log_probs(self, prefixes: Sequence[str]) -> Tensor:
        """Return log p after each prefix, [N, V], for every vocabulary entry that the model
        predicts."""
        if isinstance(prefixes, str):
            raise ValueError("prefixes: must be a list, not a string")
        if not prefixes:
            return torch.zeros(0, self.model.output.edges[-1], device=self.device)
        ids = [self.reader.prefix(prefix) for prefix in prefixes]
        hidden, mixture = self.engine.hidden_after(ids)
        log_probs = self.model.output.log_probs(hidden)
        return require_no_nan(log_probs if mixture is None else mixture.log_probs(log_probs))

    # --- Generation ---

    def generate(
        self,
        prompt: str = "",
        *,
        max_words: int = 50,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        num: int = 1,
        lines: int = 1,
        stop: Sequence[str] = (),
        forbid_unknown: bool = True,
        max_new_tokens: int | None = None,
        num_return_sequences: int | None = None,
    ) -> list[Generation]:
        """Generate `num` continuations of a prompt.

        Words are sampled at `temperature` (0: always the most likely word) from the `top_k` most
        likely words (0: all), restricted to the fewest that make up `top_p` of their probability.
        `<unk>` is never generated unless `forbid_unknown` is False. A text ends after `lines` line
        ends (0: no limit), after `max_words` words including line ends, or before a string in
        `stop`. The same arguments and seed give the same texts. Log-probabilities are those of the
        model, before temperature, top-k and top-p. For users of Hugging Face transformers,
        `max_new_tokens` is another name for `max_words` (it counts words, not pieces), and
        `num_return_sequences` for `num`.
        """
        sampling = SamplingOptions(
            max_words=max_words if max_new_tokens is None else max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            lines=lines,
            stop=stop,
            forbid_unknown=forbid_unknown,
        )
        count = num if num_return_sequences is None else num_return_sequences
        return TextGenerator(self.engine, self.reader, prompt, sampling, count).all()

    def stream(self, prompt: str = "", **options: Any) -> Iterator[GeneratedWord]:
        """Yield the words of one continuation as they are generated. Takes the options of
        `generate`, except `num` and `num_return_sequences`."""
        if (limit := options.pop("max_new_tokens", None)) is not None:
            options["max_words"] = limit
        sampling = SamplingOptions(**options)
        yield from TextGenerator(self.engine, self.reader, prompt, sampling, 1).words()


def _engine(run: LoadedRun, options: ScoringOptions, dtype: torch.dtype | str) -> Engine:
    dtype_name = str(dtype).removeprefix("torch.")
    if dtype_name not in _DTYPES:
        raise ValueError(f"dtype={unquoted(dtype_name)}: choose from {', '.join(_DTYPES)}")
    torch_dtype: torch.dtype = getattr(torch, dtype_name)
    chosen = replace(options, break_mode="none").resolved(run.config)
    blocks = chosen.blocks
    if options.context is None and not blocks.context:
        # Give every part of a long text some context.
        blocks = replace(blocks, context=blocks.block // 2)
    model = run.model.to(device=chosen.device, dtype=torch_dtype).eval()
    _require_finite(run, model)
    return Engine(
        model=model,
        device=torch.device(chosen.device),
        dtype=torch_dtype,
        blocks=blocks,
        batch_tokens=chosen.batch_tokens,
        unit=run.config.batches.unit,
        memories=open_memories(options.memory, run, chosen.device),
    )


def _require_finite(run: LoadedRun, model: LanguageModel) -> None:
    """Raise ValueError for non-finite weights: a NaN would sort as the most likely word."""
    for name, weights in model.state_dict().items():
        if not torch.isfinite(weights).all():
            raise ValueError(
                f"{run.checkpoint.path}: {name} contains NaN or infinity; use an earlier "
                "checkpoint, or dtype=float32 if you loaded it in lower precision"
            )
