"""The blocks of every page run in order and print what the page shows; the site builds."""

import itertools
import re
import shlex
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from serving.services import Running
from shell_blocks import Block, blocks_of, require_shown_output, run_blocks
from toy_run import PAGE
from typer.main import get_command
from typer.testing import CliRunner

import zipflm.cli
from zipflm.serving import server
from zipflm.serving.models import load_models

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted({*DOCS.rglob("*.md")} - {*DOCS.rglob("results/**/*.md"), PAGE}),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
RUN = {"bash", "python", ""}
NOT_RUN = {"bibtex", "console", "json", "sh", "text"}  # needs a GPU, a network, other machines
SMALLER = {"docs/guides/items.md": ("500_000, 128, 100", "300, 64, 60")}
SLOW = {name for name in NAMES if name.startswith("docs/guides/")}


@pytest.mark.parametrize("page", [PAGE, *PAGES], ids=["docs/getting-started.md", *NAMES])
def test_blocks_are_fenced_for_the_tests(page):
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    assert len(re.findall(r"^\s*```", text, flags=re.M)) == 2 * len(blocks)  # no indented fences
    assert {block.language for block in blocks} <= RUN | NOT_RUN
    assert not any("pip install" in block.code for block in blocks if block.language in RUN)


def test_getting_started_prints_what_it_shows(toy_run):
    require_shown_output(toy_run.blocks, toy_run.outputs)


@pytest.mark.filterwarnings(  # torch.export's
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:The given buffer is not writable:UserWarning",
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES]
)
def test_page_prints_what_it_shows(name, toy_run, tmp_path, one_thread_of_a_cpu, monkeypatch):
    text = (ROOT / name).read_text(encoding="utf-8").replace(*SMALLER.get(name, ("", "")))
    blocks = [block for block in blocks_of(text) if block.language in RUN]
    if not blocks:
        return
    toy_run.copy(tmp_path)
    outputs, names, port = [], {}, 8000
    with ExitStack() as stack:
        for block in blocks:
            if block.code.startswith("zipflm serve"):
                port = stack.enter_context(_server(block.code, tmp_path, monkeypatch)).port
                outputs.append("")
            else:
                code = block.code.replace(":8000", f":{port}")
                outputs += run_blocks([Block(block.language, code)], tmp_path, names)
    require_shown_output(blocks, outputs)


@pytest.mark.parametrize("page", [PAGE, *PAGES], ids=["docs/getting-started.md", *NAMES])
def test_commands_that_do_not_run_have_valid_options(page):
    for block in blocks_of(page.read_text(encoding="utf-8")):
        code = block.code.replace("\\\n", "") if block.language in NOT_RUN else ""
        for line in re.findall(r"\bzipflm ([a-z].*)", code):
            words = itertools.takewhile(
                lambda word: word not in "|>&", shlex.split(line, comments=True)
            )
            command, name, *arguments = get_command(zipflm.cli.app), *words
            if name == "memory":
                command, name, *arguments = command.commands[name], *arguments
            command.commands[name].make_context(name, arguments)


def _server(command, folder, monkeypatch):
    """The server that a command would start, in this process and on a free port."""
    given = {}
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(server, "serve", lambda runs, **options: given.update(options, runs=runs))
        result = CliRunner().invoke(zipflm.cli.app, shlex.split(command, comments=True)[1:])
        assert result.exit_code == 0, result.output
        models = load_models(given["runs"], device=given["device"])
    return Running(models, given["limits"])


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 700


def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    # Not --quiet, which would hide warnings from --strict.
    command = f"mkdocs build --strict --config-file {ROOT}/mkdocs.yml --site-dir {tmp_path}"
    run_blocks([Block("bash", command)], tmp_path)
    assert "zipflm prepare" in (tmp_path / "reference/commands/index.html").read_text()
    assert "decoder.num_layers" in (tmp_path / "reference/settings/index.html").read_text()


def test_failing_commands_are_noticed(tmp_path):
    with pytest.raises(AssertionError, match="first line"):
        run_blocks([Block("bash", "echo first line\nfalse\necho not here")], tmp_path)
    with pytest.raises(AssertionError, match="nothing"):
        run_blocks([Block("bash", "zipflm evaluate nothing --text x | cat")], tmp_path)


@pytest.mark.parametrize(
    ("shown", "is_true"),
    [
        ("a word  -1.53", True),
        ("a word -1.73", False),
        ("a word", False),
        ("another word -1.53", False),
    ],
)
def test_output_that_was_not_printed_is_noticed(tmp_path, shown, is_true):
    blocks = blocks_of(f"```bash\necho A WORD -1.53 | tr A-Z a-z\n```\n\n```\n{shown}\n```\n")
    outputs = run_blocks(blocks, tmp_path)
    with nullcontext() if is_true else pytest.raises(AssertionError, match="not printed"):
        require_shown_output(blocks, outputs)
