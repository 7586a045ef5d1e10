"""Build hook for mkdocs: generate the reference pages for commands and settings."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

import zipflm.cli
from zipflm.config import Config
from zipflm.field_help import as_override, describe_type, field_docs, field_types, kinds_of


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    files.append(File.generated(config, "reference/settings.md", content=settings_page()))
    return files


def commands_page() -> str:
    app = get_command(zipflm.cli.app)
    lines = ["# Commands", "", "Every command and option, as `--help` shows them.", ""]
    lines += ["| command | |", "| --- | --- |"]
    found = list(_commands(app, "zipflm"))
    for path, command in found:
        summary = (command.help or "").partition("\n\n")[0].replace("\n", " ")
        anchor = path.replace(" ", "-")
        lines.append(f"| [`{path}`](#{anchor}) | {summary} |")
    for path, command in found:
        lines += ["", f"## `{path}`", "", command.help or "", ""]
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        shown = " ".join(_placeholder(each) for each in arguments)
        lines += ["```text", f"{path} {shown} [OPTIONS]".replace("  ", " "), "```", ""]
        rows = [(f"`{_placeholder(each)}`", "", each.help) for each in arguments]
        rows += [_option(each) for each in command.params if each not in arguments]
        lines += _table(("argument or option", "default", "description"), rows)
        examples = [line for line in (command.epilog or "").split("\n\n")[1:] if line]
        if examples:
            lines += ["", "```sh", *examples, "```"]
    return "\n".join(lines) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _placeholder(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _option(param: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.required:
        return names, "required", param.help
    is_shown = param.default not in (None, False, (), [])
    return names, f"`{param.default}`" if is_shown else "", param.help


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(titles) + " |", "| --- " * len(titles) + "|"]
    return lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]


def _cell(text: str | None) -> str:
    text = (text or "").replace("|", "\\|").replace("\n", " ")
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", text)


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Every setting of a model and its training. A preset fills them in; `zipflm info PRESET`",
        "prints the values. Change one with `KEY=VALUE` on the command line of `zipflm train` and",
        "`zipflm compare`, with a file of such lines (`@my.cfg`), or with a dict in Python.",
        "A setting without a default is set by every preset. Section numbers are the paper's.",
    ]
    return "\n".join([*lines, *_settings(Config, "")]) + "\n"


def _settings(cls: Any, where: str) -> list[str]:
    helps, hints = field_docs(cls), field_types(cls)
    rows, sections = [], []
    for field in fields(cls):
        key, hint = where + field.name, hints[field.name]
        kinds = kinds_of(hint)
        if kinds:
            rows.append((f"`{key}`", "", " or ".join(kinds), helps.get(field.name, "")))
            for name, kind in kinds.items():
                sections += ["", f"## {key}={name}", "", _summary(kind)]
                sections += _settings(kind, f"{key}.")
        elif is_dataclass(hint):
            sections += ["", f"## {key}", "", _summary(hint), *_settings(hint, f"{key}.")]
        else:
            default = "" if field.default is MISSING else f"`{as_override(field.default)}`"
            rows.append((f"`{key}`", default, describe_type(hint), helps.get(field.name, "")))
    return ["", *_table(("key", "default", "value", "description"), rows), *sections]


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").partition("\n\n")[0].strip()
