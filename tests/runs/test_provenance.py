import shutil
import subprocess
from pathlib import Path

import pytest

import zipflm
from zipflm.runs.provenance import commit, provenance


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path):
    """A checkout with the layout of this project."""
    package = tmp_path / "src" / "zipflm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    return tmp_path


def test_a_checkout_has_a_commit(project):
    found = commit(project / "src" / "zipflm")
    assert found == git(project, "rev-parse", "HEAD")


def test_an_installed_package_has_no_commit(project):
    installed = project / "venv" / "lib" / "site-packages" / "zipflm"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    assert commit(installed) is None


def test_no_commit_without_git(project, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert commit(project / "src" / "zipflm") is None


def test_provenance_lists_packages_vocabulary_and_text(word_data):
    found = provenance(word_data, "cpu")
    assert found.packages["zipflm"] == zipflm.__version__
    assert (found.text, found.vocabulary) == (
        word_data.split("train").sha256,
        word_data.vocabulary.hash,
    )
    assert Path(found.data).is_dir() and shutil.which("git")
