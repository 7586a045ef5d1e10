"""The Transformer decoder of the paper (section 4.1), with modern alternatives as config fields.

Sequences are padded on the right, where the causal mask hides the padding. Callers that pad
elsewhere pass a `Past` that hides it.

Shapes: B sequences, T positions, D model width, F feed-forward width, H heads, K head width, S
positions including cached ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from zipflm.config import Recompute, TransformerDecoder
from zipflm.kernels import cast_for_matmul
from zipflm.kernels.dropout import dropout, new_seed, relu_dropout
from zipflm.model import initialization
from zipflm.model.decoders.positions import rotate, rotations_for, sinusoids
from zipflm.model.initialization import Fill, InitializedModule
from zipflm.model.kv_cache import KeyValueCache, Past


class Shared(NamedTuple):
    """Inputs shared by all layers."""

    rotation: tuple[Tensor, Tensor] | None
    input_BTD: Tensor
    cache: Past | None = None
    visible_TS: Tensor | None = None
    """See `Past.visible`."""
    first_value_BTHK: Tensor | None = None
    """Attention values of the first layer, for all later layers."""


class Seeds(NamedTuple):
    """Dropout seeds of a layer, from `kernels.dropout.new_seed`."""

    attention: Tensor | None
    activation: Tensor | None
    feed_forward: Tensor | None


class Transformer(InitializedModule):
    """Causal Transformer from embedded words to hidden vectors.

    The state is a key-value cache. New words follow the cached ones and are added to the cache.
    """

    def __init__(self, config: TransformerDecoder):
        super().__init__()
        self.config = config
        layers = (DecoderLayer(config, index) for index in range(config.num_layers))
        self.layers: nn.ModuleList = nn.ModuleList(layers)
        self.final_norm: nn.Module = _norm(config) if config.final_norm else nn.Identity()

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        yield from _initial_norm("final_norm", self.final_norm)

    def set_recompute(self, recompute: Recompute) -> None:
        """Set the activations to recompute in the backward pass."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            layer.recompute = recompute

    def new_state(self, rows: int, capacity: int) -> KeyValueCache:
        """Create an empty cache on the decoder's device, at the current precision."""
        heads, head_dim = self.config.num_heads, self.config.dim // self.config.num_heads
        shape = (self.config.num_layers, rows, heads, capacity, head_dim)
        keys_LBHCK = cast_for_matmul(next(self.parameters())[:0]).new_zeros(shape)
        return KeyValueCache(keys_LBHCK, torch.zeros_like(keys_LBHCK), [0] * rows)

    def forward(
        self,
        embedded_BTD: Tensor,
        cache: Past | None = None,
        layer_inputs: list[Tensor] | None = None,
    ) -> tuple[Tensor, Past | None]:
        """Return hidden vectors and the cache. The input of each layer is appended to
        `layer_inputs`."""
        config = self.config
        # Under autocast, looked-up rows are float32 and projected ones are not. Use the same
        # precision for the residual stream in both cases.
        hidden_BTD = cast_for_matmul(embedded_BTD)
        # Scale to the size of the sinusoids, as in the authors' code (the paper does not say so).
        hidden_BTD = hidden_BTD * math.sqrt(config.dim)
        if cache is not None:
            cache.admit(hidden_BTD)
        length, start = hidden_BTD.shape[1], 0 if cache is None else cache.position
        rotation = None
        match config.positions:
            case "sinusoidal":
                table_TD = sinusoids(length, config.dim, hidden_BTD.device, start)
                hidden_BTD = hidden_BTD + table_TD.to(hidden_BTD.dtype)
            case "rotary":
                head_dim = config.dim // config.num_heads
                rotation = rotations_for(hidden_BTD, head_dim, start)
            case _:
                assert_never(config.positions)
        hidden_BTD = dropout(hidden_BTD, config.dropout, self.training)
        visible_TS = None if cache is None else cache.visible(length)
        shared = Shared(rotation, hidden_BTD, cache, visible_TS)
        for index, layer in enumerate(self.layers):
            if layer_inputs is not None:
                layer_inputs.append(hidden_BTD)
            hidden_BTD, value_BTHK = layer(hidden_BTD, shared)
            if index == 0:
                shared = shared._replace(first_value_BTHK=value_BTHK)
        if cache is not None:
            cache.advance(length)
        return self.final_norm(hidden_BTD), cache


