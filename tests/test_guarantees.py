import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "guarantees.md"


def test_every_promise_names_tests_that_exist():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    promises = [row for row in rows[2:] if not row.startswith("| **")]
    assert len(promises) > 20
    for row in promises:
        files = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert files and all((ROOT / file).is_file() for file in files), row
