"""The command line: one table of commands, each a thin call of one library function.

Everything heavy is imported inside the command, so that `--help` is instant. A `ValueError` or
`OSError` from the library is the user's to mend: one line on stderr, exit status 2, no traceback.

Other exit statuses: 1 if a study is complete but for members that failed, which a line on stderr
names; 130 if a signal stopped training or a study and the same command would go on with it.
"""

from __future__ import annotations

import os
import sys

# Importing a module of commands registers them with the app.
from zipflm.cli import bands, exchange, making, measuring, rescoring, serving, using
from zipflm.cli.common import app, complain

__all__ = [
    "app",
    "bands",
    "exchange",
    "main",
    "making",
    "measuring",
    "rescoring",
    "serving",
    "using",
]


def main() -> None:
    """Entry point of the console script."""
    _open_missing_streams()
    try:
        app()
    except (ValueError, OSError) as error:
        complain(str(error))
        sys.exit(2)
    except OverflowError as error:  # a number that nothing has refused before
        complain(f"a number is too large to compute with ({error}); give smaller ones")
        sys.exit(2)


def _open_missing_streams() -> None:
    """Whoever closed a stream (`<&-`, `>&-`) has nothing to say, or wants to hear nothing."""
    sys.stdin = sys.stdin or open(os.devnull)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