class DecoderLayer(InitializedModule):
    """Attention, then feed-forward, each with a residual and a norm."""

    def __init__(self, config: TransformerDecoder, index: int):
        super().__init__()
        self.config, self.index = config, index
        self.recompute: Recompute = "none"
        dim, ffn_dim, bias = config.dim, config.ffn_dim, config.bias
        self.attention_norm: nn.Module = _norm(config)
        self.query: nn.Linear = nn.Linear(dim, dim, bias)
        self.key: nn.Linear = nn.Linear(dim, dim, bias)
        self.value: nn.Linear = nn.Linear(dim, dim, bias)
        self.attention_out: nn.Linear = nn.Linear(dim, dim, bias)
        self.ffn_norm: nn.Module = _norm(config)
        self.ffn_in: nn.Linear = nn.Linear(dim, ffn_dim, bias)
        self.ffn_out: nn.Linear = nn.Linear(ffn_dim, dim, bias)
        if config.attention_gate:
            self.gate: nn.Linear = nn.Linear(dim, config.num_heads, bias=False)
        if config.input_residual:
            self.input_weights: nn.Parameter = nn.Parameter(torch.empty(2))
        self.returns_values: bool = config.value_residual and index == 0
        self.mixes_values: bool = config.value_residual and index > 0
        if self.mixes_values:
            self.value_weights: nn.Parameter = nn.Parameter(torch.empty(2))
        self.reset_parameters()

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        init = self.config.init
        xavier, is_paper = initialization.xavier_uniform(), init in ("paper", "zero-output")
        # Queries, keys and values are one 3D x D matrix in the authors' code, hence this gain.
        joint = initialization.xavier_uniform(gain=1 / math.sqrt(2))
        out = initialization.zeros if init == "zero-output" else xavier
        weights = {"query": joint, "key": joint, "value": joint, "attention_out": out}
        if is_paper:
            weights |= {"ffn_in": xavier, "ffn_out": out}
        for name in ("query", "key", "value", "attention_out", "ffn_in", "ffn_out"):
            linear = self.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            # With init="fairseq" (its later code), other weights keep PyTorch's initialization.
            default = initialization.torch_linear(linear.in_features)
            yield f"{name}.weight", weights.get(name, default)
            if linear.bias is not None:
                starts_at_zero = is_paper or name == "attention_out"
                yield f"{name}.bias", initialization.zeros if starts_at_zero else default
        for name in ("attention_norm", "ffn_norm"):
            yield from _initial_norm(name, self.get_submodule(name))
        if self.config.attention_gate:
            yield "gate.weight", initialization.zeros
        if self.config.input_residual:
            yield "input_weights", initialization.constant(1.0, 0.1)
        if self.mixes_values:
            yield "value_weights", initialization.constant(0.5, 0.5)

    def forward(self, hidden_BTD: Tensor, shared: Shared) -> tuple[Tensor, Tensor | None]:
        """Return hidden vectors, and attention values if later layers need them."""
        # Draw seeds first: recomputed parts must not draw again.
        rates = self.config.dropout, self.config.relu_dropout, self.config.dropout
        seeds = Seeds(*(new_seed(hidden_BTD, rate, self.training) for rate in rates))
        # With a cache or without gradients, there is no backward pass.
        is_inference = shared.cache is not None or not torch.is_grad_enabled()
        match "none" if is_inference else self.recompute:
            case "none":
                hidden_BTD, value = self._add_attention(hidden_BTD, shared, seeds)
            case "attention":
                hidden_BTD, value = recomputed(self._add_attention, hidden_BTD, shared, seeds)
            case "layer":
                return recomputed(self._add_both, hidden_BTD, shared, seeds)
            case other:
                assert_never(other)
        return self._add_feed_forward(hidden_BTD, seeds), value

    def _add_both(
        self, hidden_BTD: Tensor, shared: Shared, seeds: Seeds
    ) -> tuple[Tensor, Tensor | None]:
        hidden_BTD, value_BTHK = self._add_attention(hidden_BTD, shared, seeds)
        return self._add_feed_forward(hidden_BTD, seeds), value_BTHK

    def _add_attention(
        self, hidden_BTD: Tensor, shared: Shared, seeds: Seeds
    ) -> tuple[Tensor, Tensor | None]:
        if self.config.input_residual:
            hidden_weight, input_weight = self.input_weights
            hidden_BTD = hidden_weight * hidden_BTD + input_weight * shared.input_BTD
        normed_BTD = self._pre_norm(self.attention_norm, hidden_BTD)
        attended_BTD, value_BTHK = self._attend(normed_BTD, shared)
        rate = self.config.dropout
        added_BTD = dropout(attended_BTD, rate, self.training, seeds.attention)
        return self._post_norm(self.attention_norm, hidden_BTD + added_BTD), value_BTHK

    def _add_feed_forward(self, hidden_BTD: Tensor, seeds: Seeds) -> Tensor:
        inner_BTF = self._activate(self._pre_norm(self.ffn_norm, hidden_BTD), seeds.activation)
        output_BTD = self.ffn_out(inner_BTF)
        rate = self.config.dropout
        added_BTD = dropout(output_BTD, rate, self.training, seeds.feed_forward)
        return self._post_norm(self.ffn_norm, hidden_BTD + added_BTD)

    def _pre_norm(self, norm: nn.Module, hidden_BTD: Tensor) -> Tensor:
        return norm(hidden_BTD) if self.config.norm_position == "before" else hidden_BTD

    def _post_norm(self, norm: nn.Module, summed_BTD: Tensor) -> Tensor:
        # Autocast computes norms in float32. The residual stream keeps its type.
        is_after = self.config.norm_position == "after"
        return norm(summed_BTD).to(summed_BTD.dtype) if is_after else summed_BTD

    def _attend(self, normed_BTD: Tensor, shared: Shared) -> tuple[Tensor, Tensor | None]:
        config, cache = self.config, shared.cache
        query, key, value = (
            projected.view(*projected.shape[:-1], config.num_heads, -1)  # B, T, H, K
            for projected in self._project(normed_BTD, is_step=cache is not None)
        )
        if config.qk_norm:
            query, key = (F.rms_norm(x, x.shape[-1:]) for x in (query, key))
        if shared.rotation is not None:
            query, key = rotate(query, shared.rotation), rotate(key, shared.rotation)
        if self.mixes_values:
            assert shared.first_value_BTHK is not None
            weight, first_weight = self.value_weights
            value = weight * value + first_weight * shared.first_value_BTHK
        value_BTHK = value if self.returns_values else None
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        rate = config.attention_dropout if self.training else 0.0
        is_causal = True
        if cache is not None:
            key, value = cache.extend(self.index, key, value)
            is_causal = shared.visible_TS is None and query.shape[2] > 1
        attended_BHTK = F.scaled_dot_product_attention(
            query, key, value, attn_mask=shared.visible_TS, is_causal=is_causal, dropout_p=rate
        )
        attended_BTHK = attended_BHTK.transpose(1, 2)
        if config.attention_gate:
            attended_BTHK = attended_BTHK * (2 * self.gate(normed_BTD).sigmoid()).unsqueeze(-1)
        return self.attention_out(attended_BTHK.flatten(-2)), value_BTHK

    def _project(self, normed_BTD: Tensor, is_step: bool) -> Sequence[Tensor]:
        projections = (self.query, self.key, self.value)
        if is_step or not _are_plain(*projections):
            # For a few words, concatenating the weights would cost more than it saves.
            return [projection(normed_BTD) for projection in projections]
        weights: list[Tensor] = [projection.weight for projection in projections]
        biases: list[Tensor] = [p.bias for p in projections if p.bias is not None]
        bias = torch.cat(biases) if biases else None
        return F.linear(normed_BTD, torch.cat(weights), bias).chunk(3, dim=-1)

    def _activate(self, normed_BTD: Tensor, seed: Tensor | None) -> Tensor:
        linear, rate, training = self.ffn_in, self.config.relu_dropout, self.training
        match self.config.activation:
            case "relu":
                if not (normed_BTD.is_cuda and training and rate and _are_plain(linear)):
                    return relu_dropout(linear(normed_BTD), rate, training, seed)
                bias = linear.bias
                detached = None if bias is None else bias.detach()
                inner_BTF = F.linear(normed_BTD, linear.weight, detached)
                return relu_dropout(inner_BTF, rate, training, seed, bias)
            case "relu_squared":
                return dropout(linear(normed_BTD).relu().square(), rate, training, seed)
            case _:
                assert_never(self.config.activation)


