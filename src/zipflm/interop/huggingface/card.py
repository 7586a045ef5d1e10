"""The model card: what a model is, how its numbers are made, and those that its run recorded.

Nothing here is computed, and nothing is guessed: what a run does not know its card does not say.
"""

from __future__ import annotations

from pathlib import Path

from zipflm import __version__
from zipflm.quoting import quoted, unquoted
from zipflm.runs.loaded import LoadedRun
from zipflm.runs.records import ImportedState, State, Validation, Versions

_HEAD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- zipflm
- {tag}
---

**Run `import zipflm.interop.huggingface` before you load this model.** Without it `transformers`
does not know the architecture, and its errors advise an update or `trust_remote_code`, neither of
which helps.
Install: `pip install "zipflm[hf] @ git+https://github.com/zipflm/zipflm"`
"""

_USE = """## Use

```python
import zipflm.interop.huggingface
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
```

`zipflm import-hf path/to/this/folder --out RUN` makes a run of `zipflm` of it again, with the same
weights bit for bit.

- A text begins with `</s>`, which the tokenizer puts in front: its first word is predicted from it.
- A line end is `</s>` too. A text that ends in a line end is scored as `zipflm score` scores it,
  its end included.
- `logits` are log-probabilities, already normalised. With `labels` there are none, only the loss,
  unless `return_logits=True`.
- Text is read by `{splitting}`, as the training text was.
"""


def model_card(run: LoadedRun, state: State, versions: Versions | None) -> str:
    """The README.md of an exported run."""
    config = run.config
    unit = config.batches.unit
    label = config.factorization(unit)
    input, output = config.describe(unit)
    name = unquoted(config.name)
    facts = [
        ("factorization", label or "none of the paper's"),
        ("input layer", input),
        ("output layer", output),
        ("parameters", f"{config.num_params():,}"),
        ("decoder", _decoder(run)),
        ("vocabulary", f"{len(run.vocabulary):,} ids of unit `{unit}`"),
        ("vocabulary's SHA-256", f"`{run.vocabulary.hash}`"),
        ("weights' SHA-256", f"`{run.weights_hash}` (of the run's file)"),
    ]
    parts = [
        _HEAD.format(tag="word-level" if unit == "word" else "byte-pair"),
        f"# {name}\n",
        "A language model with the input and output layers of Baevski & Auli, *Adaptive Input "
        "Representations for\nNeural Language Modeling* (ICLR 2019), made by "
        f"zipflm {__version__}.\n",
        _table(("", ""), facts),
        _USE.format(splitting=run.splitting),
        _training(run, state, versions),
        _measured(state.valid if not isinstance(state, ImportedState) else None),
    ]
    return "\n".join(parts)


def _decoder(run: LoadedRun) -> str:
    decoder = run.config.decoder
    return (
        f"{decoder.num_layers} layers, width {decoder.dim}, {decoder.num_heads} heads, "
        f"feed-forward {decoder.ffn_dim}, {decoder.positions} positions"
    )


def _training(run: LoadedRun, state: State, versions: Versions | None) -> str:
    training, batches = run.config.training, run.config.batches
    rows = [("updates", f"{state.update:,}")]
    if isinstance(state, ImportedState):
        # Not the whole path, which says more of somebody's disk than of the model.
        source = Path(state.imported_from).name
        rows.append(("trained elsewhere, imported from", f"`{unquoted(source)}`"))
    else:
        rows += [
            ("tokens per update", f"{training.tokens_per_update:,}"),
            ("optimizer", type(training.optimizer).__name__),
            ("schedule", type(training.schedule).__name__),
            ("precision", training.precision),
            ("training blocks", f"{batches.block} tokens, break mode `{batches.break_mode}`"),
            ("seed", f"{state.seed}"),
            ("SHA-256 of the training text's token file", f"`{state.text}`"),
        ]
    if versions is not None:
        packages = ", ".join(
            f"{unquoted(name)} {unquoted(version)}"
            for name, version in versions.latest.packages.items()
        )
        rows.append(("made with", f"Python {unquoted(versions.latest.python)}, {packages}"))
    return f"## Training\n\n{_table(('', ''), rows)}"


def _measured(valid: Validation | None) -> str:
    """What was measured with these very weights, and its protocol."""
    if valid is None or valid.perplexity is None or valid.nats_per_word is None:
        return (
            "## Evaluation\n\nThe run recorded no evaluation of these weights. "
            "`zipflm evaluate RUN --text FILE` measures one and\nprints the protocol to quote.\n"
        )
    blocks = valid.blocks
    rows = [
        ("perplexity per word", f"{valid.perplexity:.4f}"),
        ("nats per word", f"{valid.nats_per_word:.6f}"),
        ("set", f"the run's own `{unquoted(valid.split)}` split"),
        ("scored", f"{valid.tokens:,} tokens, which are {valid.words:,} words, `</s>` included"),
        ("token", valid.token_unit),
        ("blocks", f"{blocks.block} tokens, {blocks.context} of them context, "
         f"break mode `{blocks.break_mode}`"),
        ("unknown words", "scored as `<unk>`, a word like any other"),
    ]  # fmt: skip
    return (
        "## Evaluation\n\nRecorded by the run when these weights were saved; nothing else was "
        f"measured.\n\n{_table(('', 'measured'), rows)}\n"
        "A perplexity means nothing without its protocol: other blocks, contexts, vocabularies or "
        "treatments of `<unk>`\nand line ends give other numbers.\n"
    )


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    cells = [head, ("---", "---"), *rows]
    return "".join(f"| {_cell(name)} | {_cell(value)} |\n" for name, value in cells)


def _cell(text: str) -> str:
    """On one line, and without a character that would end it."""
    return (text if text.isprintable() else quoted(text)).replace("|", "\\|")
