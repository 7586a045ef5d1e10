"""Allowed imports between the parts of the package (docs/development/architecture.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import zipflm

ROOT = Path(zipflm.__file__).parent

# The longest matching prefix applies. A part can always import itself.
ALLOWED = {
    "__init__": {"__all__"},
    "__main__": {"cli"},
    "cli": {"__all__"},
    "api": {"__all__"},
    "messages": set(),
    "storage": {"settings"},
    "field_help": set(),
    "settings": {"field_help", "messages", "storage"},
    "units": set(),
    "config": {"model.bands", "messages"},
    "presets": {"config", "settings"},
    "kernels": set(),
    "model": {"config", "kernels"},
    "model.bands": {"model.band_search", "messages"},
    "model.band_search": {"model.bands"},
    "data": {"config", "model.inputs", "messages", "settings", "storage"},
    "data.vocabulary": set(),
    "runs": {"model", "data", "config", "messages", "settings", "storage", "units"},
    "memory": {"runs.load", "data.vocabulary", "config", "settings", "storage"},
    "memory.building": {"memory", "evaluation", "runs.load", "model.precision"}
    | {"data.batches", "data.folder", "data.vocabulary", "settings", "storage"},
    "memory.tuning": {"memory", "evaluation", "runs.load", "data.folder", "settings", "units"},
    "distributed": {"messages", "storage"},
    "evaluation": {"memory", "runs", "model", "data", "distributed", "config", "storage", "units"},
    "language": {"memory", "evaluation", "runs", "model", "data", "config", "interop.huggingface"}
    | {"messages", "settings", "storage", "units"},
    "training": {"runs", "model", "data", "distributed", "config", "field_help"}
    | {"messages", "settings"},
    "studies": {"training", "evaluation", "memory.specs", "runs", "data", "config", "presets"}
    | {"distributed", "messages", "settings", "storage", "units"},
    "studies.paper": set(),
    "serving": {"language", "evaluation.documents", "runs.records", "data"} | {"messages", "units"},
    "interop": {"runs", "model", "config", "data.vocabulary", "data.bpe", "messages"},
    "interop.huggingface": {"runs", "model", "config", "data", "presets"}
    | {"messages", "settings", "storage"},
}
MODULES = sorted(ROOT.rglob("*.py"))


def part_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "zipflm":
            for name in node.names:
                yield f"{node.module}.{name.name}"
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "zipflm")


def rule_of(part):
    prefixes = [key for key in ALLOWED if part == key or part.startswith(key + ".")]
    assert prefixes, f"{part} is in no row of the import table"
    return max(prefixes, key=len)


def fits(name, permissions):
    return any(name == key or name.startswith(key + ".") for key in permissions)


def test_modules_only_import_allowed_parts():
    forbidden = []
    for path in MODULES:
        rule = rule_of(part_of(path))
        allowed = ALLOWED[rule] | {rule.split(".")[0] if rule in ("model", "data") else rule}
        names = {name.removeprefix("zipflm").removeprefix(".") for name in imports_of(path)}
        if "__all__" not in allowed:
            wrong = {name for name in names - {"__version__"} if not fits(name, allowed)}
            forbidden += [f"{part_of(path)} imports {name}" for name in wrong]
    assert not forbidden


def test_every_permission_is_used():
    used = {rule: set() for rule in ALLOWED}
    for path in MODULES:
        names = (name.removeprefix("zipflm.") for name in imports_of(path))
        used[rule_of(part_of(path))].update(names)
    assert not [
        f"{rule} may import {permission}"
        for rule, permissions in ALLOWED.items()
        for permission in permissions - {"__all__"}
        if not any(fits(name, [permission]) for name in used[rule])
    ]


def test_config_only_needs_the_standard_library():
    code = "import sys, zipflm.config; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_scoring_does_not_import_distributed_training():
    """It takes torch nearly a second to import."""
    code = "import sys, zipflm.evaluation.evaluate, zipflm.distributed.processes\n"
    code += "print({'torch.distributed.tensor', 'torch._dynamo'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_adaptive_layers_only_need_torch():
    blocked = ["numpy", "typer", "rich", "matplotlib", "safetensors", "tokenizers", "pydantic"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import warnings; warnings.simplefilter('ignore')\n"  # torch warns without numpy
        "import torch, zipflm\n"
        "bands = zipflm.Bands(100, (10,), 8)\n"
        "pair = zipflm.AdaptiveEmbedding(bands), zipflm.AdaptiveSoftmax(bands)\n"
        "print(pair[1](pair[0](torch.tensor([5, 50])), torch.tensor([5, 50])).shape)\n"
        "print(pair[1].predict(torch.randn(2, 8)).shape)\n"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed == "torch.Size([])\ntorch.Size([2])\n"


def test_public_names_exist_and_are_sorted():
    assert list(zipflm.__all__) == sorted(zipflm.__all__)
    for name in zipflm.__all__:
        assert getattr(zipflm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = zipflm.nonsense