_SAVED_OPERATORS = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)
"""Fused attention operators, whose results are saved. Where PyTorch has none (on a CPU with
dropout), attention consists of several operators, which are recomputed like all others."""


def recomputed(
    function: Callable[..., tuple[Tensor, Tensor | None]], *inputs: Any
) -> tuple[Tensor, Tensor | None]:
    """Call `function` and save only its inputs, its outputs and the result of attention.

    The result of attention is one vector per token, while the time to recompute it grows with the
    block length. On a GPU, attention is also the only operator that draws random numbers internally
    (dropout takes seeds as arguments), so the second pass draws none, even if it is compiled or
    recorded as a CUDA graph. On a CPU, dropout uses torch's generator, whose state is restored for
    the second pass.
    """
    outputs: tuple[Tensor, Tensor | None] = checkpoint(
        function, *inputs, use_reentrant=False, context_fn=_checkpoint_contexts
    )
    return outputs


def _policy(context: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    if operation in _SAVED_OPERATORS:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


_checkpoint_contexts = partial(create_selective_checkpoint_contexts, _policy)


def _are_plain(*linears: nn.Module) -> bool:
    """True if all are plain linear layers: no adapters, no hooks, no replaced `forward`."""
    return all(
        type(linear) is nn.Linear
        # torch.compile cannot always trace `vars`, so compiled code ignores a replaced `forward`.
        and (torch.compiler.is_compiling() or "forward" not in vars(linear))
        and not (linear._forward_hooks or linear._forward_pre_hooks)
        and not (linear._backward_hooks or linear._backward_pre_hooks)
        for linear in linears
    )


def _norm(config: TransformerDecoder) -> nn.Module:
    match config.norm:
        case "layer":
            return nn.LayerNorm(config.dim)
        case "rms":
            return nn.RMSNorm(config.dim, elementwise_affine=False)
        case _:
            assert_never(config.norm)


def _initial_norm(name: str, norm: nn.Module) -> Iterator[tuple[str, Fill]]:
    for part, _ in norm.named_parameters():
        yield f"{name}.{part}", initialization.ones if part == "weight" else initialization.zeros
