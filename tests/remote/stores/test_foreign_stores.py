"""Other libraries' datasets behind S3, GCS and https, in a bounded cache: each file comes once an epoch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from golden.foreign_rows import DOCUMENTS, FOREIGN
from mds_files import encoded, write
from servers import Proxy, http_server
from waiting import eventually

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError
from torchyoga.tables.foreign import tokens
from torchyoga.testing import assert_rows_equal, check_dataref

ROWS, PER_SHARD = 3000, 150
READ: dict[str, tuple[str, Callable[..., yoga.DataRef]]] = {
    "mds/gz": ("", yoga.from_mds),
    "mds/zstd": ("", yoga.from_mds),
    "litdata/items": ("", yoga.from_litdata),
    "litdata/zstd": ("", yoga.from_litdata),
    "megatron": ("/uint16", yoga.from_megatron),
    "tfrecord": ("/steps.tfrecord", yoga.from_tfrecord),
    "../foreign/tfrecord": ("/x.tfrecord-*", yoga.from_tfrecord),
}
# Their files are those of other libraries, not versions of a storage.
pytestmark = pytest.mark.damages("no versions are stored")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))


def put(url: str, options: dict[str, Any] | None, folder: Path) -> None:
    fs, path = fsspec.core.url_to_fs(url, **(options or {}))
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            fs.pipe_file(f"{path}/{file.relative_to(folder)}", file.read_bytes())


@pytest.mark.parametrize("name", READ)
def test_rows_are_those_of_local_files(name: str, place: Any, tmp_path: Path) -> None:
    url, options = place
    below, read = READ[name]
    put(url, options, FOREIGN / name)
    ref = read(f"{url}{below}", storage_options=options, cache_dir=tmp_path)
    assert_rows_equal(list(ref), list(read(f"{FOREIGN / name}{below}")), name)


@pytest.mark.parametrize("name", ["mds/zstd", "litdata/items", "megatron", "tfrecord"])
def test_https_has_no_listing(name: str, tmp_path: Path) -> None:
    below, read = READ[name]
    with http_server(FOREIGN / name) as server:
        ref = read(f"{server.endpoint}{below}", cache_dir=tmp_path)
        assert_rows_equal(list(ref), list(read(f"{FOREIGN / name}{below}")), name)


def test_a_server_without_ranges_sends_all_for_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_PART", 4)  # bytes
    with http_server(FOREIGN / "megatron", ranges=False) as server:
        ref = yoga.from_megatron(f"{server.endpoint}/int32", cache_dir=tmp_path)
        assert len(ref.file_starts) > 4
        assert [row["tokens"].tolist() for row in ref] == [s for document in DOCUMENTS for s in document]


@pytest.fixture
def many(tmp_path: Path) -> tuple[Path, int]:
    """A dataset of many shards, and the bytes of a third of them."""
    write(tmp_path / "many", encoded(ROWS), PER_SHARD, {"n": 8})
    return tmp_path / "many", sum(path.stat().st_size for path in (tmp_path / "many").glob("*.mds")) // 3


def test_each_shard_comes_once_an_epoch_through_a_third_of_the_cache(
    many: tuple[Path, int], bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    folder, third = many
    put(f"s3://{bucket}/many", proxy.storage_options, folder)
    ref = yoga.from_mds(
        f"s3://{bucket}/many",
        storage_options=proxy.storage_options,
        cache_dir=tmp_path / "cache",
        cache_bytes=third,
    )
    loader = yoga.DataLoader(ref, 10, shuffle="block", shuffle_window=1, seed=1, collate_fn=list)
    for _ in range(2):
        proxy.clear()
        assert sorted(row["n"] for batch in loader for row in batch) == list(range(ROWS))
        counts = Counter(request.path for request in proxy.seen("GET", "shard."))
        # What the last epoch has left may still be there.
        assert set(counts.values()) == {1}
        assert len(counts) >= 2 * ROWS // PER_SHARD // 3
        kept = sum(path.stat().st_size for path in (tmp_path / "cache" / "files").iterdir())
        assert kept <= third


def test_shards_come_before_their_rows_are_asked_for(
    many: tuple[Path, int], bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    folder, third = many
    put(f"s3://{bucket}/many", proxy.storage_options, folder)
    ref = yoga.from_mds(
        f"s3://{bucket}/many",
        storage_options=proxy.storage_options,
        cache_dir=tmp_path,
        cache_bytes=3 * third,
    )
    batches = iter(yoga.DataLoader(ref, 10, shuffle="block", shuffle_window=1, seed=1, collate_fn=list))
    first = {row["n"] // PER_SHARD for row in next(batches)}
    eventually(lambda: len(proxy.seen("GET", "shard.")) > 2 * len(first))
    rest = itertools.chain.from_iterable(batches)
    assert len({row["n"] for row in rest}) == ROWS - 10


def test_tokens_come_in_parts_of_whole_rows(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_PART", 4)  # bytes
    url, options = place
    put(url, options, FOREIGN / "megatron")
    ref = yoga.from_megatron(f"{url}/uint16", storage_options=options, cache_dir=tmp_path, cache_bytes=200)
    assert [row["tokens"].tolist() for row in ref] == [s for document in DOCUMENTS for s in document]
    assert len(ref.file_starts) > 4
    check_dataref(ref)
    whole = yoga.from_megatron(
        f"{url}/uint16.idx", documents=True, storage_options=options, cache_dir=tmp_path
    )
    assert [row["tokens"].tolist() for row in whole] == [sum(document, []) for document in DOCUMENTS]


def test_tokens_that_change_behind_a_url_are_an_error(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    put("memory://tokens", None, FOREIGN / "megatron")
    ref = yoga.from_megatron("memory://tokens/uint16", cache_dir=tmp_path)
    fs.pipe_file("/tokens/uint16.bin", fs.cat_file("/tokens/uint16.bin")[:-2])
    with pytest.raises(CorruptError, match=r"memory://tokens/uint16\.bin has \d+ bytes where"):
        ref[0]
    with pytest.raises(CorruptError, match=r"uint16\.idx has 52 tokens of 2 bytes, but .*uint16\.bin has"):
        yoga.from_megatron("memory://tokens/uint16", cache_dir=tmp_path)
    fs.rm_file("/tokens/uint16.bin")
    with pytest.raises(CorruptError, match=r"uint16\.bin is missing though the index names it"):
        ref[0]
    with pytest.raises(NotFoundError, match=r"there is no file memory://tokens/uint16\.bin"):
        yoga.from_megatron("memory://tokens/uint16", cache_dir=tmp_path)
