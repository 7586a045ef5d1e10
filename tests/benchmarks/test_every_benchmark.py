"""No script without a test that runs it."""

from pathlib import Path

from benchmark_scripts import FOLDER


def test_every_script_has_a_test():
    tests = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    assert {f"test_{script.name}" for script in FOLDER.glob("*.py")} == tests - {
        Path(__file__).name
    }
