import re
import threading

from zipflm.serving.metrics import Metrics

LINE = re.compile(
    r"# (HELP|TYPE) \w+ .+|[a-z_]+(\{(\w+=\"[^\"\\]*\",?)+\})? (\d+(\.\d+)?(e[-+]\d+)?|\+Inf)"
)


def test_every_line_is_prometheus_text():
    metrics = Metrics()
    metrics.request("/score", 200, 0.003)
    metrics.batch("score", 7)
    metrics.words("scored", 5)
    text = metrics.text({"zipflm_requests_waiting": (3, "Waiting.")})
    assert text.endswith("\n")
    for line in text.splitlines():
        assert LINE.fullmatch(line), line
    assert "zipflm_requests_waiting 3" in text


def test_buckets_add_up():
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.02, 100):
        metrics.request("/", 200, seconds)
    text = metrics.text({})
    for bound, number in (("0.001", 2), ("0.01", 2), ("0.025", 3), ("30", 3), ("+Inf", 4)):
        assert f'zipflm_request_seconds_bucket{{path="/",le="{bound}"}} {number}\n' in text
    assert 'zipflm_request_seconds_count{path="/"} 4' in text


def test_threads_may_count_together():
    metrics = Metrics()
    threads = [
        threading.Thread(target=lambda: [metrics.words("scored", 1) for _ in range(1000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 'zipflm_words_total{kind="scored"} 4000' in metrics.text({})
