"""yogadl's interface without TensorFlow; programs of yogadl are tested in frameworks/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import torchyoga.compat.yogadl as yogadl
from torchyoga.errors import NotFoundError


@pytest.fixture
def storage(tmp_path: Path) -> yogadl.Storage:
    return yogadl.storage.LFSStorage(yogadl.storage.LFSConfigurations(tmp_path))


def test_submit_replaces_and_fetch_streams(storage: yogadl.Storage) -> None:
    storage.submit(range(5), "x", "1")
    storage.submit(range(10), "x", "1")
    ref = storage.fetch("x", "1")
    assert isinstance(ref, yogadl.DataRef)
    stream = ref.stream(7)
    assert (len(ref), len(stream), list(stream), list(stream)[:2]) == (10, 10, [7, 8, 9], [0, 1])
    with pytest.raises(NotFoundError, match="'y' has no version '1'"):
        storage.fetch("y", "1")


def test_arguments_come_in_the_order_of_yogadl(storage: yogadl.Storage) -> None:
    storage.submit(range(10), "x", "1")
    ref = storage.fetch("x", "1")
    # start_offset, shuffle, skip_shuffle_at_epoch_end, shuffle_seed, shard_rank, num_shards, drop_...
    stream = ref.stream(0, True, True, 7, 1, 3, True)
    first, second = list(stream), list(stream)
    assert first == second == list(ref.ref.stream(shuffle=True, shuffle_seed=7))[1:9:3]
    with pytest.raises(ValueError, match="shuffle=True needs a shuffle_seed"):
        ref.stream(shuffle=True)
    orders = {tuple(ref.stream(shuffle=True, skip_shuffle_at_epoch_end=True)) for _ in range(5)}
    assert len(orders) > 1  # a new seed each time


def test_cacheable_runs_once(storage: yogadl.Storage) -> None:
    calls = []

    @storage.cacheable("x", "1")
    def make(length: int) -> Iterator[int]:
        calls.append(length)
        return iter(range(length))

    assert [len(make(n)) for n in (4, 9)] == [4, 4]
    assert calls == [4]


def test_names_with_braces_and_arguments_of_any_kind(storage: yogadl.Storage) -> None:
    @storage.cacheable("{x}", "{")
    def make(first: object, *rest: object, **named: object) -> Iterator[int]:
        return iter(range(3))

    assert len(make(object(), object(), x=object())) == len(storage.fetch("{x}", "{")) == 3


def test_a_custom_ref(storage: yogadl.Storage) -> None:
    class Letters(yogadl.DataRef):
        def stream(self, start_offset: int = 0, **options: object) -> yogadl.Stream:
            return yogadl.Stream(lambda: iter("abcde"[start_offset:]), len(self))

        def __len__(self) -> int:
            return 5

    storage.submit(Letters(), "letters", "1")
    storage.submit(storage.fetch("letters", "1"), "letters", "2")
    assert list(storage.fetch("letters", "2").stream(1)) == ["b", "c", "d", "e"]
    stream = Letters().stream(start_offset=2)
    assert (list(stream), len(stream), list(stream.iterator_fn())) == (["c", "d", "e"], 5, ["c", "d", "e"])
    assert (stream.output_types, stream.output_shapes) == (None, None)


@pytest.mark.parametrize("kind", ["S3", "GCS"])
def test_buckets(kind: str, tmp_path: Path) -> None:
    configurations = getattr(yogadl.storage, f"{kind}Configurations")
    with pytest.warns(UserWarning, match="url, skip_verify ignored, for there is no lock server") as caught:
        told_of = configurations("bucket", "a/b", "https://lock", skip_verify=True)
    assert caught[0].filename == __file__
    assert (told_of.url, told_of.skip_verify) == ("https://lock", True)
    plain = configurations("bucket", "a/b/", local_cache_dir=str(tmp_path))
    # Attributes that programs read: yogadl's names and types.
    assert (plain.bucket, plain.cache_format, plain.url) == ("bucket", "LMDB", None)
    assert plain.bucket_directory_path.joinpath("mnist", "1") == Path("a/b/mnist/1")
    assert plain.local_cache_dir == tmp_path
    assert configurations("bucket", Path("a")).local_cache_dir == Path("/tmp/")
    assert (plain.coordinator_cert_file, plain.coordinator_cert_name) == (None, None)
    assert isinstance(plain, yogadl.storage.BaseCloudConfigurations)
    assert plain.storage_url == f"{'s3' if kind == 'S3' else 'gs'}://bucket/a/b"
    made = getattr(yogadl.storage, f"{kind}Storage")(configurations=plain, tensorflow_config=None)
    assert isinstance(made, yogadl.storage.BaseCloudStorage)
    assert made.storage.url == plain.storage_url


def test_the_names_of_yogadl_exist(storage: yogadl.Storage) -> None:
    def make() -> yogadl.Submittable:
        return range(3)

    data: yogadl.Submittable = make()
    storage.submit(data=data, dataset_id="x", dataset_version="1")
    found: yogadl.dataref.LMDBDataRef = storage.fetch(dataset_id="x", dataset_version="1")
    assert type(found) is yogadl.dataref.LMDBDataRef
    assert yogadl.storage.LFSConfigurations("folder").cache_format == "LMDB"
    assert set(yogadl.__all__) <= set(vars(yogadl))
