import sys

import pytest
from typer.testing import CliRunner

import zipflm.cli

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from zipflm.serving import server  # noqa: E402


def call(*arguments):
    return CliRunner().invoke(zipflm.cli.app, ["serve", *arguments])


def test_options_reach_the_server(monkeypatch):
    asked = {}
    monkeypatch.setattr(server, "serve", lambda runs, **options: asked.update(options, runs=runs))
    sizes = ["--max-batch-words", "7", "--max-words", "8", "--max-waiting", "9"]
    assert call("a", "b", *sizes, "--cors-origin", "x", "--cors-origin", "y").exit_code == 0
    assert asked["runs"] == ["a", "b"] and asked["host"] == "127.0.0.1" and asked["port"] == 8000
    limits = asked["limits"]
    assert (limits.max_batch_words, limits.max_words, limits.max_waiting) == (7, 8, 9)
    assert asked["origins"] == ["x", "y"] and asked["api_key_file"] is None


@pytest.mark.parametrize("missing", ["fastapi", "prometheus_client", "uvicorn"])
def test_what_is_not_installed_is_named_with_its_remedy(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    error = call("run").exception
    assert isinstance(error, ValueError)
    assert f"needs {missing}: pip install fastapi prometheus_client uvicorn" in str(error)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--api-key-file", "/nothing"], "/nothing"),
        (["--port", "0"], "no run with a checkpoint"),
    ],
)
def test_what_cannot_be_served_is_said(tmp_path, arguments, reason):
    result = call(str(tmp_path / "none"), *arguments)
    assert reason in str(result.exception)
