"""Named corpora: the bundled State of the Union addresses, and corpora to download.

The notice next to the bundled data file states its origin and license.
"""

from __future__ import annotations

import html
import http.client
import lzma
import re
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from io import TextIOWrapper
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from zipflm.data.folder import SPLITS
from zipflm.storage import TEMPORARY_REMEDY, atomic_write, file_hash, report_full_disk

_FILE = "state_of_the_union.txt.xz"

_ABBREVIATIONS = (
    "Messrs Mr Mrs Ms Dr Prof Brig Maj Gen Gov Col Capt Lieut Sen Hon Rev St Jr Sr Nos No Art Sec "
    "Comp Co Inc pp p vols vol lbs viz vs etc Jan Feb Mar Apr Aug Sept Oct Nov Dec"
)
_TOKEN = re.compile(
    rf"""
    (?:{"|".join(_ABBREVIATIONS.split())})\.(?=[\s-])   # an abbreviation keeps its period
  | (?:[A-Z]\.){{2,}} | [A-HJ-Z]\.(?=\s)              # as do initials: U.S., J. Q. (I is a word)
  | \d+(?:[.,]\d+)*\w*                               # 1,234.56 and 73d
  | \w+(?:[-'\u2019\u2011]\w+)*                      # words, with hyphens and apostrophes
  | \.\.\.+ | --+
  | \S
    """,
    re.VERBOSE,
)
# Notes on reactions of the audience, such as [Laughter].
_NOTE = re.compile(r"\[(?:laughter|applause)\.?\]|\((?:laughter|applause)\.?\)", re.IGNORECASE)
_ENDS = frozenset(".?!")
_CONTINUES = frozenset(",;:.?!-\u2014")
_CLOSES = frozenset("\"')]\u201d\u2019")


def addresses() -> Iterator[str]:
    """Yield the text of each address, oldest first, without its heading line."""
    with (files("zipflm.data") / _FILE).open("rb") as stored, lzma.LZMAFile(stored) as plain:
        lines = TextIOWrapper(plain, encoding="utf-8")
        for _, text in zip(lines, lines, strict=True):
            yield html.unescape(text)


def sentences(text: str) -> Iterator[str]:
    """Yield sentences as tokens joined by spaces, without notes such as [Laughter].

    >>> list(sentences('Mr. Speaker: "It is so." We agree, in the U.S. and elsewhere.'))
    ['Mr. Speaker : " It is so . "', 'We agree , in the U.S. and elsewhere .']
    """
    sentence: list[str] = []
    tokens = _TOKEN.findall(_NOTE.sub(" ", text))
    for token, following in zip_longest(tokens, tokens[1:], fillvalue=""):
        sentence.append(token)
        if following not in _CLOSES and _ends_sentence(sentence, following):
            yield " ".join(sentence)
            sentence = []
    if sentence:
        yield " ".join(sentence)


def _ends_sentence(sentence: list[str], following: str) -> bool:
    """Return True after . ? or ! and any closing marks, unless the sentence continues."""
    closed = len(sentence)
    while closed > 1 and sentence[closed - 1] in _CLOSES:
        closed -= 1
    is_continued = following[:1].islower() or following in _CONTINUES
    return sentence[closed - 1] in _ENDS and not is_continued


Report = Callable[[str, int, int | None], None]
"""Called with the current task, the number of bytes just processed, and the total if known."""
Splits = dict[str, list[Path]]

EMBEDDED = "state-of-the-union"
_TIMEOUT_SECONDS = 30
_READ_BYTES = 1 << 18
# Some hosts reject Python's default user agent.
_AGENT = "Mozilla/5.0 (compatible; zipflm)"


@dataclass(frozen=True)
class Corpus:
    """A downloadable corpus."""

    archive: str
    mirrors: Sequence[str]
    sha256: str
    """Hash of the archive, as listed by several public projects."""
    members: Mapping[str, str]
    """Glob pattern for the files of each split in the archive."""


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

NAMES = (EMBEDDED, *CORPORA)


@contextmanager
def corpus_texts(
    name: str, cache: Path, report: Report = lambda task, done, total: None
) -> Iterator[Splits]:
    """Yield the text files of each split. They are removed on exit.

    Raises ValueError for an unknown name or a damaged archive, and OSError if the download
    fails.
    """
    if name not in NAMES:
        raise ValueError(f"corpus={name}: choose from {', '.join(NAMES)}")
    if name == EMBEDDED:
        with TemporaryDirectory(prefix="zipflm-") as folder:
            with report_full_disk(Path(folder), TEMPORARY_REMEDY):
                splits = _write_addresses(Path(folder))
            yield splits
        return
    corpus = CORPORA[name]
    archive = fetch(
        cache / corpus.archive,
        corpus.mirrors,
        corpus.sha256,
        lambda done, total: report(f"downloading {name}", done, total),
    )
    with TemporaryDirectory(prefix=".unpacked-", dir=cache) as folder:
        with report_full_disk(cache, "free some space or choose another cache folder"):
            splits = _unpack(archive, corpus, Path(folder))
        yield splits


def fetch(
    path: Path,
    mirrors: Sequence[str],
    sha256: str,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Path:
    """Return `path`, downloading it from the first mirror that works if it does not exist.

    `progress` is called with the number of bytes just received, and the file size if known. Raises
    OSError if no mirror works, and ValueError if `path` exists with another hash.
    """
    if path.exists():
        _require_hash(path, sha256, "remove it and download it again")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in mirrors:
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
                _require_hash(part, sha256, "not the expected file, or truncated")
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


def _write_addresses(folder: Path) -> Splits:
    paths = {split: folder / f"{split}.txt" for split in SPLITS}
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    for index, address in enumerate(addresses()):
        # Hold out every tenth address, so that each split covers the full period.
        held_out = "test" if index // 10 % 2 else "valid"
        texts[held_out if index % 10 == 9 else "train"] += sentences(address)
    for split, path in paths.items():
        path.write_text("\n".join(texts[split]) + "\n", encoding="utf-8")
    return {split: [path] for split, path in paths.items()}


def _unpack(archive: Path, corpus: Corpus, folder: Path) -> Splits:
    """Extract only the needed members, under safe file names."""
    splits: Splits = {split: [] for split in corpus.members}
    try:
        for name, file in _members(archive):
            for split, pattern in corpus.members.items():
                if fnmatchcase(name, pattern):
                    path = folder / f"{split}-{name.rpartition('/')[2]}"
                    with open(path, "wb") as copy:
                        shutil.copyfileobj(file, copy, 1 << 20)
                    splits[split].append(path)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive}: damaged: {error}; remove it and download it again") from None
    for split, paths in splits.items():
        if not paths:
            raise ValueError(f"{archive}: contains no file {corpus.members[split]}")
        paths.sort()
    return splits


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as files:
            for name in files.namelist():
                with files.open(name) as file:
                    yield name, file
        return
    with tarfile.open(archive, "r|gz") as stream:
        for member in stream:
            content = stream.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content
