import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from zipflm.training import signals
from zipflm.training.signals import StopSignal

BOTH = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def seen():
    """Custom handlers that record signals."""
    arrived = []
    before = {
        number: signal.signal(number, lambda n, _: arrived.append(signal.Signals(n)))
        for number in BOTH
    }
    yield arrived
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", BOTH)
def test_handles_the_first_signal_and_passes_on_the_second(seen, number):
    with StopSignal() as stop:
        stop.arm()
        assert not stop.is_requested
        signal.raise_signal(number)
        assert stop.is_requested and seen == []
        for second in BOTH:  # of the same kind or the other
            signal.raise_signal(second)
    assert seen == [*BOTH]


def test_restores_handlers_after_an_error(seen):
    before = [signal.getsignal(number) for number in BOTH]
    with pytest.raises(KeyError), StopSignal() as stop:
        stop.arm()
        assert [signal.getsignal(number) for number in BOTH] != before
        raise KeyError
    assert [signal.getsignal(number) for number in BOTH] == before


def test_does_nothing_outside_the_main_thread(seen):
    before, requests = [signal.getsignal(number) for number in BOTH], []

    def work():
        with StopSignal() as stop:
            requests.append(stop.is_requested)
            assert [signal.getsignal(number) for number in BOTH] == before

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert requests == [False]


def test_prints_one_message(seen, capfd):
    with StopSignal() as stop:
        stop.arm()
        signal.raise_signal(signal.SIGINT)
        message = capfd.readouterr().err
        assert stop.is_requested and message.count("\n") == 1
        assert "stopping after this update" in message
        signal.raise_signal(signal.SIGINT)
    with StopSignal(is_alone=False) as stop:
        stop.arm()
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""


def test_ignores_signals_forwarded_by_torchrun(seen, monkeypatch):
    """Only a later Ctrl-C ends the process."""
    exits = []
    monkeypatch.setattr(signals, "_exit_now", lambda number, frame: exits.append(number))
    with StopSignal(is_alone=False) as stop:
        signal.raise_signal(signal.SIGTERM)
        for number in (*BOTH, *BOTH):
            signal.raise_signal(number)
        assert stop.is_requested and exits == [] and seen == []
        monkeypatch.setattr(signals, "_ECHO", 0.0)
        signal.raise_signal(signal.SIGTERM)
        assert exits == []
        signal.raise_signal(signal.SIGINT)
        assert exits == [signal.SIGINT] and seen == []
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


PROGRAM = """
import signal, sys
from itertools import repeat
from zipflm.training.signals import StopSignal
{before}
with StopSignal() as stop:
    if {armed}:
        stop.arm()
    print("ready", flush=True)
    sum(repeat(1, {steps}))  # Python handlers cannot run during this call
    print(stop.is_requested)
"""


@contextmanager
def started(armed=True, before="", steps=10**13):
    code = [sys.executable, "-c", PROGRAM.format(armed=armed, before=before, steps=steps)]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", BOTH)
def test_a_second_signal_ends_the_program_during_a_kernel(number):
    with started() as process:
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(number)
        assert process.wait(20) == -number


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN)"])
def test_the_first_signal_ends_the_program_before_arm(number, before):
    with started(armed=False, before=before) as process:
        process.send_signal(number)
        assert process.wait(20) == -number


def test_an_interactive_session_survives_two_signals():
    before = "sys.ps1 = '>>> '; signal.signal(signal.SIGINT, lambda *_: None)"
    with started(before=before, steps=10**8) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "True\n" and process.returncode == 0
