"""Compare output, files and exit status of every command on a toy corpus with a recording.

Numbers are compared to three digits; times, rates, memory and hashes are ignored. After an
intended change, record again:

    ZIPFLM_RECORD=1 pytest tests/test_command_goldens.py
"""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from fairseq_checkpoints import DICT, OLDEST

import zipflm.cli

RECORDING = Path(__file__).parent / "golden" / "commands.json"
SENTENCES = """the cat sat on the mat
the dog sat on the rug
the cat ran after the mouse
the dog ran after the cat
a mouse sat under the mat
a cat slept on the rug
the mouse ran under the rug
a dog slept under the tree
"""
NBEST = """id\ttext\tac
u1\tthe cat sat on the mat\t-3.5
u1\tthe cat sat on a mat\t-3.25
u2\ta dog slept on the rug\t-1.5
u2\ta dog slept under the rug\t-1.75
"""
REFERENCES = "u1 the cat sat on the mat\nu2 a dog slept on the rug\n"
COMMANDS = f"""
prepare train.txt --valid sentences.txt --test test.txt --min-count 1 --out data/words
prepare train.txt --valid sentences.txt --test test.txt --bpe 12 --out data/words/bpe
train toy/ADP-T --data data/words --out runs/a --device cpu
train toy/BPE-T --data data/words/bpe --out runs/b --device cpu training.epochs=4
train toy/ADP-T --data data/words --out runs/a --device cpu --resume training.max_updates=70
evaluate runs/a --data data/words --split test --json
evaluate runs/b --data data/words/bpe --split test --context 8 --json
evaluate runs/a --text sentences.txt
score runs/a sentences.txt
score runs/a sentences.txt --per line --log10
score runs/b sentences.txt --per total
score runs/a sentences.txt --json --top 2
generate runs/a --prompt "the cat" --temperature 0 --max-words 8
generate runs/a --prompt "the cat" --seed 3 --num 2 --json
rescore runs/a nbest.tsv --out rescored.tsv --weights lm=0.7,words=-0.2
rescore runs/a nbest.tsv --out tuned.tsv --reference references.txt
score runs/a sentences.txt > a.tsv
score runs/b sentences.txt > b.tsv
evaluate a.tsv b.tsv
memory build runs/a --data data/words --out store --max-keys 500
memory tune runs/a --data data/words --memory store,k=64 --memory cache:20
evaluate runs/a --data data/words --memory store --memory cache:20 --json
score runs/a sentences.txt --lines running --memory cache:20,weight=0.3 --per line
generate runs/a --prompt "the cat" --temperature 0 --max-words 8 --memory cache:20,weight=0.5
rescore runs/a nbest.tsv --out remembered.tsv --memory cache:20
memory build runs/b --data data/words/bpe --out store
compare --data data/words --preset toy --factorizations SM,ADP-T,BPE --out study --device cpu
compare --data data/words --preset toy --factorizations SM,ADP-T,BPE --out study --dry-run
report study --data data/words --out drawn
report runs/a --data data/words --out contexts --context-sizes 0,4
report runs/a runs/b --curves curves.png
info
info toy/ADP-T
info toy
info --data data/words --dim 32
export runs/a hf
import hf runs/back
import {OLDEST} runs/fairseq --dict {DICT}
evaluate runs/none --data data/words
train toy/ADPT --data data/words --out runs/x
score runs/a missing.txt
""".strip().splitlines()
MEASURED = re.compile(
    r"""
    (?<![\w.])(?=[0-9a-f]*[a-f])[0-9a-f]{12,}\b          # hashes, not long numbers
    | \d[\d.,:]*\ ?(?:ms|s|seconds|minutes|GiB|MiB|KiB|MB|kB)\b
    | [\d.,]+\ (?:tokens|words)/s
    | (?<=left\ )[\d:]+
    """,
    re.VERBOSE,
)
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def run(command, monkeypatch, capsys):
    command, _, file = command.partition(" > ")
    monkeypatch.setattr("sys.argv", ["zipflm", *shlex.split(command)])
    status = 0
    try:
        zipflm.cli.main()
    except SystemExit as exit:
        status = exit.code or 0
    output = capsys.readouterr()
    if file:
        Path(file).write_text(output.out)
    return {"status": status, "out": lines_of(output.out), "errors": lines_of(output.err)}


def lines_of(text):
    text = text.replace(str(OLDEST.parents[1]), "GOLDEN")
    lines = [re.sub(" +", " ", MEASURED.sub("#", line)).strip() for line in text.splitlines()]
    return [re.sub("# [0-9,]+ #", "# # #", line) for line in lines]  # rates in tables


def without_measures(record):
    """Drop lines that depend on the machine, and the progress of studies."""
    kept = [
        line
        for key in ("out", "errors")
        for line in record[key]
        if not re.search(r"second|speed|memory|time |CPU|/s|^\[|warning: other processes", line)
    ]
    return record["status"], kept


def assert_equal_to_three_digits(found, expected):
    assert NUMBER.sub("N", found) == NUMBER.sub("N", expected)
    for ours, theirs in zip(NUMBER.findall(found), NUMBER.findall(expected), strict=True):
        ours, theirs = (float(text.replace(",", "")) for text in (ours, theirs))
        assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-3), (found, expected)


def test_commands_match_the_recording(tmp_path, one_thread_of_a_cpu, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    Path("sentences.txt").write_text(SENTENCES)
    Path("train.txt").write_text(SENTENCES * 50)
    parts = [SENTENCES.splitlines(keepends=True)[-number:] for number in (2, 5, 3, 4) * 5]
    Path("test.txt").write_text("".join(line for part in parts for line in part))
    Path("nbest.tsv").write_text(NBEST)
    Path("references.txt").write_text(REFERENCES)
    found = {
        command.replace(str(OLDEST.parents[1]), "GOLDEN"): run(command, monkeypatch, capsys)
        for command in COMMANDS
    }
    hidden = re.compile(r"\.verified|events|output-0")
    files = sorted(str(path) for path in Path().rglob("*") if path.is_file())
    recorded = {"commands": found, "files": [name for name in files if not hidden.search(name)]}
    if "ZIPFLM_RECORD" in os.environ:
        RECORDING.write_text(json.dumps(recorded, indent=1) + "\n")
    expected = json.loads(RECORDING.read_text())
    assert recorded["files"] == expected["files"]
    assert [*found] == [*expected["commands"]]
    for command, record in found.items():
        status, lines = without_measures(record)
        old_status, old_lines = without_measures(expected["commands"][command])
        assert (command, status, len(lines)) == (command, old_status, len(old_lines)), lines
        for ours, theirs in zip(lines, old_lines, strict=True):
            assert_equal_to_three_digits(ours, theirs)
