"""The model thread: batches, queue and disconnects."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from serving.services import Running, slowed

from zipflm.language.decoding import TextDecoder, TextInProgress
from zipflm.language.engine import Engine
from zipflm.language.next_words import most_likely_words_at
from zipflm.serving.worker import Limits


@pytest.fixture
def held(monkeypatch):
    """An event; scoring waits until it is set."""
    gate, score = threading.Event(), Engine.start_scoring
    batches = []

    def wait_and_score(engine, documents):
        assert gate.wait(60)
        batches.append([len(each.ids) for each in documents])
        return score(engine, documents)

    monkeypatch.setattr(Engine, "start_scoring", wait_and_score)
    gate.batches = batches
    yield gate
    gate.set()


def test_waiting_requests_are_batched(models, held):
    with Running(models, Limits(max_batch_tokens=12)) as service, ThreadPoolExecutor(9) as pool:
        first = pool.submit(service.score, "ba")
        service.until(lambda: service.worker.num_active == 1 and not service.worker.num_waiting)
        others = [pool.submit(service.score, "ba be bu") for _ in range(8)]  # 4 words each
        service.until(lambda: service.worker.num_waiting == 8)
        held.set()
        answers = [each.result() for each in (first, *others)]
    assert held.batches == [[2], [4, 4, 4], [4, 4, 4], [4, 4]]
    logprobs = [answer["texts"][0]["logprob"] for answer in answers[1:]]
    assert logprobs == pytest.approx([logprobs[0]] * 8)


def test_requests_take_turns(models, held):
    with Running(models, Limits(max_batch_tokens=12)) as service, ThreadPoolExecutor(3) as pool:
        pool.submit(service.score, "ba")
        service.until(lambda: service.worker.num_active == 1 and not service.worker.num_waiting)
        for count, text in ((1, ["ba be bu"] * 4), (2, "be")):
            pool.submit(service.score, text)
            service.until(lambda count=count: service.worker.num_waiting == count)
        held.set()
    assert held.batches == [[2], [4, 2, 4], [4, 4]]


def test_large_request_leaves_room_for_others(models, monkeypatch):
    slowed(monkeypatch, 0.02)
    # 16 texts of 16 positions fit into a batch.
    with Running(models, Limits(max_batch_tokens=256)) as service, ThreadPoolExecutor(2) as pool:
        large = pool.submit(service.complete, "ba", n=28, max_tokens=40, lines=0)
        service.until(lambda: service.worker.num_generating == 12)
        assert service.worker.num_waiting == 1
        pool.submit(service.complete, "be", n=4, max_tokens=40, lines=0)
        service.until(lambda: service.worker.num_generating == 15)
        assert not large.done()


def test_searches_take_turns(models, held, monkeypatch):
    searched = []

    def recorded(engine, reader, ids, *arguments):
        searched.append(len(ids))
        return most_likely_words_at(engine, reader, ids, *arguments)

    monkeypatch.setattr("zipflm.serving.worker.most_likely_words_at", recorded)
    with Running({"pieces": models["pieces"]}) as service, ThreadPoolExecutor(2) as pool:
        pool.submit(service.score, ["ba"] * 5, top=1)
        service.until(lambda: service.worker.num_active == 1 and not service.worker.num_waiting)
        other = pool.submit(service.score, "be bu fila", top=1)
        service.until(lambda: service.worker.num_waiting == 1)
        held.set()
        long = len(models["pieces"].reader.text("be bu fila").ids)
        other.result()
    assert searched.index(long) < 5


def test_full_queue_returns_429(models, held):
    with Running(models, Limits(max_waiting=2)) as service, ThreadPoolExecutor(3) as pool:
        pool.submit(service.score, "ba")
        service.until(lambda: service.worker.num_active == 1 and not service.worker.num_waiting)
        waiting = [pool.submit(service.score, "be") for _ in range(2)]
        service.until(lambda: service.worker.num_waiting == 2)
        for path, fields in (("/score", {"text": "bu"}), ("/v1/completions", {"prompt": "bu"})):
            refused = service.post(path, **fields)
            assert refused.status_code == 429
            assert refused.headers["Retry-After"] == "1"
            assert refused.json()["error"]["code"] == "queue_full"
        held.set()
        assert all(each.result()["texts"] for each in waiting)
        assert service.score("bu")["texts"]


def test_disconnect_frees_the_queue(models, held):
    with Running(models, Limits(max_waiting=1)) as service, ThreadPoolExecutor(2) as pool:
        first = pool.submit(service.score, "ba")
        service.until(lambda: service.worker.num_active == 1 and not service.worker.num_waiting)
        with closing(service.begin("/score", {"text": "be be"})):
            service.until(lambda: service.worker.num_waiting == 1)
        service.until(lambda: service.worker.num_waiting == 0)
        last = pool.submit(service.score, "bu")
        service.until(lambda: service.worker.num_waiting == 1)
        held.set()
        assert first.result()["texts"] and last.result()["texts"]
        assert held.batches == [[2], [2]]  # the cancelled request is not computed
        assert service.metric("zipflm_client_disconnects_total") == 1


def test_waiting_texts_are_not_scanned_every_step(models, monkeypatch):
    calls, cache_positions = [], TextInProgress.cache_positions

    def counted(self, engine):
        calls.append(self)
        return cache_positions(self, engine)

    monkeypatch.setattr(TextInProgress, "cache_positions", counted)
    with Running(models, Limits(max_batch_tokens=100)) as service:
        answer = service.complete("ba", n=200, max_tokens=3, lines=0, seed=1)
    assert len({choice["index"] for choice in answer["choices"]}) == 200
    # When a text joins, at its steps, and when it is the first in the queue.
    assert len(calls) < 10 * 200


@pytest.mark.parametrize(("max_batch_tokens", "num_rows"), [(52, 3), (1, 1)])
def test_generation_batches_are_limited(models, monkeypatch, max_batch_tokens, num_rows):
    sizes, step = [], TextDecoder.step

    def recorded(self):
        sizes.append(len(self.rows))
        return step(self)

    monkeypatch.setattr(TextDecoder, "step", recorded)
    with Running(models, Limits(max_batch_tokens=max_batch_tokens)) as service:
        # Each text needs 12 positions. There is room for four, one of which is left to others.
        service.complete("ba be", n=4, max_tokens=9, lines=0, seed=1)
    assert max(sizes) == num_rows


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_stops_generation(models, monkeypatch, stream):
    slowed(monkeypatch, 0.02)
    with Running(models) as service:
        fields = {"prompt": "ba", "max_tokens": 3000, "lines": 0, "stream": stream, "n": 3}
        with closing(service.begin("/v1/completions", fields)) as connection:
            service.until(lambda: service.worker.num_generating == 3)
            if stream:
                assert connection.recv(10) == b"HTTP/1.1 2"
        service.until(lambda: service.worker.num_generating == service.worker.num_active == 0)
        assert service.complete("ba", max_tokens=2)["choices"]


def test_new_text_joins_a_running_batch(models, monkeypatch):
    slowed(monkeypatch, 0.03)
    with Running(models) as service, ThreadPoolExecutor(1) as pool:
        long = pool.submit(service.complete, "ba", max_tokens=150, lines=0, seed=1)
        service.until(lambda: service.worker.num_generating == 1)
        service.complete("be", max_tokens=2, lines=0)
        assert service.score("bu")["texts"] and not long.done()
        expected = long.result()["choices"][0]["text"]
        monkeypatch.undo()
        alone = service.complete("ba", max_tokens=150, lines=0, seed=1)
        assert alone["choices"][0]["text"] == expected


def test_failed_text_does_not_affect_others(models, held, monkeypatch):
    score = Engine.start_scoring

    def fail_on_long(engine, documents):
        if any(len(each.ids) > 4 for each in documents):
            raise RuntimeError("out of memory")
        return score(engine, documents)

    monkeypatch.setattr(Engine, "start_scoring", fail_on_long)
    with Running(models) as service, ThreadPoolExecutor(4) as pool:
        texts = ["ba", "ba be", "ba be bu ban bi ka", "be"]
        posted = [pool.submit(service.post, "/score", text=text) for text in texts]
        held.set()
        answers = [each.result() for each in posted]
        assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
        assert "out of memory" in answers[2].json()["error"]["message"]
        assert service.score("ba")["texts"]


def test_failed_step_ends_only_its_batch(models, monkeypatch):
    step, failures = TextDecoder.step, [RuntimeError("no memory")]

    def fail_once(self):
        if failures:
            raise failures.pop()
        return step(self)

    monkeypatch.setattr(TextDecoder, "step", fail_once)
    with Running(models) as service:
        assert service.post("/v1/completions", prompt="ba").status_code == 500
        assert service.complete("ba", max_tokens=3)["choices"][0]["finish_reason"]
