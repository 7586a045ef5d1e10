"""`zipflm serve` under load: requests per second, latencies and correctness.

    python benchmarks/serving.py [--run RUN] [--seconds 10] [--requests 20000] [OVERRIDES]

The server runs in its own process, and clients with persistent connections in this one. Without
`--run`, a small model is trained on the bundled corpus first.

Speed: clients send requests in a loop, to score sentences of 10 to 30 words or to generate 16 words
after 5, with batching and with one text at a time (`--max-batch-tokens 1`). The goal is that
batching multiplies the requests/s of 64 clients by three.

Soak test: 64 clients send `--requests` requests in total. In one of ten, the client disconnects,
times out or sends garbage. All other responses are compared with the results of the library. None
may be lost or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zipflm.data.corpora import EMBEDDED, corpus_texts
from zipflm.data.prepare import Options, prepare
from zipflm.language.model import TrainedModel, load
from zipflm.presets.recipes import resolve
from zipflm.training.trainer import train

MAX_TOKENS = 16
"""Number of words to generate."""
TEXTS, PROMPTS = 500, 200
"""Default numbers of sentences to score and to continue."""
TOLERANCE = 1e-4
"""In nats per text. Batches add up numbers in a different order, which changes the rounding."""


def trained_run(
    folder: Path, preset: str, updates: int, overrides: Sequence[str] = ()
) -> tuple[Path, list[str]]:
    """Train a run. Return its folder and the lines of the validation text."""
    with corpus_texts(EMBEDDED, folder) as texts:
        paths = {split: [str(path) for path in files] for split, files in texts.items()}
        data = prepare(str(folder / "data"), paths, Options(min_count=3), processes=1)
        lines = texts["valid"][0].read_text(encoding="utf-8").splitlines()
    changes = [f"training.max_updates={updates}", *overrides]
    config = resolve(preset, "paper", changes, len(data.vocabulary))
    train(config, data, folder / "run", device="cpu")
    return folder / "run", lines


class Question(NamedTuple):
    """A request and a check of its response."""

    path: str
    body: bytes
    is_right: Callable[[Any], bool]


def scoring_questions(lm: TrainedModel, sentences: Sequence[str]) -> list[Question]:
    questions = []
    for sentence, scored in zip(sentences, lm.score(list(sentences)), strict=True):
        expected = [word.word for word in scored.words], scored.logprob

        def is_right(answer: Any, expected: tuple[list[str], float] = expected) -> bool:
            (text,) = answer["texts"]
            words = [word["word"] for word in text["words"]]
            return words == expected[0] and abs(text["logprob"] - expected[1]) < TOLERANCE

        questions.append(Question("/score", json.dumps({"text": sentence}).encode(), is_right))
    return questions


def generation_questions(lm: TrainedModel, sentences: Sequence[str]) -> list[Question]:
    """Half are greedy, half sample with a seed."""
    questions = []
    for seed, sentence in enumerate(sentences):
        prompt = " ".join(sentence.split()[:5])
        temperature = seed % 2
        written = lm.generate(
            prompt, max_words=MAX_TOKENS, temperature=temperature, top_p=0.9, seed=seed
        )
        expected = written[0].continuation.removesuffix("\n")
        fields = {
            "prompt": prompt,
            "max_tokens": MAX_TOKENS,
            "temperature": temperature,
            "top_p": 0.9,
            "seed": seed,
        }

        def is_right(answer: Any, expected: str = expected) -> bool:
            return bool(answer["choices"][0]["text"] == expected)

        questions.append(Question("/v1/completions", json.dumps(fields).encode(), is_right))
    return questions


@contextlib.contextmanager
def server(run: Path, *options: str) -> Iterator[int]:
    """Run `zipflm serve` in a new process and yield its port."""
    command = [sys.executable, "-m", "zipflm", "serve", str(run), "--port", "0", *options]
    process = subprocess.Popen(
        [*command, "--device", "cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r":(\d+)\s*$", line)
        if found is None:
            raise RuntimeError(line + process.stderr.read())
        yield int(found[1])
        process.terminate()
        status = process.wait(120)
        if status:
            raise RuntimeError(f"the server exited with status {status}")
    finally:
        process.kill()
        process.wait()


class Client:
    """A persistent connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        await self.send(path, body, method)
        return await self.receive()

    async def send(self, path: str, body: bytes, method: str = "POST", cut: int = 0) -> None:
        """Send a request without its last `cut` bytes."""
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        headers = (
            f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        data = f"{method} {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + body
        self._writer.write(data[: len(data) - cut])
        await self._writer.drain()

    async def send_raw(self, data: bytes) -> None:
        await self.send("/health", b"", "GET")
        await self.receive()
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> tuple[int, bytes]:
        """Return the status and body of a response."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = await self._reader.readexactly(int(length[1])) if length else b""
        if b"connection: close" in head.lower():
            await self.disconnect()
        return status, body

    async def disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._writer = None


@contextlib.asynccontextmanager
async def client_of(port: int) -> AsyncIterator[Client]:
    client = Client(port)
    try:
        yield client
    finally:
        await client.disconnect()


class Speed:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.latencies: list[float] = []
        self.wrong = 0

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def measure(port: int, questions: Sequence[Question], clients: int, seconds: float) -> Speed:
    """Let each client send requests in sequence until the time is up."""
    speed = Speed()
    start = time.perf_counter()

    async def ask(number: int) -> None:
        draw = random.Random(number)
        async with client_of(port) as client:
            while time.perf_counter() - start < seconds:
                question = draw.choice(questions)
                sent = time.perf_counter()
                status, body = await client.ask(question.path, question.body)
                speed.latencies.append(time.perf_counter() - sent)
                speed.wrong += status != 200 or not question.is_right(json.loads(body))

    await asyncio.gather(*map(ask, range(clients)))
    speed.seconds = time.perf_counter() - start
    return speed


def speeds(
    run: Path, kinds: dict[str, list[Question]], clients: Sequence[int], seconds: float
) -> dict[tuple[str, str, int], Speed]:
    """Alternate between batching and not, so that other load on the machine affects both."""
    found = {}
    with server(run) as batching, server(run, "--max-batch-tokens", "1") as single:
        for kind, questions in kinds.items():
            for port in (batching, single):
                asyncio.run(measure(port, questions, 2, min(seconds, 1)))  # warms up
            for number in clients:
                for how, port in (("batches", batching), ("one by one", single)):
                    speed = asyncio.run(measure(port, questions, number, seconds))
                    found[kind, how, number] = speed
                    print(_row(kind, how, number, speed), flush=True)
    return found


def _row(kind: str, batching: str, clients: int, speed: Speed) -> str:
    middle, high, highest = (speed.percentile(share) for share in (0.5, 0.95, 0.99))
    return (
        f"| {kind} | {batching} | {clients} | {speed.rate:.0f} | {middle:.1f} | {high:.1f} | "
        f"{highest:.1f} | {speed.wrong} |"
    )


async def soak(port: int, questions: Sequence[Question], number: int, clients: int) -> Counter[str]:
    """Send `number` requests, one in ten by a misbehaving client, and count the outcomes."""
    outcome: Counter[str] = Counter()
    left = iter(range(number))

    async def worker(index: int) -> None:
        draw = random.Random(index)
        async with client_of(port) as client:
            for _ in left:
                if draw.random() < 0.1:
                    name, misbehave = draw.choice(MISBEHAVIOR)
                    outcome[f"misbehaved: {name}"] += 1
                    if not await misbehave(client, draw.choice(questions), draw):
                        outcome["wrong"] += 1
                    continue
                question = draw.choice(questions)
                try:
                    async with asyncio.timeout(120):
                        status, body = await client.ask(question.path, question.body)
                except (OSError, EOFError, TimeoutError) as error:
                    outcome["lost"] += 1
                    outcome[f"lost: {error!r}"[:80]] += 1
                    await client.disconnect()
                    continue
                if status == 200 and question.is_right(json.loads(body)):
                    outcome["right"] += 1
                else:
                    outcome["wrong"] += 1
                    print(status, question.body, body[:300], file=sys.stderr)

    await asyncio.gather(*map(worker, range(clients)))
    return outcome


async def _disconnect(client: Client, question: Question, draw: random.Random) -> bool:
    """Send a request and disconnect."""
    await client.send(question.path, question.body)
    await client.disconnect()
    return True


async def _give_up(client: Client, question: Question, draw: random.Random) -> bool:
    """Disconnect after a short time."""
    await client.send(question.path, question.body)
    with contextlib.suppress(TimeoutError, OSError, EOFError):
        async with asyncio.timeout(draw.random() * 0.02):
            await client.receive()
    await client.disconnect()
    return True


async def _leave_stream(client: Client, question: Question, draw: random.Random) -> bool:
    fields = {"prompt": "the", "max_tokens": 2000, "lines": 0, "stream": True}
    await client.send("/v1/completions", json.dumps(fields).encode())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await client._reader.readuntil(b"data: ")
    await client.disconnect()
    return True


async def _send_half(client: Client, question: Question, draw: random.Random) -> bool:
    await client.send(question.path, question.body, cut=draw.randrange(1, len(question.body)))
    await client.disconnect()
    return True


async def _send_noise(client: Client, question: Question, draw: random.Random) -> bool:
    """Send bytes that are not HTTP."""
    await client.send_raw(b"\x00" + draw.randbytes(50) + b"\r\n\r\n")
    with contextlib.suppress(OSError, EOFError):
        status, _ = await client.receive()
        await client.disconnect()
        return status == 400
    await client.disconnect()
    return True


async def _send_garbage(client: Client, question: Question, draw: random.Random) -> bool:
    """Send invalid JSON or invalid fields; the response must explain the error."""
    end = draw.randrange(len(question.body))
    bodies = [
        question.body[:end],
        b'{"text": 5, "prompt": -1}',
        b'{"text": "", "prompt": ""}',
        b'{"text": NaN, "prompt": [1e99]}',
        b"[" * 3000,
        draw.randbytes(40),
    ]
    status, body = await client.ask(question.path, draw.choice(bodies))
    return status == 400 and bool(json.loads(body)["error"]["message"])


Misbehavior = Callable[[Client, Question, random.Random], Awaitable[bool]]
MISBEHAVIOR: list[tuple[str, Misbehavior]] = [
    ("hung up", _disconnect),
    ("gave up", _give_up),
    ("left a stream", _leave_stream),
    ("sent half", _send_half),
    ("sent noise", _send_noise),
    ("sent garbage", _send_garbage),
]


async def left_over(port: int) -> dict[str, float]:
    """Return the work left in the server after the last client, and internal errors."""
    async with client_of(port) as client:
        for _ in range(100):
            _, body = await client.ask("/metrics", b"", "GET")
            pattern = r"^(zipflm_\w+_(?:waiting|in_progress)) (\S+)$"
            found = {
                name: float(value)
                for name, value in re.findall(pattern, body.decode(), flags=re.MULTILINE)
            }
            if not any(found.values()):
                break
            await asyncio.sleep(0.1)
        failures = re.findall(r'path="(\S+)",status="5\d\d"\} (\d+)', body.decode())
        return found | {f"5xx at {path}": float(number) for path, number in failures}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, help="a word-level run (default: train one)")
    parser.add_argument("--text", type=Path, help="sentences, one per line (required with --run)")
    parser.add_argument("--preset", default="tiny/ADP-T")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("overrides", nargs="*", help="e.g. decoder.num_layers=16")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.run is None:
            run, lines = trained_run(
                Path(folder), options.preset, options.updates, options.overrides
            )
        else:
            run, lines = options.run, options.text.read_text().splitlines()
        sentences = [line for line in lines if 10 <= len(line.split()) <= 30][: options.texts]
        lm = load(run, device="cpu")
        print(f"{_machine()}, torch {torch.__version__}, {lm!r}")
        scoring = scoring_questions(lm, sentences)
        writing = generation_questions(lm, sentences[: options.prompts])
        clients = [int(number) for number in options.clients.split(",")]
        print("| | | clients | requests/s | p50 ms | p95 ms | p99 ms | wrong |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        kinds = {"score": scoring, "write": writing}
        found = speeds(run, kinds, clients, options.seconds) if options.seconds else {}
        gains = {}
        if found:
            for kind in kinds:
                rates = [found[kind, how, clients[-1]].rate for how in ("batches", "one by one")]
                gains[kind] = round(rates[0] / rates[1], 2)
                print(
                    f"{kind}: batching gives {gains[kind]} times the rate at {clients[-1]} clients"
                )
        outcome: Counter[str] = Counter()
        if options.requests:
            start = time.perf_counter()
            with server(run) as port:
                mixed = scoring * 3 + writing
                outcome = asyncio.run(soak(port, mixed, options.requests, clients[-1]))
                left = asyncio.run(left_over(port))
            seconds = time.perf_counter() - start
            print(f"{options.requests:,} requests in {seconds:.0f} s: {dict(outcome)}")
            print(f"left over: {left}")
            outcome["left over"] = int(sum(left.values()))
        wrong = sum(speed.wrong for speed in found.values())
    print(json.dumps({"gains": gains, "wrong": wrong + outcome["wrong"], "lost": outcome["lost"]}))
    if wrong or outcome["wrong"] or outcome["lost"] or outcome["left over"]:
        raise SystemExit("responses were lost or wrong, or work was left over")


def _machine() -> str:
    return f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
