"""The language model: input layer, decoder and output layer, built and tied from a config.

Shapes: B sequences, T positions, D model width, V words, C bytes of a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from zipflm.config import (
    AdaptiveInput,
    AdaptiveOutput,
    CharacterInput,
    FixedInput,
    FullOutput,
    ModelConfig,
    Tie,
)
from zipflm.kernels import Impl
from zipflm.model.adaptive_softmax import AdaptiveSoftmax
from zipflm.model.decoders import Decoder, build_decoder
from zipflm.model.decoders.constant_state import RowStates
from zipflm.model.inputs import (
    PADDING,
    UNKNOWN,
    AdaptiveEmbedding,
    CharacterEmbedding,
    FixedEmbedding,
    UniqueTokens,
)
from zipflm.model.kv_cache import KeyValueCache, Past
from zipflm.model.outputs import FullSoftmax

InputLayer = FixedEmbedding | AdaptiveEmbedding | CharacterEmbedding


class LanguageModel(nn.Module):
    """p(next word | words so far), with any of the paper's input and output layers.

    A word here is an entry of the vocabulary; in a subword model, it can be a piece of a word.

    >>> from zipflm import preset
    >>> model = LanguageModel(preset("tiny", "ADP-T"))
    >>> words = torch.tensor([[2, 17, 250, 3999]])
    >>> model.nll(words[:, :-1], words[:, 1:]).shape
    torch.Size([1, 3])
    """

    def __init__(
        self, config: ModelConfig, spellings: Tensor | None = None, *, impl: Impl = "auto"
    ):
        """`spellings` [V, max_bytes] is for character input only: the bytes of each word,
        increased by 1 and padded with 0 (`zipflm.data.encoding` builds it from a vocabulary)."""
        super().__init__()
        self.config = config
        self.input: InputLayer = _input_layer(config, spellings)
        self.decoder: Decoder = build_decoder(config.decoder)
        self.output: FullSoftmax | AdaptiveSoftmax = _output_layer(config, self.input, impl)
        if config.num_predicted < config.vocab_size:
            self.output.unknown_id = UNKNOWN

    def forward(
        self, words_BT: Tensor | UniqueTokens, cache: Past | RowStates | None = None
    ) -> Tensor:
        """Return hidden vectors [B, T, D], from which the output layer predicts each next word.

        With a cache, the words follow the cached ones and are added to the cache. Padding on the
        right is harmless for Transformers, but becomes part of the state of other decoders.
        """
        hidden_BTD: Tensor
        if isinstance(cache, RowStates):
            hidden_BTD, cache.tensors = self.decoder(self.input(words_BT), cache.tensors)
        else:
            hidden_BTD, _ = self.decoder(self.input(words_BT), cache)
        return hidden_BTD

    def new_cache(self, rows: int, capacity: int) -> KeyValueCache | RowStates:
        """Create an empty cache for `rows` sequences of up to `capacity` words, on the model's
        device. Its dtype follows autocast, so create it in the same autocast context as the calls
        that use it. Rows can be added and removed later. Decoders other than Transformers ignore
        `capacity`."""
        return self.decoder.new_state(rows, capacity)

    def read(self, texts: Sequence[Tensor]) -> tuple[list[Tensor], KeyValueCache | RowStates]:
        """Return the hidden vectors [T, D] of each text, and a cache of all texts.

        Texts are on the CPU and can have different lengths.
        """
        device = next(self.parameters()).device
        if not self.config.decoder.has_constant_state:
            words_NT = pad_sequence(list(texts), batch_first=True, padding_value=PADDING)
            cache = self.new_cache(*words_NT.shape)
            hidden_NTD: Tensor = self(words_NT.to(device), cache)
            assert isinstance(cache, KeyValueCache)
            cache.lengths = [len(text) for text in texts]
            return [h[: len(text)] for h, text in zip(hidden_NTD, texts, strict=True)], cache
        # Padding would become part of the state, so texts are grouped by length.
        order, hidden, states = list[int](), list[Tensor](), RowStates()
        for length in sorted({len(text) for text in texts}):
            group = [index for index, text in enumerate(texts) if len(text) == length]
            group_states = self.new_cache(len(group), length)
            words_NT = torch.stack([texts[index] for index in group]).to(device)
            hidden += self(words_NT, group_states)
            assert isinstance(group_states, RowStates)
            states.join(group_states)
            order += group
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return [hidden[index] for index in inverse], states.select(inverse)

    def nll(
        self,
        words_BT: Tensor | UniqueTokens,
        targets_BT: Tensor,
        scored_BT: Tensor | None = None,
    ) -> Tensor:
        """Return -log p(target | words so far) in nats, [B, T]; 0 where `scored_BT` is False."""
        return self.output.nll(self(words_BT), targets_BT, scored_BT)

    def nll_sum(
        self,
        words_BT: Tensor | UniqueTokens,
        targets_BT: Tensor,
        scored_BT: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of `nll`, a scalar with a cheaper gradient. Use it for training."""
        return self.output.nll_sum(self(words_BT), targets_BT, scored_BT)

    def log_probs(self, words_BT: Tensor) -> Tensor:
        """Return log p of every next word, [B, T, V]. Unlike `nll`, this keeps V values per
        position in memory."""
        return self.output.log_probs(self(words_BT))


