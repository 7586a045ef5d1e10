import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from zipflm.data.download import fetch

DATA = bytes(range(256)) * 5000
DIGEST = hashlib.sha256(DATA).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves DATA in the ways that hosts do; the path says which."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if self.path == "/missing" or "Python" in self.headers["User-Agent"]:
            self.send_error(404)
        elif self.path == "/no-resume":
            self.answer(200, DATA)
        elif start >= len(DATA):
            self.send_error(416)
        elif self.path == "/breaks":
            # A third of the file at a time.
            self.answer(206 if start else 200, DATA[start:], DATA[start : start + 450_000])
        elif self.path == "/wrong":
            self.answer(200, b"another file")
        else:
            self.answer(206 if start else 200, DATA[start:])

    def answer(self, status, promised, sent=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(promised)))
        self.end_headers()
        self.wfile.write(promised if sent is None else sent)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_file_is_fetched_once_and_progress_adds_up(server, tmp_path):
    done = []
    path = tmp_path / "cache" / "x.zip"
    fetch(path, [f"{server.url}/good"], DIGEST, lambda n, total: done.append((n, total)))
    assert path.read_bytes() == DATA
    assert sum(n for n, _ in done) == len(DATA) and {total for _, total in done} == {len(DATA)}
    fetch(path, [f"{server.url}/good"], DIGEST)
    assert server.requests == [("/good", None)]
    assert list(path.parent.iterdir()) == [path]


def test_next_mirror_takes_over_after_missing_and_wrong_files(server, tmp_path):
    mirrors = [f"{server.url}/{name}" for name in ("missing", "wrong", "good")]
    assert fetch(tmp_path / "x.zip", mirrors, DIGEST).read_bytes() == DATA


def test_broken_download_resumes(server, tmp_path):
    assert fetch(tmp_path / "x.zip", [f"{server.url}/breaks"], DIGEST).read_bytes() == DATA
    assert server.requests == [
        ("/breaks", None),
        ("/breaks", "bytes=450000-"),
        ("/breaks", "bytes=900000-"),
    ]


@pytest.mark.parametrize("name", ["good", "no-resume"])
def test_part_of_an_earlier_run_is_continued(server, tmp_path, name):
    (tmp_path / "x.zip.part").write_bytes(DATA[:1000])
    assert fetch(tmp_path / "x.zip", [f"{server.url}/{name}"], DIGEST).read_bytes() == DATA
    assert server.requests == [(f"/{name}", "bytes=1000-")]


def test_part_that_is_whole_is_taken(server, tmp_path):
    (tmp_path / "x.zip.part").write_bytes(DATA)
    assert fetch(tmp_path / "x.zip", [f"{server.url}/good"], DIGEST).read_bytes() == DATA


def test_part_of_another_file_is_dropped(server, tmp_path):
    (tmp_path / "x.zip.part").write_bytes(b"?" * len(DATA))
    mirrors = [f"{server.url}/good", f"{server.url}/good"]
    assert fetch(tmp_path / "x.zip", mirrors, DIGEST).read_bytes() == DATA


def test_failure_says_what_to_fetch_and_where_to_put_it(server, tmp_path):
    mirrors = [f"{server.url}/missing", "http://127.0.0.1:9/x.zip", f"{server.url}/wrong"]
    with pytest.raises(OSError) as caught:
        fetch(tmp_path / "x.zip", mirrors, DIGEST)
    message = str(caught.value)
    assert all(url in message for url in mirrors)
    assert str(tmp_path / "x.zip") in message and "by hand" in message and DIGEST in message
    assert not list(tmp_path.iterdir())


def test_wrong_file_put_there_by_hand_is_refused(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"?")
    with pytest.raises(ValueError, match=f"expected {DIGEST}"):
        fetch(tmp_path / "x.zip", [], DIGEST)
