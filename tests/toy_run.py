"""The data and the run that docs/getting-started.md makes and every other page uses."""

import shutil
from pathlib import Path

from fairseq_checkpoints import DICT, OLDEST
from shell_blocks import blocks_of, run_blocks

PAGE = Path(__file__).parents[1] / "docs" / "getting-started.md"


class ToyRun:
    """A folder with data/union, runs/adp-t and article.txt, and the output of the page."""

    def __init__(self, folder):
        self.folder = folder
        self.blocks = blocks_of(PAGE.read_text(encoding="utf-8"))
        self.outputs = run_blocks(self.blocks, folder)

    def copy(self, folder):
        """Fill a folder for another page, with a model of fairseq's as if it was downloaded."""
        for name in ("data/union", "runs/adp-t"):
            shutil.copytree(self.folder / name, folder / name)
        shutil.copy(self.folder / "article.txt", folder)
        published = folder / "adaptive_lm_wiki103"
        published.mkdir()
        shutil.copy(OLDEST, published / "model.pt")
        shutil.copy(DICT, published / "dict.txt")