def _input_layer(config: ModelConfig, spellings: Tensor | None) -> InputLayer:
    vocab_size, width = config.vocab_size, config.decoder.dim
    match config.input:
        case FixedInput() as fixed:
            padding_idx = _padding_idx(vocab_size)
            return FixedEmbedding(vocab_size, fixed.dim, width, padding_idx, sparse=fixed.sparse)
        case AdaptiveInput() as adaptive:
            bands = adaptive.bands(vocab_size)
            padding_idx = _padding_idx(bands.sizes[0])
            return AdaptiveEmbedding(bands, width, padding_idx=padding_idx, sparse=adaptive.sparse)
        case CharacterInput() as chars:
            return CharacterEmbedding(
                _checked_spellings(config, chars, spellings),
                width,
                char_dim=chars.char_dim,
                filters=chars.filters,
                highway_layers=chars.highway_layers,
                num_symbols=chars.num_symbols,
            )
        case _:
            assert_never(config.input)


def _output_layer(
    config: ModelConfig, input_layer: nn.Module, impl: Impl
) -> FullSoftmax | AdaptiveSoftmax:
    vocab_size, width = config.num_predicted, config.decoder.output_dim
    tied_to = input_layer if config.tie != Tie.NONE else None
    match config.output:
        case FullOutput() as full:
            assert tied_to is None or isinstance(tied_to, FixedEmbedding)
            return FullSoftmax(vocab_size, full.dim, width, tied_to=tied_to, impl=impl)
        case AdaptiveOutput() as adaptive:
            assert tied_to is None or isinstance(tied_to, AdaptiveEmbedding)
            return AdaptiveSoftmax(
                adaptive.bands(vocab_size),
                width,
                tied_to=tied_to,
                tie=config.tie,
                tail_dropout=adaptive.tail_dropout,
                input_dropout=adaptive.input_dropout,
                head_projection=adaptive.head_projection,
                impl=impl,
            )
        case _:
            assert_never(config.output)


def _padding_idx(num_words: int) -> int | None:
    return PADDING if num_words > PADDING else None


def _checked_spellings(
    config: ModelConfig, chars: CharacterInput, spellings: Tensor | None
) -> Tensor:
    shape = (config.vocab_size, chars.max_bytes)
    if spellings is None:
        if torch.get_default_device().type == "meta":
            return torch.empty(shape, dtype=torch.int16)
        raise ValueError(
            "spellings=None: character input needs the bytes of every word; pass the table of "
            f"shape {shape} that zipflm.data.encoding builds from a vocabulary"
        )
    if tuple(spellings.shape) != shape:
        raise ValueError(
            f"spellings.shape={tuple(spellings.shape)}: expected {shape} for vocab_size="
            f"{config.vocab_size} and max_bytes={chars.max_bytes}"
        )
    return spellings
