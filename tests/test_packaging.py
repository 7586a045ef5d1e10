"""README links, sdist, Dockerfile and citation."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import zipflm
import zipflm.cli
from zipflm.serving import server

ROOT = Path(__file__).parents[1]


def test_readme_links_are_absolute_and_exist():
    links = re.findall(r"\]\(([^)]*)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert all(link.startswith("https://") for link in links)
    ours = [re.match(r"https://[^/]*/zipflm/zipflm/(?:\w+/)?main/(.*)", link) for link in links]
    paths = [ROOT / link[1] for link in ours if link is not None]
    assert len(paths) > 10 and all(path.exists() for path in paths)


def test_sdist_has_every_tracked_file(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    tracked = set(listed.stdout.decode().split("\0")) - {""}
    for path in tracked:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    build = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert not tracked - packed


def test_dockerfile(monkeypatch):
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("#")]
    copied = [source for name, rest in lines if name == "COPY" for source in rest.split()[:-1]]
    assert "src" in copied and all((ROOT / source).exists() for source in copied)
    called = {}
    monkeypatch.setattr(server, "serve", lambda runs, **options: called.update(options, runs=runs))
    values = {name: rest for name, rest in lines}
    program, *arguments = json.loads(values["ENTRYPOINT"])
    result = CliRunner().invoke(zipflm.cli.app, [*arguments, "/runs/adp-t"])
    assert program == "zipflm" and result.exit_code == 0
    assert called["runs"] == ["/runs/adp-t"] and called["host"] == "0.0.0.0"
    assert str(called["port"]) == values["EXPOSE"]


def test_citation_has_the_current_version():
    assert f"\nversion: {zipflm.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_other_torch_versions_only_fail_on_runtime_warnings(tmp_path):
    """Each torch release adds warnings; ours are RuntimeWarnings."""
    (tmp_path / "test_it.py").write_text(
        "import warnings\n"
        "def test_theirs(): warnings.warn('new', FutureWarning, stacklevel=1)\n"
        "def test_ours(): warnings.warn('new', RuntimeWarning, stacklevel=1)\n"
    )
    arguments = ["-c", str(ROOT / "pyproject.toml"), "-p", "conftest", str(tmp_path)]
    code = (
        f"import sys, torch; torch.__version__ = '99.0'; sys.path.append({str(ROOT / 'tests')!r})\n"
        f"import pytest; pytest.main({arguments!r})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "1 failed, 1 passed" in result.stdout and "test_ours - RuntimeWarning" in result.stdout
