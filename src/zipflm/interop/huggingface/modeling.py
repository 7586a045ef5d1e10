"""The `transformers` model of a run, with its caches and masks.

Padding is masked, and positions are counted without it, so results do not depend on padding.

Shapes: B rows, T new tokens, S tokens including cached ones, H heads, K head width, D model width.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from zipflm.interop.huggingface.config import ZipfConfig
from zipflm.messages import quoted, unquoted
from zipflm.model.inputs import CharacterEmbedding
from zipflm.model.language_model import LanguageModel


class View:
    """The attention mask, positions and key-value cache of one call: a `Past` for the decoder."""

    def __init__(self, inputs: Tensor, cache: Any | None, mask_BS: Tensor | None) -> None:
        """Create the view of one call.

        `inputs` are ids [B, T] or vectors [B, T, D]. `mask_BS` is 0 for padding, and includes the
        cached tokens.
        """
        self._cache, self._device = cache, inputs.device
        self._start = 0 if cache is None else int(cache.get_seq_length())
        rows, length = inputs.shape[:2]
        self._mask_BS = _checked_mask(mask_BS, rows, self._start + length)
        self._positions_BT = None
        if self._mask_BS is not None:
            counted_BS = self._mask_BS.cumsum(1) - 1
            self._positions_BT = counted_BS[:, self._start :].clamp(min=0)

    @property
    def is_plain(self) -> bool:
        """Whether a call without mask and cache gives the same result."""
        return self._cache is None and self._is_padded_on_the_right

    @property
    def mask_BT(self) -> Tensor | None:
        """False for new tokens that are padding. None if there is no padding."""
        return None if self._mask_BS is None else self._mask_BS[:, self._start :]

    @property
    def position(self) -> int | Tensor:
        return self._start if self._positions_BT is None else self._positions_BT

    def visible(self, number: int) -> Tensor | None:
        if self._mask_BS is None and (number == 1 or self._start == 0):
            return None
        shape = (number, self._start + number)
        causal_TS = torch.ones(shape, dtype=torch.bool, device=self._device).tril(self._start)
        if self._mask_BS is None:
            return causal_TS
        # Padding attends to itself: attention to no position would be NaN.
        return (causal_TS & self._mask_BS[:, None, None]) | causal_TS.triu(self._start)

    def admit(self, hidden_BTD: Tensor) -> None:
        pass

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        if self._cache is None:
            return key_BHTK, value_BHTK
        keys_BHSK, values_BHSK = self._cache.update(key_BHTK, value_BHTK, layer)
        if keys_BHSK.shape[2] != self._start + key_BHTK.shape[2]:
            raise ValueError(
                f"past_key_values: a {type(self._cache).__name__} does not return all tokens; use "
                "a DynamicCache"
            )
        return keys_BHSK, values_BHSK

    def advance(self, number: int) -> None:
        pass

    def require_positions(self, positions: Tensor) -> None:
        """Raise ValueError unless these are the positions of the new tokens."""
        expected = self.position
        if isinstance(expected, int):
            stop = expected + positions.shape[-1]
            expected = torch.arange(expected, stop, device=positions.device)[None]
        mask_BT = self.mask_BT
        if mask_BT is None:
            mask_BT = torch.ones_like(expected, dtype=torch.bool)
        advice = (
            "positions follow from attention_mask and past_key_values; leave them out, and put "
            "each text in its own row"
        )
        are_equal = ((positions == expected) | ~mask_BT).all()
        if torch.compiler.is_compiling():
            torch._assert_async(are_equal, f"position_ids: {advice}")
        elif positions.dim() != 2 or not bool(are_equal):
            raise ValueError(f"position_ids={quoted(positions.tolist())}: {advice}")

    @property
    def _is_padded_on_the_right(self) -> bool:
        """Whether the causal mask alone hides all padding."""
        if self._mask_BS is None:
            return True
        if torch.compiler.is_compiling():  # no branch may depend on values
            return False
        return bool((self._mask_BS[:, 1:] <= self._mask_BS[:, :-1]).all())


class EagerAttention(TorchFunctionMode):
    """Context manager that computes attention explicitly and stores its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []
        """One [B, H, T, S] per layer."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        is_attention = function is F.scaled_dot_product_attention
        return (self._attend if is_attention else function)(*args, **(kwargs or {}))

    def _attend(
        self,
        query_BHTK: Tensor,
        key_BHSK: Tensor,
        value_BHSK: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
    ) -> Tensor:
        scores_BHTS = query_BHTK @ key_BHSK.transpose(2, 3) / math.sqrt(query_BHTK.shape[3])
        if is_causal:
            attn_mask = torch.ones_like(scores_BHTS[0, 0], dtype=torch.bool).tril()
        if attn_mask is not None:
            scores_BHTS = scores_BHTS.masked_fill(~attn_mask, -torch.inf)
        weights_BHTS = scores_BHTS.softmax(-1, torch.float32).to(query_BHTK.dtype)
        self.weights.append(weights_BHTS)
        return F.dropout(weights_BHTS, dropout_p) @ value_BHSK


def after_last_word(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Copy the vector of the last token to the padding after it.

    The last position then always predicts the next token.
    """
    positions_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_BT = torch.where(mask_BT, positions_T, 0).cummax(1).values
    return hidden_BTD.gather(1, last_BT.unsqueeze(-1).expand_as(hidden_BTD))


