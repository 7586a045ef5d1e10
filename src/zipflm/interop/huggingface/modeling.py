"""The `transformers` model of a run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from zipflm.interop.huggingface.attention import EagerAttention, View, copy_last_to_padding
from zipflm.interop.huggingface.config import ZipfConfig
from zipflm.messages import quoted, unquoted
from zipflm.model.inputs import CharacterEmbedding
from zipflm.model.language_model import LanguageModel

_IGNORED = -100
"""Label that is ignored, as everywhere in `transformers`."""
_MAX_NAMES = 5
"""Maximum number of weights to list in an error."""


class ZipfForCausalLM(PreTrainedModel, GenerationMixin):
    """A zipflm language model. Rows start with `</s>`, from which the first token is predicted."""

    config_class: type[PretrainedConfig] | None = ZipfConfig
    main_input_name = "input_ids"
    base_model_prefix = "model"
    _supports_sdpa = True
    # Tied weights are shared across the model, so it must stay on one device.
    _no_split_modules = ["LanguageModel"]
    supports_gradient_checkpointing = True

    def __init__(self, config: ZipfConfig, model: LanguageModel | None = None) -> None:
        """Wrap `model` without copying, or create one with new weights.

        With character input, pass `model`, because the config does not contain the spellings of the
        words. They are added to its `state_dict`.
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
        """Like the base class, but missing, unexpected and mismatched weights are errors."""
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
        """Return log-probabilities of the next tokens as `logits`, or the loss if there are labels.

        `attention_mask` is 0 for padding, on either side. `labels` are the input ids, not shifted;
        `loss` is the mean over all except the first token of each row, labels of -100 and padding.
        `shift_labels` are already shifted. If `num_items_in_batch` is given, the sum is divided by
        it instead of by the number of labels. `inputs_embeds` replaces
        `get_input_embeddings()(input_ids)`. With `return_logits` or `logits_to_keep`, calls with
        labels also return logits. `logits_to_keep` is the number of last positions to return (0:
        all), or the indices of positions. `hidden_states` are the inputs of every layer and the
        output of the decoder.
        """
        # Not a parameter: generate() would pass its own, which count padding on the right.
        position_ids: Tensor | None = kwargs.pop("position_ids", None)
        # Not a parameter: Trainer would expect it in every batch that has labels.
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        if kwargs:
            raise TypeError(
                f"{type(self).__name__}.forward() got an unexpected keyword argument "
                f"{quoted(next(iter(kwargs)))}"
            )
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        if inputs is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("input_ids, inputs_embeds: pass exactly one of them")
        if input_ids is not None and (input_ids.dim() != 2 or input_ids.shape[1] == 0):
            raise ValueError(
                f"input_ids.shape={tuple(input_ids.shape)}: expected [rows, tokens] with at least "
                "one token (</s>, which starts a text)"
            )
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
        states: list[Tensor] | None = [] if output_hidden_states else None
        with attention or nullcontext():
            embedded_BTD = self.model.input(inputs) if inputs_embeds is None else inputs
            if self._has_constant_state:
                hidden_BTD = self._without_padding(embedded_BTD, view, states)
            else:
                past = view if is_eager or not view.is_plain else None
                hidden_BTD, _ = self.model.decoder(embedded_BTD, past, states)
        loss = None
        if labels is not None or shift_labels is not None:
            loss = self._loss(hidden_BTD, labels, shift_labels, view.mask_BT, num_items_in_batch)
        if return_logits is None:
            return_logits = self.config.return_logits
        should_keep_logits = not isinstance(logits_to_keep, int) or logits_to_keep != 0
        logits = None
        if loss is None or return_logits or should_keep_logits:
            logits = self._logits(hidden_BTD, view.mask_BT, logits_to_keep)
        # Any, because transformers declares them as FloatTensor.
        fields: dict[str, Any] = dict(
            loss=loss,
            logits=logits,
            past_key_values=cache,
            hidden_states=None if states is None else (*states, hidden_BTD),
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
        total = self.model.output.nll_sum(hidden_BTD, targets, scored)
        if num_items is None:
            return total / scored.sum().clamp(min=1)
        return total / torch.as_tensor(num_items, device=total.device)

    def _logits(
        self, hidden_BTD: Tensor, mask_BT: Tensor | None, logits_to_keep: int | Tensor
    ) -> Tensor:
        if mask_BT is not None:
            hidden_BTD = copy_last_to_padding(hidden_BTD, mask_BT)
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
        """Recompute activations except attention, which the default function would recompute."""
        self.gradient_checkpointing = enable
        for index, layer in enumerate(self.model.decoder.layers):
            is_chosen = enable and index % every_n_layers == 0
            layer.recompute = "layer" if is_chosen else "none"  # type: ignore[assignment]

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> Any:
        """Raise ValueError for a new size: ids are sorted by count, and new words have no count."""
        if new_num_tokens not in (None, self.config.vocab_size):
            raise ValueError(
                f"new_num_tokens={new_num_tokens}: the vocabulary of {self.config.vocab_size} ids "
                "is fixed; train a new model"
            )
        return self.get_input_embeddings()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: layers initialize themselves."""
