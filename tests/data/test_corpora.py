import errno
import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data import corpora
from zipflm.data.corpora import CORPORA, corpus_texts, fetch, sentences
from zipflm.data.prepare import Options, prepare_corpus


def zipped(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def tarred(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


WIKITEXT = {
    f"wikitext-2/wiki.{split}.tokens": b" \n = Title = \n the cat sat . \n"
    for split in ("train", "valid", "test")
}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Put an archive into the cache, as if downloaded manually, and expect its hash."""

    def place(name, data):
        corpus = replace(CORPORA[name], mirrors=(), sha256=hashlib.sha256(data).hexdigest())
        monkeypatch.setitem(corpora.CORPORA, name, corpus)
        (tmp_path / corpus.archive).write_bytes(data)
        return tmp_path

    return place


@pytest.mark.parametrize("option", ["vocabulary", "bpe_codes"])
def test_reads_given_files_before_downloading(tmp_path, monkeypatch, option):
    monkeypatch.setattr(corpora, "fetch", lambda *arguments: pytest.fail("downloaded"))
    (tmp_path / "x").write_text("a 1\nb 2\n")
    with pytest.raises(ValueError, match="x: .*line"):
        prepare_corpus(tmp_path / "d", "wikitext-2", Options(**{option: tmp_path / "x"}))


def test_full_temporary_disk_error_names_the_folder(tmp_path, monkeypatch):
    def write_text(self, *arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(corpora, "addresses", lambda: ["Fellow citizens."] * 20)
    monkeypatch.setattr("pathlib.Path.write_text", write_text)
    with pytest.raises(OSError, match=r"zipflm-\w+: No space left on device .* TMPDIR"):
        prepare_corpus(tmp_path / "d", "state-of-the-union")
    assert not list(tmp_path.iterdir())


def test_prepares_archive_from_the_cache(offline, tmp_path):
    cache = offline("wikitext-2", zipped(WIKITEXT))
    folder = prepare_corpus(tmp_path / "d", "wikitext-2", Options(min_count=1), cache=cache)
    assert folder.splits == ("train", "valid", "test")
    assert len(folder.tokens("test")) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", CORPORA["wikitext-2"].archive]


def test_reads_billion_word_shards_in_order(offline):
    base = "1-billion-word-language-modeling-benchmark-r13output"
    train = f"{base}/training-monolingual.tokenized.shuffled/news.en-%05d-of-00100"
    held_out = f"{base}/heldout-monolingual.tokenized.shuffled/news.en.heldout-%05d-of-00050"
    files = {train % n: b"train %d\n" % n for n in (3, 1, 2)}
    files |= {held_out % n: b"held out %d\n" % n for n in (0, 1, 2)}
    cache = offline("billion-word", tarred(files))
    with corpus_texts("billion-word", cache) as splits:
        texts = {split: [path.read_text() for path in paths] for split, paths in splits.items()}
    assert texts == {
        "train": ["train 1\n", "train 2\n", "train 3\n"],
        "valid": ["held out 1\n"],
        "test": ["held out 0\n"],
    }


# Explicit ids, because archives contain a time stamp: test ids would differ between workers.
@pytest.mark.parametrize(
    "data",
    [b"no archive", zipped(WIKITEXT)[:-30], zipped({"x": b"y"})],
    ids=["no archive", "cut", "other files"],
)
def test_rejects_damaged_archive(offline, tmp_path, data):
    cache = offline("wikitext-2", data)
    with pytest.raises(ValueError, match="wikitext-2-v1.zip: (damaged|contains no file)"):
        prepare_corpus(tmp_path / "d", "wikitext-2", cache=cache)


def test_bundled_corpus_has_fixed_sizes(tmp_path):
    folder = prepare_corpus(tmp_path / "d", "state-of-the-union")
    sizes = {split: metadata.tokens for split, metadata in folder.metadata.splits.items()}
    assert sizes == {"train": 1_825_274, "valid": 100_985, "test": 96_571}
    assert len(folder.vocabulary) == 15_984


DATA = bytes(range(256)) * 5000
DIGEST = hashlib.sha256(DATA).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves DATA, or fails, depending on the path."""

    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path == "/missing" or "Python" in self.headers["User-Agent"]:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.wfile.write({"/breaks": DATA[:450_000], "/wrong": DATA[::-1]}.get(self.path, DATA))

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


def test_downloads_once_and_reports_progress(server, tmp_path):
    done = []
    path = tmp_path / "cache" / "x.zip"
    fetch(path, [f"{server.url}/good"], DIGEST, lambda n, total: done.append((n, total)))
    assert path.read_bytes() == DATA
    assert sum(n for n, _ in done) == len(DATA) and {total for _, total in done} == {len(DATA)}
    fetch(path, [f"{server.url}/good"], DIGEST)
    assert server.requests == ["/good"]
    assert list(path.parent.iterdir()) == [path]


def test_tries_the_next_mirror(server, tmp_path):
    mirrors = [f"{server.url}/{name}" for name in ("missing", "breaks", "wrong", "good")]
    assert fetch(tmp_path / "x.zip", mirrors, DIGEST).read_bytes() == DATA


def test_failed_download_explains_manual_download(server, tmp_path):
    mirrors = [f"{server.url}/missing", "http://127.0.0.1:9/x.zip", f"{server.url}/wrong"]
    with pytest.raises(OSError) as caught:
        fetch(tmp_path / "x.zip", mirrors, DIGEST)
    message = str(caught.value)
    assert all(url in message for url in mirrors)
    assert str(tmp_path / "x.zip") in message and DIGEST in message
    assert not list(tmp_path.iterdir())


def test_rejects_cached_file_with_wrong_hash(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"?")
    with pytest.raises(ValueError, match=f"expected {DIGEST}"):
        fetch(tmp_path / "x.zip", [], DIGEST)


def without_spaces(text):
    return "".join(text.split())


@given(st.lists(st.sampled_from(["Mr.", "U.S.", " ", "a", "I", ".", '"', ")", "1,2", "\u2014"])))
def test_sentences_keep_every_character(parts):
    found = list(sentences("".join(parts)))
    assert without_spaces("".join(found)) == without_spaces("".join(parts))
    assert all(sentence == " ".join(sentence.split()) != "" for sentence in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. J. Q. Adams spoke. So did I.", ["Mr. J. Q. Adams spoke .", "So did I ."]),
        ('He said: "Go!" They went.', ['He said : " Go ! "', "They went ."]),
        (
            "In the U.S. Senate, e.g., it rose 1,234.5 percent.",
            ["In the U.S. Senate , e . g . , it rose 1,234.5 percent ."],
        ),
        ("It's well-known\u2014isn't it?", ["It's well-known \u2014 isn't it ?"]),
        ("No end", ["No end"]),
        ("", []),
    ],
)
def test_sentence_boundaries(text, expected):
    assert list(sentences(text)) == expected
