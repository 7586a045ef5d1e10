"""The model of docs/items.md, as printed there, at toy size."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "items.md"


def test_the_thirty_lines_run_and_learn():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 30
    small = code.replace("500_000, 128, 100", "300, 64, 60")
    assert small != code
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(small, str(PAGE), "exec"), {"__name__": "items"})
    loss = float(said.getvalue().split("loss")[1])
    assert loss < 4.0  # popularity alone has 4.4; every second item can be known
