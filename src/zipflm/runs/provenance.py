"""Record the versions of Python and packages, and the commit if zipflm runs from a checkout."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

from zipflm import __version__
from zipflm.data.folder import DataFolder
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.records import Origin, Provenance

_PACKAGE = Path(__file__).parents[1] / "__init__.py"
_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "triton")


def provenance(data: DataFolder, device: str = "") -> Provenance:
    """Return the provenance of a run that starts now."""
    return Provenance(
        python=platform.python_version(),
        packages=dict(_versions()),
        commit=commit(_PACKAGE),
        vocabulary=data.vocabulary.hash,
        text=data.split("train").sha256,
        splitting=data.splitting,
        data=str(data.path.resolve()),
        device=device,
    )


def origin_of(checkpoint: Checkpoint) -> Origin:
    run = checkpoint.path.resolve().parent.parent
    return Origin(run=str(run), checkpoint=checkpoint.name, weights=checkpoint.weights_hash)


def _versions() -> list[tuple[str, str]]:
    found = [("zipflm", __version__)]  # works even if it is not installed
    for name in _PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(package: Path) -> str | None:
    """Return the commit of the checkout that contains `package`, or None if it is installed.

    `package` is the path of `src/zipflm/__init__.py`. git must track it under this path, so an
    installed package inside another repository does not count.
    """
    root = package.resolve().parents[2]
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return None
    if _git(root, "ls-files", "--error-unmatch", str(package.resolve())) is None:
        return None
    return _git(root, "rev-parse", "HEAD")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
