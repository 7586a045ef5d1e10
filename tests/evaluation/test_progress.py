import pytest

from zipflm.evaluation.progress import on_progress, progress_label, report_progress


def test_only_the_innermost_callback_is_called():
    outer, inner = [], []
    with on_progress(lambda *event: outer.append(event)):
        report_progress(1, 10)
        with on_progress(lambda *event: inner.append(event)), progress_label("inside"):
            report_progress(2, None)
        report_progress(3, 10)
    report_progress(4, 10)
    assert outer == [("scoring", 1, 10), ("scoring", 3, 10)] and inner == [("inside", 2, None)]


def test_a_callback_that_raises_is_removed():
    def fail(*_):
        raise KeyError

    with pytest.raises(KeyError), on_progress(fail):
        report_progress(1, 1)
    report_progress(1, 1)
