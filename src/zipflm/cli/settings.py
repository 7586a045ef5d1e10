"""Settings by the names that people try: from a name as other programs have it to ours.

And files of settings: `@my.cfg` among overrides stands for the lines of that file, in the form in
which `zipflm config` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from zipflm.quoting import unquoted

_ELSEWHERE = {
    "learning_rate": ("lr", "max_lr"),
    "lr": ("max_lr",),
    "num_epochs": ("epochs",),
    "steps": ("max_updates",),
    "max_steps": ("max_updates",),
    "iterations": ("max_updates",),
    "updates": ("max_updates",),
    "max_iters": ("max_updates",),
    "batch_size": ("tokens_per_update", "batches.tokens"),
    "batch": ("tokens_per_update", "batches.tokens"),
    "layers": ("num_layers",),
    "n_layer": ("num_layers",),
    "n_layers": ("num_layers",),
    "depth": ("num_layers",),
    "heads": ("num_heads",),
    "n_head": ("num_heads",),
    "n_heads": ("num_heads",),
    "width": ("decoder.dim",),
    "hidden_size": ("decoder.dim",),
    "d_model": ("decoder.dim",),
    "n_embd": ("decoder.dim",),
    "embedding_dim": ("input.dim",),
    "block_size": ("batches.block",),
    "seq_len": ("batches.block",),
    "sequence_length": ("batches.block",),
    "max_length": ("batches.block",),
    "warmup": ("warmup_updates",),
    "warmup_steps": ("warmup_updates",),
    "clip": ("clip_norm",),
    "grad_clip": ("clip_norm",),
    "max_grad_norm": ("clip_norm",),
    "accumulate": ("batches.tokens",),
    "grad_accum": ("batches.tokens",),
    "dtype": ("precision",),
    "fp16": ("precision",),
    "bf16": ("precision",),
    "eval_every": ("validate_every",),
    "eval_interval": ("validate_every",),
    "save_every": ("checkpoint_every",),
    "log_every": ("report_every",),
    "log_interval": ("report_every",),
}
"""What other programs call it, and how our names for it end."""
_IN_TOKENS = ("batch_size", "batch", "accumulate", "grad_accum")
"""Names of these that other programs count in something else than tokens."""
_PRESET, _OTHER_PRESET = "tiny/ADP-T", "demo/ADP-T"
"""Between them they have every kind of schedule and optimizer that a preset has."""
_MOST = 3


def settings_like(name: str, args: Iterable[object] = ()) -> list[str]:
    """Keys of settings that somebody may mean who writes `--name`; of the preset and recipe that
    `args` name, if they do."""
    from zipflm.overrides import keys_like

    name = name.replace("-", "_")
    last = name.rpartition(".")[2]
    known = _keys([arg for arg in args if isinstance(arg, str)])
    if name in known:
        return [name]
    for ending in (last, *_ELSEWHERE.get(last, ())):
        found = [key for key in known if key.endswith(f".{ending}") or key == ending]
        if found:
            return found[:_MOST]
    return keys_like(name, known)[:1]


def value_like(name: str, value: str | None) -> str:
    """The value to write for a setting that somebody calls `--name`: the same, if it has the same
    unit."""
    if name.replace("-", "_") in _IN_TOKENS:
        return "TOKENS"
    return "VALUE" if value is None or "=" in value else unquoted(value)


def _keys(args: Sequence[str]) -> list[str]:
    from zipflm.overrides import keys_of
    from zipflm.presets import dataset_of, from_name
    from zipflm.recipes import apply

    recipe = "modern" if "modern" in args or "--recipe=modern" in args else "paper"
    for arg in args:
        for preset in (arg, f"{arg}/ADP-T"):
            try:
                return keys_of(apply(recipe, from_name(preset), dataset_of(preset)))
            except ValueError:  # not a preset
                continue
    both = [*keys_of(from_name(_PRESET)), *keys_of(from_name(_OTHER_PRESET))]
    return list(dict.fromkeys(both))


def expanded(overrides: Iterable[str] | None) -> list[str]:
    """Overrides, with the lines of a file in place of its name behind `@`.

    Empty lines are left out, and what follows ` #`.
    """
    found: list[str] = []
    for override in overrides or ():
        if not override.startswith("@"):
            found.append(override)
            continue
        path = Path(override[1:])
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not a text; name a file of lines key=value") from None
        for line in text.splitlines():
            line = f" {line}".partition(" #")[0].strip()
            if line:
                found.append(line)
    return found
