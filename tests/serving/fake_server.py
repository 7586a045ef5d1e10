"""A fake server for tests of the page, with predictable numbers and failures on demand."""

import json
import math
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from zipflm.serving.app import page

WORDS = 5000
ALTERNATIVES = ("the", "fish", "<unk>", "</s>", ".", "<script>", "a", "of", "house", "snow")
UNKNOWN = "zyzzyva"
_LN2 = math.log(2)


def bits_of(word, model):
    """Two bits per letter; the second model is worse at words with an e and better at others."""
    bits = 2.0 * len(word) - 1
    if model == "sm":
        bits += 1.5 if "e" in word else -0.75
    return max(bits, 0.5)


SOURCES = [
    {"name": "model", "probability": 0.3},
    {
        "name": "neighbors",
        "probability": 0.1,
        "neighbors": [{"context": "on the old", "word": "barn"}],
    },
]


def model_entry(name, factorization, bands):
    edges = [1, 1000, WORDS] if bands == 2 else [1, WORDS]
    listed = [
        {"name": f"band {i}", "first": low, "last": high, "words": high - low + 1}
        for i, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True))
    ]
    about = {"factorization": factorization, "words": WORDS, "unit": "word", "bands": listed}
    about |= {"perplexity": 123.4, "checkpoint": "update-00000100"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "zipflm", "zipflm": about}


def score(body):
    """The response to `POST /score` with one text."""
    text, model = body["text"], body.get("model", "adp-t")
    words = []
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
    for place in body.get("at", []) if body.get("top") else []:
        words[place]["rank"] = 10 + place
        if body.get("sources") and model == "adp-t":
            words[place]["sources"] = SOURCES
        words[place]["alternatives"] = [
            {"word": word, "logprob": -(1 + i) * _LN2} for i, word in enumerate(ALTERNATIVES)
        ]
    bits = sum(word["surprisal"] for word in words)
    totals = {"logprob": -bits * _LN2, "perplexity": 2 ** (bits / len(words)), "surprisal": bits}
    return {"model": model, "protocol": {}, "texts": [{**totals, "words": words}]}


def _record(word, span, model):
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


class FakeServer:
    """A context manager. `fail` can override a response: it takes path and body, and returns
    (status, headers, body) or None."""

    def __init__(self):
        self.models = [model_entry("adp-t", "ADP-T", 2), model_entry("sm", "SM", 1)]
        self.requests = []
        self.reset()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def reset(self):
        self.key = None
        self.requests.clear()
        self.delay = lambda body: 0.0
        self.fail = lambda path, body: None

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path, body, key):
        if self.key is not None and key != f"Bearer {self.key}":
            return 401, {}, {"error": {"message": "missing or invalid API key"}}
        if (response := self.fail(path, body)) is not None:
            return response
        if path == "/v1/models":
            return 200, {}, {"object": "list", "data": self.models}
        if path == "/score":
            self.requests.append(body)
            time.sleep(self.delay(body))
            return 200, {}, score(body)
        return 404, {}, {"error": {"message": f"{path}: no such path"}}


def _handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            if self.path == "/":
                policy = {"Content-Security-Policy": page().headers["Content-Security-Policy"]}
                self._send(200, policy, page().body, "text/html; charset=utf-8")
            else:
                self._answer({})

        def do_POST(self):
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body):
            key = self.headers.get("Authorization")
            status, headers, value = server.answer(self.path, body, key)
            self._send(status, headers, json.dumps(value).encode(), "application/json")

        def _send(self, status, headers, data, kind):
            self.send_response(status)
            headers = {**headers, "Content-Type": kind, "Content-Length": str(len(data))}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the page disconnected

        def log_message(self, format, *args):
            pass

    return Handler
