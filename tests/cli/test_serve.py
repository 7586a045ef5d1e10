import sys

import pytest
from typer.testing import CliRunner

import zipflm.cli

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from zipflm.serving import server  # noqa: E402


def call(*arguments):
    return CliRunner().invoke(zipflm.cli.app, ["serve", *arguments])


def test_options_reach_the_server(monkeypatch):
    called = {}
    monkeypatch.setattr(server, "serve", lambda runs, **options: called.update(options, runs=runs))
    sizes = ["--max-batch-tokens", "7", "--max-text-tokens", "8", "--max-waiting", "9"]
    assert call("a", "b", *sizes, "--cors-origin", "x", "--cors-origin", "y").exit_code == 0
    assert called["runs"] == ["a", "b"] and called["host"] == "127.0.0.1" and called["port"] == 8000
    limits = called["limits"]
    assert (limits.max_batch_tokens, limits.max_text_tokens, limits.max_waiting) == (7, 8, 9)
    assert called["origins"] == ["x", "y"] and called["api_key_file"] is None


@pytest.mark.parametrize(
    "origin",
    ["localhost:3000", "http://localhost:4000/", "foo", "http://A.org", ""],
)
def test_rejects_origins_that_browsers_do_not_send(origin):
    error = call("no such run", "--port", "0", "--cors-origin", origin).exception
    assert str(error).startswith(f"--cors-origin {origin}: not an origin; give scheme, host and")


@pytest.mark.parametrize("origin", ["*", "null", "https://a.org", "http://[::1]:3000", "tauri://a"])
def test_accepts_origins(origin):
    error = call("no such run", "--port", "0", "--cors-origin", origin).exception
    assert "no such run" in str(error)


@pytest.mark.parametrize("missing", ["fastapi", "prometheus_client", "uvicorn"])
def test_names_missing_packages(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    error = call("run").exception
    assert isinstance(error, ValueError)
    assert f"needs {missing}: pip install fastapi prometheus_client uvicorn" in str(error)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--api-key-file", "/nothing"], "/nothing"),
        (["--port", "0"], "no such folder"),
    ],
)
def test_rejects_missing_files(tmp_path, arguments, reason):
    result = call(str(tmp_path / "none"), *arguments)
    assert reason in str(result.exception)
