"""Code blocks of docs/serving.md run against a real server."""

import inspect
import shlex
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from serving.services import Running
from shell_blocks import Block, blocks_of, require_shown_output, run_blocks
from typer.testing import CliRunner

import zipflm.cli
from zipflm.serving import server
from zipflm.serving.models import load_models

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def started(command, stack, folder, monkeypatch):
    """Start the server of a command in this process, on a free port."""
    given = {}
    with monkeypatch.context() as patch:
        patch.setattr(server, "serve", lambda runs, **options: given.update(options, runs=runs))
        arguments = shlex.split(command)[1:]
        result = CliRunner().invoke(zipflm.cli.app, arguments)
        assert result.exit_code == 0, result.output
    paths = [str(folder / run) for run in given["runs"]]
    models = load_models(paths, device=given["device"])
    return stack.enter_context(Running(models, given["limits"]))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_docs_page_runs_and_prints_what_it_shows(tmp_path, monkeypatch):
    blocks = blocks_of(PAGE.read_text(encoding="utf-8"))
    assert {block.language for block in blocks} >= {"bash", "python", ""}
    outputs, names, port = [], {}, 8000
    with ExitStack() as stack:
        for block in blocks:
            if block.code.startswith("zipflm serve"):
                port = started(block.code, stack, tmp_path, monkeypatch).port
                outputs.append("")
            else:
                code = block.code.replace(":8000", f":{port}")
                outputs += run_blocks([Block(block.language, code)], tmp_path, names)
    require_shown_output(blocks, outputs)


def test_docs_page_has_every_path_and_option(service):
    page = PAGE.read_text(encoding="utf-8")
    for path in service.client.get("/openapi.json").json()["paths"]:
        assert f"{path.replace('{name}', 'NAME')}`" in page, path
    for name in inspect.signature(zipflm.cli.serve.serve).parameters:
        option = "--" + name.replace("_", "-")
        assert name == "runs" or option in page, option