def _checked_mask(mask: Tensor | None, rows: int, width: int) -> Tensor | None:
    """Return the mask as booleans, or None without padding.

    It is always returned when compiling, because then no branch may depend on values.
    """
    if mask is None:
        return None
    if tuple(mask.shape) != (rows, width):
        raise ValueError(
            f"attention_mask.shape={tuple(mask.shape)}: expected {(rows, width)}, including the "
            "tokens in past_key_values, with 1 for tokens and 0 for padding"
        )
    is_word_BS = mask != 0
    if torch.compiler.is_compiling():
        return is_word_BS
    return None if bool(is_word_BS.all()) else is_word_BS


_IGNORED = -100
"""Label that is ignored, as everywhere in `transformers`."""
_MAX_NAMES = 5
"""Number of weights to list in an error."""


class ZipfForCausalLM(PreTrainedModel, GenerationMixin):
    """A zipflm language model. Rows of ids start with `</s>`, which predicts the first token."""

    config_class: type[PretrainedConfig] | None = ZipfConfig
    main_input_name = "input_ids"
    base_model_prefix = "model"
    _supports_sdpa = True
    # Tied weights are shared across the model, so it must stay on one device.
    _no_split_modules = ["LanguageModel"]
    supports_gradient_checkpointing = True

    def __init__(self, config: ZipfConfig, model: LanguageModel | None = None) -> None:
        """Wrap `model` without copying, or create one with new weights.

        With character input, `model` is required, because the config has no spellings. They are
        added to its `state_dict`.
        """
        super().__init__(config)
        self.model: LanguageModel = LanguageModel(config.native) if model is None else model
        if isinstance(self.model.input, CharacterEmbedding):
            # Saved, because a transformers model has no vocabulary to compute them from.
            spellings = self.model.input.spellings_VC
            self.model.input.register_buffer("spellings_VC", spellings, persistent=True)
        if self._has_constant_state:
            config.use_cache = False
        self.post_init()
        if self._has_constant_state:
            self.generation_config.use_cache = False

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Like the base class, but missing weights are an error instead of random values."""
        name = pretrained_model_name_or_path
        loaded: Any = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        model, info = loaded
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if weights := sorted(str(weight) for weight in info.get(problem) or ()):
                shown = ", ".join(unquoted(weight) for weight in weights[:_MAX_NAMES])
                raise ValueError(
                    f"{unquoted(str(name))}: {problem.replace('_', ' ')}: {shown}"
                    f"{', ...' if len(weights) > _MAX_NAMES else ''}; its weights do not match "
                    "its config.json"
                )
        return (model, info) if output_loading_info else model

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return log-probabilities of the next tokens, or the loss.

        `attention_mask` is 0 for padding, on either side. `labels` are the input ids, not shifted;
        `loss` is the mean over all except the first, -100 and padding. `shift_labels` are already
        shifted. `num_items_in_batch` replaces the number of labels when gradients are accumulated.
        `inputs_embeds` replaces `get_input_embeddings()(input_ids)`. `logits_to_keep` is a number
        of last positions, or their indices. `hidden_states` are those before every layer and the
        normalized last ones. `position_ids` must match `attention_mask`.
        """
        # Not a parameter: generate() would pass its own, which count padding on the right.
        position_ids = kwargs.pop("position_ids", None)
        # Not a parameter: Trainer would expect it in every batch that has labels.
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        if kwargs:
            raise TypeError(
                f"{type(self).__name__}.forward() got an unexpected keyword argument "
                f"{quoted(next(iter(kwargs)))}"
            )
        inputs = _checked_inputs(input_ids, inputs_embeds, self.config.hidden_size)
        cache = past_key_values
        if self._has_constant_state and (cache is not None or use_cache):
            raise ValueError(
                f"use_cache: a {type(self.config.native.decoder).__name__} has no keys and values; "
                "pass use_cache=False, or generate with zipflm"
            )
        if cache is None and use_cache:
            cache = DynamicCache(config=self.config)
        view = View(inputs, cache, attention_mask)
        if position_ids is not None:
            view.require_positions(position_ids)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        is_eager = output_attentions or self.config._attn_implementation == "eager"
        attention = EagerAttention() if is_eager else None
        states: list[Tensor] = []
        with attention or nullcontext():
            embedded_BTD = self.model.input(inputs) if inputs_embeds is None else inputs
            seen = states if output_hidden_states else None
            if self._has_constant_state:
                hidden_BTD = self._without_padding(embedded_BTD, view, seen)
            else:
                past = view if is_eager or not view.is_plain else None
                hidden_BTD, _ = self.model.decoder(embedded_BTD, past, seen)
        loss = None
        if labels is not None or shift_labels is not None:
            loss = self._loss(hidden_BTD, labels, shift_labels, view.mask_BT, num_items_in_batch)
        logits = None
        if return_logits is None:
            return_logits = self.config.return_logits
        keeps_logits = not isinstance(logits_to_keep, int) or logits_to_keep != 0
        if loss is None or return_logits or keeps_logits:
            logits = self._logits(hidden_BTD, view.mask_BT, logits_to_keep)
        # Any, because transformers declares them as FloatTensor.
        fields: dict[str, Any] = dict(
            loss=loss,
            logits=logits,
            past_key_values=cache,
            hidden_states=(*states, hidden_BTD) if output_hidden_states else None,
            attentions=tuple(attention.weights) if attention and output_attentions else None,
        )
        output = CausalLMOutputWithPast(**fields)
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return output if as_dict else output.to_tuple()

    @property
    def _has_constant_state(self) -> bool:
        return self.model.config.decoder.has_constant_state

    def _without_padding(
        self, embedded_BTD: Tensor, view: View, states: list[Tensor] | None
    ) -> Tensor:
        """Run a recurrent decoder with padding moved to the end of each row, and move it back."""
        hidden_BTD: Tensor
        if view.is_plain or view.mask_BT is None:
            hidden_BTD, _ = self.model.decoder(embedded_BTD, None, states)
            return hidden_BTD
        order_BT = (~view.mask_BT).int().argsort(dim=1, stable=True)
        moved_BTD = embedded_BTD.take_along_dim(order_BT.unsqueeze(-1), dim=1)
        hidden_BTD, _ = self.model.decoder(moved_BTD, None, states)
        back_BT1 = order_BT.argsort(dim=1).unsqueeze(-1)
        if states is not None:
            states[:] = [state.take_along_dim(back_BT1, dim=1) for state in states]
        return hidden_BTD.take_along_dim(back_BT1, dim=1)

    def _loss(
        self,
        hidden_BTD: Tensor,
        labels_BT: Tensor | None,
        shifted_BT: Tensor | None,
        mask_BT: Tensor | None,
        num_items: Tensor | int | None,
    ) -> Tensor:
        labels = labels_BT if shifted_BT is None else shifted_BT
        assert labels is not None
        if labels.shape != hidden_BTD.shape[:2]:
            name = "labels" if shifted_BT is None else "shift_labels"
            raise ValueError(
                f"{name}.shape={tuple(labels.shape)}: expected one per id, "
                f"{tuple(hidden_BTD.shape[:2])}"
            )
        targets = labels.to(hidden_BTD.device)
        scored = targets != _IGNORED
        if mask_BT is not None:
            scored = scored & mask_BT
        if shifted_BT is None:
            targets, hidden_BTD, scored = targets[:, 1:], hidden_BTD[:, :-1], scored[:, 1:]
            scored = scored if mask_BT is None else scored & mask_BT[:, :-1]
        total = self.model.output.nll(hidden_BTD, targets, scored).sum()
        if num_items is None:
            return total / scored.sum().clamp(min=1)
        return total / torch.as_tensor(num_items, device=total.device)

    def _logits(
        self, hidden_BTD: Tensor, mask_BT: Tensor | None, logits_to_keep: int | Tensor
    ) -> Tensor:
        if mask_BT is not None:
            hidden_BTD = after_last_word(hidden_BTD, mask_BT)
        if isinstance(logits_to_keep, int):
            kept = hidden_BTD[:, slice(-logits_to_keep if logits_to_keep else None, None)]
        else:
            kept = hidden_BTD[:, logits_to_keep]
        return self.model.output.log_probs(kept)

    def get_input_embeddings(self) -> nn.Module:
        """Return the input layer, which maps ids to vectors. It may have several tables."""
        return self.model.input

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the input layer. A tied output layer keeps the old weights."""
        self.model.input = value  # type: ignore[assignment]

    @property
    def embeddings(self) -> nn.ModuleDict:
        """The input layer as `word_embeddings`, the name that PEFT's prompt tuning tries first."""
        return nn.ModuleDict({"word_embeddings": self.model.input})

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Any = None, every_n_layers: int = 1
    ) -> None:
        """Recompute activations except attention. The default function would also recompute it."""
        self.gradient_checkpointing = enable
        for index, layer in enumerate(self.model.decoder.layers):
            is_chosen = enable and index % every_n_layers == 0
            layer.recompute = "layer" if is_chosen else "none"  # type: ignore[assignment]

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> Any:
        """Raise ValueError for a new size. Words are sorted by count; new ones have none."""
        if new_num_tokens not in (None, self.config.vocab_size):
            raise ValueError(
                f"new_num_tokens={new_num_tokens}: the vocabulary of {self.config.vocab_size} ids "
                "is fixed; train a new model"
            )
        return self.get_input_embeddings()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: layers initialize themselves."""


def _checked_inputs(words: Tensor | None, vectors: Tensor | None, width: int) -> Tensor:
    """Return ids [B, T] or vectors [B, T, D]."""
    if (words is None) == (vectors is None):
        raise ValueError("input_ids, inputs_embeds: pass exactly one of them")
    if words is None:
        assert vectors is not None
        if vectors.dim() != 3 or vectors.shape[2] != width:
            raise ValueError(
                f"inputs_embeds.shape={tuple(vectors.shape)}: expected [rows, tokens, {width}], "
                "the output of get_input_embeddings()"
            )
        return vectors
    if words.dim() != 2 or words.shape[1] == 0:
        raise ValueError(
            f"input_ids.shape={tuple(words.shape)}: expected [rows, tokens] with at least one "
            "token (</s>, which starts a text)"
        )
    return words
