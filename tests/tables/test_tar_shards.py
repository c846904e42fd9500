"""Tar shards behind URLs: rows by number as of local ones; an index is made once, a shard comes once."""

from __future__ import annotations

import io
import pickle
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

import torchyoga as yoga
from torchyoga.errors import CorruptError, YogaError
from torchyoga.testing import check_dataref, check_resume, check_view

SHARDS, EACH = 6, 25
Served = tuple[str, Path, list[str]]


class Noting(SimpleHTTPRequestHandler):
    """Notes the files that are downloaded; says when each was written."""

    asked: list[str]

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.server.asked.append(Path(self.path).name)  # type: ignore[attr-defined]
        super().do_GET()

    def end_headers(self) -> None:
        file = Path(self.translate_path(self.path))
        if file.is_file():
            self.send_header("ETag", f'"{file.stat().st_mtime_ns}"')
        super().end_headers()


def write(path: Path, samples: list[dict[str, bytes]]) -> None:
    with tarfile.open(path, "w") as file:
        for sample in samples:
            for name, data in sample.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))


def sample(n: int) -> dict[str, bytes]:
    found = {f"{n:04}.png": b"an image" * (n % 4), f"{n:04}.cls": b"%d" % n}
    return found if n % 10 else found | {f"{n:04}.txt": "é".encode()}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A URL of shards, the folder, and the files that were downloaded."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(SHARDS):
        write(folder / f"s-{number}.tar", [sample(n) for n in range(number * EACH, (number + 1) * EACH)])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Noting, directory=str(folder)))
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/s-{{0..{SHARDS - 1}}}.tar", folder, server.asked  # type: ignore[attr-defined]
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_rows_are_those_of_local_shards(served: Served, tmp_path: Path) -> None:
    url, folder, asked = served
    ref = yoga.webdataset(url, cache_dir=tmp_path / "cache")
    local = yoga.webdataset(folder)
    assert len(ref) == len(local) == SHARDS * EACH
    assert (
        ref[30] == local[30] == {"__key__": "0030", "png": b"an image" * 2, "cls": b"30", "txt": "é".encode()}
    )
    assert list(ref) == list(local)
    assert ref.file_starts.tolist() == local.file_starts.tolist()
    assert ref.fingerprint == local.fingerprint
    check_dataref(ref)
    check_view(lambda base: base[3:].columns(["cls", "png"]), ref, workers=0)
    check_resume(lambda: yoga.DataLoader(ref.columns(["cls"]), 16, shuffle="block", seed=7), 4)
    parsed = yoga.webdataset(url, parse={"cls": int}, cache_dir=tmp_path / "cache")
    assert parsed[77]["cls"] == 77
    assert asked.count("s-3.tar") == 1
    assert pickle.loads(pickle.dumps(ref))[7]["cls"] == b"7"


def test_the_index_of_local_shards_is_kept_until_they_change(served: Served, tmp_path: Path) -> None:
    def kept() -> set[int]:
        return {path.stat().st_ino for path in (tmp_path / "cache").rglob("*.index")}

    _, folder, _ = served
    opened = yoga.webdataset(folder, cache_dir=tmp_path / "cache")
    before = kept()
    again = yoga.webdataset(folder, cache_dir=tmp_path / "cache")
    assert len(before) == SHARDS
    assert kept() == before
    assert list(again) == list(opened)
    assert again.fingerprint == opened.fingerprint
    write(folder / "s-0.tar", [sample(0)])
    assert len(yoga.webdataset(folder, cache_dir=tmp_path / "cache")) == (SHARDS - 1) * EACH + 1
    assert len(kept() & before) == SHARDS - 1


def test_the_index_is_made_once_and_an_epoch_downloads_each_shard_once(
    served: Served, tmp_path: Path
) -> None:
    url, folder, asked = served
    largest = max(path.stat().st_size for path in folder.iterdir())
    small = 4 * largest  # shards at once
    assert len(yoga.webdataset(url, cache_dir=tmp_path / "cache", cache_bytes=small)) == SHARDS * EACH
    assert sorted(set(asked)) == sorted(path.name for path in folder.iterdir())
    del asked[:]
    again = yoga.webdataset(url, cache_dir=tmp_path / "cache", cache_bytes=small)
    assert len(again) == SHARDS * EACH
    assert not asked
    loader = yoga.DataLoader(again, 10, shuffle="block", shuffle_window=2, seed=1)
    keys = [key for batch in loader for key in batch["__key__"]]
    assert sorted(keys) == [f"{n:04}" for n in range(SHARDS * EACH)]
    assert all(asked.count(name) <= 1 for name in set(asked))


def test_a_shard_that_has_changed_is_an_error(served: Served, tmp_path: Path) -> None:
    url, folder, _ = served
    ref = yoga.webdataset(url, cache_dir=tmp_path / "cache")
    assert len(ref) == SHARDS * EACH
    for file in (tmp_path / "cache" / "files").glob("*.shard"):
        file.unlink()
    write(folder / "s-2.tar", [sample(n + 1000) for n in range(2 * EACH, 3 * EACH)])
    fresh = pickle.loads(pickle.dumps(ref))
    assert fresh[0]["cls"] == b"0"
    with pytest.raises(CorruptError, match=r"s-2\.tar has changed since it was opened"):
        fresh[2 * EACH]


def test_bad_shards(served: Served, tmp_path: Path) -> None:
    url, folder, _ = served
    whole = (folder / "s-1.tar").read_bytes()
    (folder / "s-1.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptError, match=r"s-1\.tar.*it is cut"):
        yoga.webdataset(url, cache_dir=tmp_path / "cache")
    with pytest.warns(UserWarning, match="1 of 6 shards"):
        ref = yoga.webdataset(url, max_bad=0.5, cache_dir=tmp_path / "cache")
    assert SHARDS * EACH - EACH < len(ref) < SHARDS * EACH
    assert ref.left_out[0].name.endswith("s-1.tar")
    (folder / "s-1.tar").unlink()
    with pytest.raises(YogaError, match=r"s-1\.tar"):
        len(yoga.webdataset(url, cache_dir=tmp_path / "cache"))


def test_wildcards_in_folders_of_a_url(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    for folder in ("wild/a", "wild/b", "wild/b/c", "other"):
        write(tmp_path / "x.tar", [sample(len(folder))])
        store.pipe(f"/{folder}/x.tar", (tmp_path / "x.tar").read_bytes())
    for pattern, keys in (("*/x.tar", ["0006", "0006"]), ("**/x.tar", ["0006", "0008", "0006"])):
        ref = yoga.webdataset(f"memory://wild/{pattern}", cache_dir=tmp_path / "cache")
        assert [row["__key__"] for row in ref] == keys
