"""A server for tests of the page: the real one's paths and shapes, made-up numbers, any mishap.

Words are what white space separates, with `.` and `,` split off. A word's surprise follows from its
letters, so that tests know it; two models differ in a way that tests know too.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from zipflm.serving.app import page

WORDS = 5000
ALTERNATIVES = ("the", "fish", "<unk>", "</s>", ".", "<script>", "a", "of", "house", "snow")
UNKNOWN = "zyzzyva"
_LN2 = math.log(2)


def bits_of(word: str, model: str) -> float:
    """Two per letter; the second model is worse at words with an e and better at those without."""
    bits = 2.0 * len(word) - 1
    if model == "sm":
        bits += 1.5 if "e" in word else -0.75
    return max(bits, 0.5)


SOURCES: list[dict[str, Any]] = [
    {"name": "model", "probability": 0.3},
    {
        "name": "neighbours",
        "probability": 0.1,
        "neighbours": [{"context": "on the old", "word": "barn"}],
    },
]


def model_entry(name: str, factorization: str, bands: int) -> dict[str, Any]:
    edges = [1, 1000, WORDS] if bands == 2 else [1, WORDS]
    listed = [
        {"name": f"band {i}", "first": low, "last": high, "words": high - low + 1}
        for i, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True))
    ]
    about = {"factorization": factorization, "words": WORDS, "unit": "word", "bands": listed}
    about |= {"perplexity": 123.4, "checkpoint": "update-00000100"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "zipflm", "zipflm": about}


def score(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a body of `POST /score` that has one text."""
    text, model = asked["text"], asked.get("model", "adp-t")
    words: list[dict[str, Any]] = []
    lines = text.split("\n")
    if lines[-1] == "" and len(lines) > 1:
        lines.pop()
    start = 0
    for line in lines:
        for match in re.finditer(r"[^\s.,]+|[.,]", line):
            span = [start + match.start(), start + match.end()]
            words.append(_record(match[0], span, model))
        words.append(_record("</s>", None, model))
        start += len(line) + 1
    for place in asked.get("at", []) if asked.get("top") else []:
        words[place]["rank"] = 10 + place
        if asked.get("sources") and model == "adp-t":
            words[place]["sources"] = SOURCES
        words[place]["alternatives"] = [
            {"word": word, "logprob": -(1 + i) * _LN2} for i, word in enumerate(ALTERNATIVES)
        ]
    bits = sum(word["surprisal"] for word in words)
    totals = {"logprob": -bits * _LN2, "perplexity": 2 ** (bits / len(words)), "surprisal": bits}
    return {"model": model, "protocol": {}, "texts": [{**totals, "words": words}]}


def _record(word: str, span: list[int] | None, model: str) -> dict[str, Any]:
    bits = bits_of(word, model)
    return {
        "word": word,
        "logprob": -bits * _LN2,
        "surprisal": bits,
        "band": int(len(word) > 4) if model == "adp-t" else 0,
        "count": 10 ** max(0, 6 - len(word)),
        "is_unknown": word == UNKNOWN,
        "is_end": span is None,
        "span": span,
    }


class PretendedServer:
    """Listens until the block ends. `mishap` may answer a request in its own way: it gets path and
    body, and gives (status, headers, body) or None."""

    def __init__(self) -> None:
        self.models = [model_entry("adp-t", "ADP-T", 2), model_entry("sm", "SM", 1)]
        self.key: str | None = None
        self.asked: list[dict[str, Any]] = []
        self.delay: Callable[[dict[str, Any]], float] = lambda body: 0.0
        self.mishap: Callable[[str, dict[str, Any]], tuple[int, dict[str, str], Any] | None]
        self.forget()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def forget(self) -> None:
        """As new."""
        self.models = [model_entry("adp-t", "ADP-T", 2), model_entry("sm", "SM", 1)]
        self.key = None
        self.asked.clear()
        self.delay = lambda body: 0.0
        self.mishap = lambda path, body: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> PretendedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(
        self, path: str, body: dict[str, Any], key: str | None
    ) -> tuple[int, dict[str, str], Any]:
        if self.key is not None and key != f"Bearer {self.key}":
            return 401, {}, {"error": {"message": "no valid API key was given"}}
        if (mishap := self.mishap(path, body)) is not None:
            return mishap
        if path == "/v1/models":
            return 200, {}, {"object": "list", "data": self.models}
        if path == "/score":
            self.asked.append(body)
            time.sleep(self.delay(body))
            return 200, {}, score(body)
        return 404, {}, {"error": {"message": f"{path}: no such path"}}


def _handler(server: PretendedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/":
                made = page()
                policy = {"Content-Security-Policy": made.policy}
                self._send(200, policy, made.html.encode(), "text/html; charset=utf-8")
            else:
                self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            key = self.headers.get("Authorization")
            status, headers, value = server.answer(self.path, body, key)
            self._send(status, headers, json.dumps(value).encode(), "application/json")

        def _send(self, status: int, headers: dict[str, str], data: bytes, kind: str) -> None:
            self.send_response(status)
            headers = {**headers, "Content-Type": kind, "Content-Length": str(len(data))}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the page did not wait

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
