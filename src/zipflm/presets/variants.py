"""Named variants of the presets: rows of the paper's appendix and context table, fairseq's
settings, and other decoders for small models. A variant is a function from a config to a config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from zipflm.config import AdaptiveOutput, Config, CosineCycles, FixedInput, Tie, TransformerDecoder
from zipflm.presets.rivals import DECODERS, with_decoder

Variant = Callable[[Config], Config]


def _with_both_layers(config: Config, **fields: Any) -> Config:
    return replace(
        config, input=replace(config.input, **fields), output=replace(config.output, **fields)
    )


def _dim(dim: int) -> Variant:
    return lambda config: _with_both_layers(config, dim=dim)


def _input_dim(dim: int) -> Variant:
    return lambda config: replace(config, input=FixedInput(dim=dim))


def _dropout(rate: float) -> Variant:
    return lambda config: replace(config, decoder=replace(config.decoder, dropout=rate))


def _tied(tie: Tie) -> Variant:
    return lambda config: replace(config, tie=tie)


def _bands(*thousands: int) -> Variant:
    """Set band sizes in thousands of ids. The last band has all remaining ids."""
    cutoffs = tuple(1000 * sum(thousands[:end]) for end in range(1, len(thousands)))
    return lambda config: _with_both_layers(config, cutoffs=cutoffs)


def _tail_dropout(rate: float) -> Variant:
    def variant(config: Config) -> Config:
        assert isinstance(config.output, AdaptiveOutput)
        return replace(config, output=replace(config.output, tail_dropout=rate))

    return variant


def _block(block: int, context: int) -> Variant:
    def variant(config: Config) -> Config:
        # Full blocks, up to 4096 tokens per device; eight devices, two batches per update.
        tokens = config.batches.tokens // block * block
        batches = replace(
            config.batches, block=block, tokens=tokens, eval_block=block, eval_context=context
        )
        training = replace(config.training, tokens_per_update=8 * 2 * tokens)
        return replace(config, batches=batches, training=training)

    return variant


def _sixty_four_devices(config: Config) -> Config:
    """Use twice the batch size of the comparison of factorizations, as in the paper's main results
    on Billion Word."""
    return replace(config, training=replace(config.training, tokens_per_update=64 * 2048))


def _no_reduction(config: Config) -> Config:
    """Use the setting of Merity et al.: all bands have width 512, with all tables and
    projections shared.

    The head is narrower than the decoder and must be projected. Sharing its projection as well
    gives the paper's parameter count.
    """
    return _with_both_layers(replace(config, tie=Tie.HEAD), dim=512, factor=1)


def _fairseq(config: Config) -> Config:
    """Use the settings of the authors' later code that apply to both datasets."""
    output = config.output
    if isinstance(output, AdaptiveOutput):
        output = replace(output, input_dropout=output.tail_dropout)
    return replace(config, output=output, decoder=_decoder(config, init="fairseq"))


def _decoder(config: Config, **fields: Any) -> TransformerDecoder:
    assert isinstance(config.decoder, TransformerDecoder)
    return replace(config.decoder, **fields)


def _fairseq_wikitext(config: Config) -> Config:
    """Use `_fairseq` for WikiText-103, where the authors' later code also trains differently."""
    config = _fairseq(config)
    schedule = CosineCycles(first_cycle=270_000, min_lr=1e-4)
    return replace(
        config,
        decoder=_decoder(config, num_heads=8),
        batches=replace(config.batches, block=3072, tokens=3072),
        training=replace(config.training, schedule=schedule, tokens_per_update=8 * 3 * 3072),
    )


_WIKITEXT_VARIANTS: dict[str, dict[str, Variant]] = {
    "SM": {"dropout-0.4": _dropout(0.4), "dim-256": _dim(256), "input-64": _input_dim(64)},
    "SM-T": {"dropout-0.4": _dropout(0.4), "dim-256": _dim(256)},
    "ASM": {f"input-{dim}": _input_dim(dim) for dim in (256, 128, 64, 32)}
    | {"tail-dropout-0": _tail_dropout(0)},
    "ADP": {"tail-dropout-0": _tail_dropout(0)},
    "ADP-T": {
        "tie-embeddings": _tied(Tie.EMBEDDINGS),
        "tie-projections": _tied(Tie.PROJECTIONS),
        "tie-head": _tied(Tie.HEAD),
        "no-reduction": _no_reduction,
        "bands-20k-40k-200k": _bands(20, 40, 200),
        "bands-20k-140k-100k": _bands(20, 140, 100),
        "bands-20k-40k-60k-140k": _bands(20, 40, 60, 140),
        "bands-60k-100k-100k": _bands(60, 100, 100),
        "bands-5k-155k-100k": _bands(5, 155, 100),
        "bands-10k-60k-190k": _bands(10, 60, 190),
        "block-512-context-480": _block(512, 480),
        "block-2048": _block(2048, 0),
        "block-2048-context-1536": _block(2048, 1536),
        "block-3072": _block(3072, 0),
        "block-3072-context-2560": _block(3072, 2560),
    },
}


def variants_of(dataset: str, factorization: str) -> dict[str, Variant]:
    """Return the variants of a model by name. Small models only have variants of the decoder."""
    if dataset == "wikitext-103":
        return _WIKITEXT_VARIANTS.get(factorization, {}) | {"fairseq": _fairseq_wikitext}
    if dataset == "billion-word":
        return {"main-result": _sixty_four_devices, "fairseq": _fairseq}
    return {name: partial(with_decoder, name=name) for name in DECODERS if name != "transformer"}
