"""OpenMP spin counts on busy and idle machines."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/loadavg"), reason="needs Linux")

PROGRAM = """
import os, sys
from zipflm.cli import main
sys.argv = ["zipflm", "--version"]
try:
    main()
finally:
    print(os.environ.get("GOMP_SPINCOUNT"))
"""


def spin_count(**environment):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=inherited | environment, capture_output=True, text=True
    )
    return result.stdout.split()[-1]


def test_threads_do_not_spin_on_a_busy_machine():
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())
    ]
    try:
        assert spin_count() == "0"
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_keeps_the_setting_of_the_user():
    assert spin_count(GOMP_SPINCOUNT="77") == "77"
    assert spin_count(OMP_WAIT_POLICY="active") == "None"
