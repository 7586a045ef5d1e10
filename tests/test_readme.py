"""What the README shows runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
# Sections that build on prepared data run with their commands, in the tests of those commands.
MODELS = README.split("## Data")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", MODELS, flags=re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_python_examples_run(code):
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout
