"""Named corpora: the bundled State of the Union addresses, and corpora to download.

The notice next to the bundled archive states its origin and license.
"""

from __future__ import annotations

import http.client
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from zipflm.data.folder import SPLITS
from zipflm.data.scan import ProgressCallback
from zipflm.storage import TEMPORARY_REMEDY, atomic_write, file_hash, report_full_disk

EMBEDDED = "state-of-the-union"
_TIMEOUT_SECONDS = 30
_READ_BYTES = 1 << 18
# Some hosts reject Python's default user agent.
_AGENT = "Mozilla/5.0 (compatible; zipflm)"


@dataclass(frozen=True)
class Corpus:
    """An archive, bundled or to download."""

    archive: str
    members: Mapping[str, str]
    """Glob pattern for the files of each split in the archive."""
    mirrors: Sequence[str] = ()
    sha256: str = ""
    """Hash of a downloaded archive, as listed by several public projects."""


_METAMIND = "https://s3.amazonaws.com/research.metamind.io/wikitext"
_SMERITY = "https://wikitext.smerity.com"
_MXNET = "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset"
_BENCHMARK = "1-billion-word-language-modeling-benchmark-r13output"


def _wikitext(size: int, sha256: str) -> Corpus:
    name = f"wikitext-{size}"
    archive = f"{name}-v1.zip"
    return Corpus(
        archive=archive,
        mirrors=(f"{_SMERITY}/{archive}", f"{_METAMIND}/{archive}", f"{_MXNET}/{name}/{archive}"),
        sha256=sha256,
        members={split: f"{name}/wiki.{split}.tokens" for split in SPLITS},
    )


CORPORA: dict[str, Corpus] = {
    EMBEDDED: Corpus(
        archive="state_of_the_union.tar.xz",
        members={split: f"{split}.txt" for split in SPLITS},
    ),
    "wikitext-2": _wikitext(2, "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"),
    "wikitext-103": _wikitext(
        103, "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"
    ),
    "billion-word": Corpus(
        archive=f"{_BENCHMARK}.tar.gz",
        mirrors=(
            f"https://www.statmt.org/lm-benchmark/{_BENCHMARK}.tar.gz",
            f"http://www.statmt.org/lm-benchmark/{_BENCHMARK}.tar.gz",
        ),
        sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
        # Published results use the first held-out shard; the second is for validation.
        members={
            "train": f"{_BENCHMARK}/training-monolingual.tokenized.shuffled/news.en-*-of-00100",
            "valid": f"{_BENCHMARK}/heldout-monolingual.tokenized.shuffled/*-00001-of-00050",
            "test": f"{_BENCHMARK}/heldout-monolingual.tokenized.shuffled/*-00000-of-00050",
        },
    ),
}


@contextmanager
def corpus_texts(
    name: str, cache: Path, report: ProgressCallback = lambda task, done, total: None
) -> Iterator[dict[str, list[Path]]]:
    """Yield the text files of each split. They are removed on exit.

    Raises ValueError for an unknown name or a damaged archive, and OSError if the download
    fails.
    """
    if name not in CORPORA:
        raise ValueError(f"corpus={name}: choose from {', '.join(CORPORA)}")
    corpus = CORPORA[name]
    if name == EMBEDDED:
        parent, remedy = None, TEMPORARY_REMEDY
        archive = Path(__file__).with_name(corpus.archive)
    else:
        parent, remedy = cache, "free some space or choose another cache folder"
        archive = fetch(
            corpus, cache, lambda done, total: report(f"downloading {name}", done, total)
        )
    with TemporaryDirectory(prefix="zipflm-", dir=parent) as folder:
        with report_full_disk(parent or Path(folder), remedy):
            _unpack(archive, folder)
        yield {
            split: sorted(Path(folder).glob(pattern)) for split, pattern in corpus.members.items()
        }


def fetch(
    corpus: Corpus,
    cache: Path,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Path:
    """Return the archive in `cache`, downloading it from the first mirror that works if needed.

    `progress` is called with the number of bytes just received, and the file size if known. Raises
    OSError if no mirror works, and ValueError if the file exists with another hash.
    """
    path = cache / corpus.archive
    if path.exists():
        _require_hash(path, corpus.sha256, "remove it and download it again")
        return path
    cache.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in corpus.mirrors:
        request = urllib.request.Request(url, headers={"User-Agent": _AGENT})
        try:
            with atomic_write(path) as part:
                with (
                    urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response,
                    open(part, "wb") as file,
                ):
                    length = response.headers.get("Content-Length")
                    while data := response.read(_READ_BYTES):
                        file.write(data)
                        progress(len(data), int(length) if length else None)
                _require_hash(part, corpus.sha256, "not the expected file, or truncated")
            return path
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            TimeoutError,
            ConnectionError,
            ValueError,
        ) as error:
            failures.append(f"{url} ({error})")
    raise OSError(
        f"could not download {path.name}: {'; '.join(failures)}. Download it manually to "
        f"{path.absolute()} and run the command again"
    )


def _require_hash(path: Path, sha256: str, remedy: str) -> None:
    digest = file_hash(path)
    if digest != sha256:
        raise ValueError(f"{path}: SHA-256 is {digest}, expected {sha256}; {remedy}")


def _unpack(archive: Path, folder: str) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(folder)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
