import errno
import hashlib
import importlib.util
import io
import lzma
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from addresses import addresses
from hypothesis import given
from hypothesis import strategies as st

from zipflm.api import prepare
from zipflm.data import corpora
from zipflm.data.corpora import CORPORA, Corpus, corpus_texts, fetch

TOOL = Path(__file__).parents[2] / "tools" / "embed_addresses.py"
spec = importlib.util.spec_from_file_location("embed_addresses", TOOL)
embed_addresses = importlib.util.module_from_spec(spec)
spec.loader.exec_module(embed_addresses)


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


def test_full_temporary_disk_error_names_the_folder(tmp_path, monkeypatch):
    def extractall(self, *arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    with pytest.raises(OSError, match=r"zipflm-\w+: No space left on device .* TMPDIR"):
        prepare(out=tmp_path / "d", corpus="state-of-the-union")
    assert not list(tmp_path.iterdir())


def test_prepares_archive_from_the_cache(offline, tmp_path):
    cache = offline("wikitext-2", zipped(WIKITEXT))
    folder = prepare(out=tmp_path / "d", corpus="wikitext-2", min_count=1, cache=cache)
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


def test_bundled_corpus_has_fixed_sizes(tmp_path):
    folder = prepare(out=tmp_path / "d", corpus="state-of-the-union")
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


def archive_at(*mirrors):
    return Corpus("x.zip", {}, mirrors, DIGEST)


def test_downloads_once_and_reports_progress(server, tmp_path):
    done = []
    corpus, cache = archive_at(f"{server.url}/good"), tmp_path / "cache"
    path = fetch(corpus, cache, lambda n, total: done.append((n, total)))
    assert path.read_bytes() == DATA
    assert sum(n for n, _ in done) == len(DATA) and {total for _, total in done} == {len(DATA)}
    fetch(corpus, cache)
    assert server.requests == ["/good"]
    assert list(cache.iterdir()) == [path]


def test_tries_the_next_mirror(server, tmp_path):
    mirrors = [f"{server.url}/{name}" for name in ("missing", "breaks", "wrong", "good")]
    assert fetch(archive_at(*mirrors), tmp_path).read_bytes() == DATA


def test_failed_download_explains_manual_download(server, tmp_path):
    mirrors = [f"{server.url}/missing", "http://127.0.0.1:9/x.zip", f"{server.url}/wrong"]
    with pytest.raises(OSError) as caught:
        fetch(archive_at(*mirrors), tmp_path)
    message = str(caught.value)
    assert all(url in message for url in mirrors)
    assert str(tmp_path / "x.zip") in message and DIGEST in message
    assert not list(tmp_path.iterdir())


def test_rejects_cached_file_with_wrong_hash(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"?")
    with pytest.raises(ValueError, match=f"expected {DIGEST}"):
        fetch(archive_at(), tmp_path)


def test_bundled_archive_has_the_sentences_of_the_addresses():
    archive = embed_addresses.archive(addresses())
    bundled = Path(corpora.__file__).with_name(CORPORA["state-of-the-union"].archive)
    assert archive == lzma.decompress(bundled.read_bytes())


def without_spaces(text):
    return "".join(text.split())


@given(st.lists(st.sampled_from(["Mr.", "U.S.", " ", "a", "I", ".", '"', ")", "1,2", "\u2014"])))
def test_sentences_keep_every_character(parts):
    found = list(embed_addresses.sentences("".join(parts)))
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
    assert list(embed_addresses.sentences(text)) == expected


def test_a_full_disk_ends_a_download_at_once(tmp_path, monkeypatch):
    asked = []

    def full(request, **options):
        asked.append(request.full_url)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(corpora.urllib.request, "urlopen", full)
    with pytest.raises(OSError, match="No space left on device"):
        fetch(CORPORA["wikitext-2"], tmp_path)
    assert len(asked) == 1
