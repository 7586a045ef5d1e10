"""runs/wikitext_format.py turns extracted Wikipedia text into the format of WikiText."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "runs" / "wikitext_format.py"
EXTRACTED = """
 = Ann Lee =

 Ann B . Lee didn ' t leave St . Louis . She was No . 1 . . . then .
 Life .
 Early life .
 She took vitamin C every day and worked at night , writing plan C .
 External links .
"""
WIKITEXT = """
 = Ann Lee =

 Ann B. Lee didn 't leave St. Louis . She was No. 1 ... then .

 = = Life = =


 = = = Early life = = =

 She took vitamin C every day and worked at night , writing plan C .
"""


def test_rewrites_headings_abbreviations_and_contractions(tmp_path):
    (tmp_path / "dict.txt").write_text("St. 11336\n't 30733\nNo. 13015\nLouis. 3\n")
    (tmp_path / "in").write_text(EXTRACTED)
    command = [sys.executable, SCRIPT, tmp_path / "dict.txt", tmp_path / "in", tmp_path / "out"]
    subprocess.run(command, check=True)
    lines = (tmp_path / "out").read_text().splitlines()
    assert [line.split() for line in lines] == [line.split() for line in WIKITEXT.splitlines()]
