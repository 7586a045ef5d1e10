"""Named variants of the presets: rows of the paper's appendix and context table, fairseq's
settings, and other decoders for small models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from zipflm.config import AdaptiveOutput, Config
from zipflm.config.model import BY_LABEL
from zipflm.presets.rivals import DECODERS, with_decoder
from zipflm.settings import override

Overrides = tuple[str, ...]


def _both(**fields: object) -> Overrides:
    """Set fields of the input and of the output layer."""
    layers = ("input", "output")
    return tuple(f"{layer}.{name}={value}" for layer in layers for name, value in fields.items())


def _bands(*thousands: int) -> Overrides:
    """Set band sizes in thousands of ids. The last band has all remaining ids."""
    cutoffs = (1000 * sum(thousands[:end]) for end in range(1, len(thousands)))
    return _both(cutoffs=",".join(map(str, cutoffs)))


def _block(block: int, context: int) -> Overrides:
    # Full blocks, up to 4096 tokens per device; eight devices, two batches per update.
    tokens = 4096 // block * block
    return (
        f"batches.block={block}",
        f"batches.tokens={tokens}",
        f"batches.eval_block={block}",
        f"batches.eval_context={context}",
        f"training.tokens_per_update={8 * 2 * tokens}",
    )


_WIKITEXT_VARIANTS: dict[str, dict[str, Overrides]] = {
    "SM": {
        "dropout-0.4": ("decoder.dropout=0.4",),
        "dim-256": _both(dim=256),
        "input-64": ("input.dim=64",),
    },
    "SM-T": {"dropout-0.4": ("decoder.dropout=0.4",), "dim-256": _both(dim=256)},
    "ASM": {
        **{f"input-{dim}": (f"input.dim={dim}",) for dim in (256, 128, 64, 32)},
        "tail-dropout-0": ("output.tail_dropout=0",),
    },
    "ADP": {"tail-dropout-0": ("output.tail_dropout=0",)},
    "ADP-T": {
        "tie-embeddings": ("tie=embeddings",),
        "tie-projections": ("tie=projections",),
        "tie-head": ("tie=head",),
        # As in Merity et al.: all bands have width 512, with all tables and projections shared. The
        # head is narrower than the decoder and must be projected. Sharing its projection as well
        # gives the paper's parameter count.
        "no-reduction": ("tie=head", *_both(dim=512, factor=1)),
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
_FAIRSEQ_WIKITEXT = (
    "decoder.num_heads=8",
    "batches.block=3072",
    "batches.tokens=3072",
    "training.schedule.first_cycle=270_000",
    "training.schedule.min_lr=1e-4",
    f"training.tokens_per_update={8 * 3 * 3072}",
)


def variants_of(dataset: str, factorization: str) -> dict[str, Callable[[Config], Config]]:
    """Return the variants of a model by name, each a function from a config to a config. Small
    models only have variants of the decoder, published models (`rivals`) none."""
    if factorization not in BY_LABEL:
        return {}
    fairseq: Overrides = ("decoder.init=fairseq",)  # the settings of the authors' later code
    if dataset == "wikitext-103":
        fairseq += _FAIRSEQ_WIKITEXT
        if BY_LABEL[factorization].output is AdaptiveOutput:
            fairseq += ("output.input_dropout=0.2",)
        changes = _WIKITEXT_VARIANTS.get(factorization, {}) | {"fairseq": fairseq}
    elif dataset == "billion-word":
        # The paper's main results used twice the batch size of its comparison of factorizations.
        changes = {"main-result": (f"training.tokens_per_update={64 * 2048}",), "fairseq": fairseq}
    else:
        return {
            name: partial(with_decoder, name=name) for name in DECODERS if name != "transformer"
        }
    return {name: partial(override, assignments=fields) for name, fields in changes.items()}
