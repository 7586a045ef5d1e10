"""The scripts in `benchmarks/` as modules: they are no package, and are run by their path."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the types of their fields
    sys.path.insert(0, str(FOLDER))  # scripts import each other
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
