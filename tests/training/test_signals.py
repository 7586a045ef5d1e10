import signal
import threading

import pytest

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
            stop.arm()
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
        assert stop.is_requested and message.count("\n") == 2
        assert "stopping after this update" in message
        signal.raise_signal(signal.SIGINT)
    with StopSignal(is_single_process=False) as stop:
        stop.arm()
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""


def test_ignores_signals_forwarded_by_torchrun(seen):
    with StopSignal(is_single_process=False) as stop:
        for number in (*BOTH, *BOTH):
            signal.raise_signal(number)
        assert stop.is_requested and seen == []
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


@pytest.mark.parametrize("number", BOTH)
def test_signals_have_their_usual_effect_before_arm(seen, number):
    with StopSignal() as stop:
        signal.raise_signal(number)
        assert not stop.is_requested and seen == [number]
