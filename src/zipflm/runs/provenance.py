"""Record the provenance of a run: versions of Python and packages, the commit if zipflm runs from a
git checkout, the data and the device."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from zipflm import __version__
from zipflm.data.folder import DataFolder
from zipflm.runs.records import Provenance

_PACKAGE = Path(__file__).parents[1]
_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "triton")


def provenance(data: DataFolder, device: str) -> Provenance:
    """Return the provenance of a run that starts or resumes now."""
    return Provenance(
        python=platform.python_version(),
        packages=_versions(),
        commit=commit(_PACKAGE),
        vocabulary=data.vocabulary.hash,
        text=data.split("train").sha256,
        splitting=data.splitting,
        data=str(data.path.resolve()),
        device=device,
    )


def _versions() -> dict[str, str]:
    versions = {"zipflm": __version__}  # known even if the package is not installed
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def commit(package: Path) -> str | None:
    """Return the commit of the git checkout that contains the folder `package`, or None if git does
    not track the folder."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None
