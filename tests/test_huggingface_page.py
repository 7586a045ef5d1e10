"""The page on Hugging Face's tools runs from top to bottom and prints what it shows."""

from pathlib import Path

import pytest
from shell_blocks import blocks_of, require_shown_output, run_blocks
from transformers.utils import logging

PAGE = Path(__file__).parents[1] / "docs" / "huggingface.md"


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom_and_prints_what_it_shows(tmp_path, one_thread_of_a_cpu):
    # Blocks of `sh` need more than these tests have; they are run where it is there.
    blocks = [b for b in blocks_of(PAGE.read_text(encoding="utf-8")) if b.language != "sh"]
    assert {block.language for block in blocks} == {"bash", "python", "text", ""}
    logging.disable_progress_bar()
    try:
        require_shown_output(blocks, run_blocks(blocks, tmp_path))
    finally:
        logging.enable_progress_bar()
