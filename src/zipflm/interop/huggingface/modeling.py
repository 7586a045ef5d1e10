"""`ZipfForCausalLM`: a `LanguageModel` with the face of a `transformers` model.

The mathematics is that of `zipflm.model`, called as it is: without padding and cache, a call here
makes the very same computation. Two things differ from most causal models of `transformers`:

- `logits` are log-probabilities. They are normalised, so that their softmax is the model's
  distribution all the same, and a log-softmax changes nothing.
- With `labels` the loss comes from `nll`, which never holds a number for every word, and `logits`
  is None unless `return_logits` or `logits_to_keep` asks for them.

Shapes: B rows, T words, S words including earlier ones, D model width, V words of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from zipflm.interop.huggingface.config import ZipfConfig
from zipflm.interop.huggingface.past import View, after_last_word
from zipflm.model.inputs import CharacterEmbedding
from zipflm.model.language_model import LanguageModel
from zipflm.quoting import unquoted

_IGNORED = -100
"""A label that is not scored, in all of `transformers`."""
_MOST_NAMES = 5
"""Weights that an error names."""


class ZipfForCausalLM(PreTrainedModel, GenerationMixin):
    """p(next word | words so far). Rows of ids begin with `</s>`, as the tokenizer writes them:
    the first word of a text is predicted from it."""

    config_class: type[PretrainedConfig] | None = ZipfConfig
    main_input_name = "input_ids"
    _supports_sdpa = True
    # Tied weights are read across the model, which must therefore stay on one device.
    _no_split_modules = ["LanguageModel"]

    def __init__(self, config: ZipfConfig, model: LanguageModel | None = None) -> None:
        """With first weights, or around a `model` of that config, which is not copied; if it has
        character input, its spellings become part of its `state_dict`.

        A new model with character input has to be given: the config does not spell words.
        """
        super().__init__(config)
        self.model: LanguageModel = LanguageModel(config.native) if model is None else model
        if isinstance(self.model.input, CharacterEmbedding):
            # Saved here: a model of transformers has no vocabulary from which it would follow.
            spellings = self.model.input.spellings_VC
            self.model.input.register_buffer("spellings_VC", spellings, persistent=True)
        self.post_init()

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As everywhere in `transformers`, except that weights which are missing are an error:
        nobody wants random numbers in their place."""
        name = pretrained_model_name_or_path
        loaded: Any = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        model, info = loaded
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if weights := sorted(str(weight) for weight in info.get(problem) or ()):
                shown = ", ".join(unquoted(weight) for weight in weights[:_MOST_NAMES])
                raise ValueError(
                    f"{unquoted(str(name))}: {problem.replace('_', ' ')}: {shown}"
                    f"{', ...' if len(weights) > _MOST_NAMES else ''}; its weights are not those "
                    "of its config.json"
                )
        return (model, info) if output_loading_info else model

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Log-probabilities of all next words, or the loss.

        `attention_mask` is 0 for padding, on either side. With `labels`, those of the words
        themselves, `loss` is the mean over all that have a word before them and are neither -100
        nor padding; `num_items_in_batch` replaces their number where gradients are accumulated.
        `logits_to_keep` is a number of last positions, or which ones. `use_cache` returns
        `past_key_values`, to which later words are added.
        """
        words_BT = self._checked_words(input_ids, kwargs)
        cache = past_key_values
        if cache is None and use_cache:
            cache = DynamicCache(config=self.config)
        view = View(words_BT, cache, attention_mask)
        if kwargs.get("position_ids") is not None:
            view.require_positions(kwargs["position_ids"])
        hidden_BTD: Tensor = self.model(words_BT, None if view.is_plain else view)
        loss = None
        if labels is not None:
            loss = self._loss(hidden_BTD, labels, view.mask_BT, num_items_in_batch)
        logits = None
        if return_logits is None:
            return_logits = self.config.return_logits
        if labels is None or return_logits or not _is_zero(logits_to_keep):
            logits = self._logits(hidden_BTD, view.mask_BT, logits_to_keep)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)
        is_wanted = self.config.return_dict if return_dict is None else return_dict
        return output if is_wanted else output.to_tuple()

    def _loss(
        self,
        hidden_BTD: Tensor,
        labels_BT: Tensor,
        mask_BT: Tensor | None,
        num_items: Tensor | int | None,
    ) -> Tensor:
        if labels_BT.shape != hidden_BTD.shape[:2]:
            raise ValueError(
                f"labels.shape={tuple(labels_BT.shape)}: give a label for every id, "
                f"{tuple(hidden_BTD.shape[:2])}; they are shifted here"
            )
        targets = labels_BT[:, 1:].to(hidden_BTD.device)
        scored = targets != _IGNORED
        if mask_BT is not None:
            scored = scored & mask_BT[:, 1:] & mask_BT[:, :-1]
        total = self.model.output.nll(hidden_BTD[:, :-1], targets, scored).sum()
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

    def _checked_words(self, words: Tensor | None, options: dict[str, Any]) -> Tensor:
        for name in ("inputs_embeds", "output_attentions", "output_hidden_states"):
            if options.get(name) is not None and options[name] is not False:
                raise ValueError(f"{name}: this model has none to take or to give; leave it out")
        if words is None:
            raise ValueError("input_ids=None: give ids of words, [rows, words]")
        if words.dim() != 2 or words.shape[1] == 0:
            raise ValueError(
                f"input_ids.shape={tuple(words.shape)}: give [rows, words], of which there is at "
                "least one, the </s> that a text begins with"
            )
        return words

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> Any:
        """Refused: words are ranked by their counts, and a new one has no rank."""
        if new_num_tokens not in (None, self.config.vocab_size):
            raise ValueError(
                f"new_num_tokens={new_num_tokens}: the vocabulary of {self.config.vocab_size} ids "
                "is fixed; train a model with the larger one"
            )

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Nothing: layers initialise themselves when they are made, as the paper says."""


def _is_zero(logits_to_keep: int | Tensor) -> bool:
    return isinstance(logits_to_keep, int) and logits_to_keep == 0
