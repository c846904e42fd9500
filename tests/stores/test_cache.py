"""The cache folder: what is in it, what is deleted to make room, and which process downloads."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from children import run_program, started
from disks import small_disk
from hypothesis import given
from hypothesis import strategies as st
from waiting import running

from torchyoga.errors import BusyError, RemoteError, YogaError
from torchyoga.files.root import Root
from torchyoga.stores.cache import Cache, default_folder


def key(name: str) -> str:
    """The key of the file with this letter."""
    return f"{ord(name):032x}.mdb"


K = key("k")


def filled(cache: Cache, name: str, nbytes: int, download: Callable[[Path], None], what: str = "k") -> Path:
    cache.fill(name, nbytes, download, what)
    return cache.folder / "files" / name


def put(cache: Cache, name: str, nbytes: int) -> Path:
    return filled(cache, key(name), nbytes, lambda path: (path.write_bytes(name.encode() * nbytes), None)[1])


def kept(cache: Cache) -> dict[str, int]:
    folder = cache.folder / "files"
    found = folder.iterdir() if folder.exists() else ()
    return {chr(int(path.stem, 16)): path.stat().st_size for path in found}


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=30), st.integers(0, 40))
def test_files_not_used_for_longest_are_deleted_first(uses: list[tuple[str, bool]], limit: int) -> None:
    """Compared with a list of names in order of use."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        cache, sizes = Cache(Path(folder), limit), dict(zip("abcdefgh", range(3, 19, 2), strict=True))
        order: list[str] = []
        for nth, (name, only_look) in enumerate(uses):
            if only_look:
                cache.find(key(name))
            else:
                put(cache, name, sizes[name])
            if name in order:
                order.remove(name)
            elif only_look:
                continue
            else:
                while order and sum(sizes[n] for n in order) + sizes[name] > limit:
                    order.pop(0)
            order.append(name)
            # Two uses within one tick of the file system's clock could not be told apart.
            os.utime(Path(folder) / "files" / key(name), ns=(nth * 10**9, nth * 10**9))
            assert kept(cache).keys() == set(order)
            assert sum(kept(cache).values()) <= max(limit, sizes[name])


def test_a_file_that_cannot_be_deleted_does_not_count_as_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, unlink = Cache(tmp_path, 20), Root.unlink

    def refused(root: Root, name: str) -> bool:
        if name == f"files/{key('a')}":  # as on Windows
            raise PermissionError(errno.EACCES, "it is open", name)
        return unlink(root, name)

    monkeypatch.setattr(Root, "unlink", refused)
    for number, name in enumerate("ab"):
        os.utime(put(cache, name, 8), (number, number))
    put(cache, "c", 8)
    assert kept(cache).keys() == {"a", "c"}


def test_a_deleted_file_stays_readable_while_it_is_mapped(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10)
    with open(put(cache, "a", 8), "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    put(cache, "b", 8)
    assert not cache.has(key("a"))
    assert mapped[:] == b"a" * 8


def test_an_interrupted_download_goes_on_where_it_ended(tmp_path: Path) -> None:
    cache, seen = Cache(tmp_path), []

    def download(path: Path) -> None:
        with cache.part(path.name) as file:
            seen.append(file.tell())
            file.write(b"x" * 5)
            if file.tell() < 15:
                raise RemoteError("the line was cut")

    for _ in range(2):
        with pytest.raises(RemoteError, match="cut"):
            cache.fill(K, 15, download, "k")
        assert not cache.has(K)
    assert filled(cache, K, 15, download).read_bytes() == b"x" * 15
    assert seen == [0, 5, 10]


def test_abandoned_parts_are_deleted(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 100)
    for name, age in ((key("o"), 2 * 86400), (key("n"), 60), ("my own", 2 * 86400)):
        part = tmp_path / "parts" / name
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(b"x")
        os.utime(part, (time.time() - age,) * 2)
    put(cache, "k", 5)
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {key("n"), "my own"}


def test_a_file_that_was_unused_for_days_stays_while_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    os.utime(put(cache, "a", 8), (1, 1))
    monkeypatch.setattr("torchyoga.stores.cache._looked", {})  # as in another process
    with cache.held(key("a")) as path:
        put(cache, "b", 8)
        assert path.read_bytes() == b"a" * 8


def test_on_a_full_disk_old_files_are_deleted_before_there_is_an_error(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    put(cache, "a", 5)
    put(cache, "b", 5)
    tries = []

    def download(path: Path) -> None:
        tries.append(sorted(kept(cache)))
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"no space left for s3://k \(7 MB\); make room") as error:
        cache.fill(K, 7_000_000, download, "s3://k")
    assert error.value.errno == errno.ENOSPC
    assert tries == [["a", "b"], ["b"], []]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="pass another cache_dir"):
        put(Cache(tmp_path / "file"), "k", 5)


def test_files_built_here_are_kept_if_they_fit(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 10)
    put(cache, "a", 8)
    for name, nbytes in (("large", 11), ("b", 9)):
        (tmp_path / "cache" / name).write_bytes(b"x" * nbytes)
        cache.adopt(key(name[0]), name)
    assert kept(cache) == {"b": 9}
    assert (tmp_path / "cache" / "large").exists()
    assert not (tmp_path / "cache" / "b").exists()


DOWNLOADER = """
import sys, time
from pathlib import Path
from torchyoga.stores.cache import Cache
folder, log, limit, nbytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), 1000
def download(path):
    with open(log, "a") as file:
        file.write(chr(int(path.stem, 16)))
    for _ in range(10):
        time.sleep(0.01)
        with open(path, "ab") as file:
            file.write(b"x" * (nbytes // 10))
for turn in range(3):
    for key in "abc":
        Cache(folder, limit).fill(f"{ord(key):032x}.mdb", nbytes, download, key)
        # Others may be about to keep theirs, and make room then.
        assert nbytes * len(list((folder / "files").iterdir())) <= limit + 2 * nbytes
"""


@pytest.mark.parametrize(("limit", "count"), [(10**6, 4), (1500, 3)])
def test_one_process_downloads_while_others_wait_and_all_share_a_bound(
    limit: int, count: int, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        arguments = [DOWNLOADER, str(tmp_path / "cache"), str(tmp_path / "log"), str(limit)]
        programs = [stack.enter_context(started(*arguments)) for _ in range(count)]
        assert [program.wait() for program in programs] == [0] * count
    assert sum(kept(Cache(tmp_path / "cache")).values()) <= limit
    # Where there is room for all, each comes once.
    assert limit < 3000 or sorted((tmp_path / "log").read_text()) == ["a", "b", "c"]


def test_a_downloader_that_dies_does_not_block_others(tmp_path: Path) -> None:
    dying = """
import os, signal, sys
from pathlib import Path
from torchyoga.stores.cache import Cache
def download(path):
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
Cache(Path(sys.argv[1])).fill(sys.argv[2], 8, download, "k")
"""
    assert run_program(dying, str(tmp_path), K).returncode != 0
    cache = Cache(tmp_path)

    def go_on(path: Path) -> None:
        with open(path, "ab") as file:
            file.write(b"+end")

    assert filled(cache, K, 8, go_on).read_bytes() == b"half+end"


def test_waiting_ends_if_a_download_makes_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyoga.stores.cache._LONGEST_STANDSTILL", 0.2)
    cache, begun, end = Cache(tmp_path), threading.Event(), threading.Event()

    def stand_still(path: Path) -> None:
        path.write_bytes(b"x")
        begun.set()
        end.wait(300)

    with running(lambda: cache.fill(K, 1, stand_still, "k")):
        assert begun.wait(300)
        with pytest.raises(BusyError, match="is downloading the file, but nothing has arrived"):
            cache.fill(K, 1, stand_still, "the file")
        end.set()


def test_waiting_goes_on_and_is_logged_while_a_download_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a clock that says 6 s at the first look of the one that waits, and 7 s at the second."""
    cache, begun, end = Cache(tmp_path), threading.Event(), threading.Event()
    seconds = iter([0.0, 6.0, 7.0])

    def download(path: Path) -> None:
        path.write_bytes(b"x")
        begun.set()
        end.wait(300)

    def now() -> float:
        found = next(seconds, 7.0)
        if found == 7:
            end.set()
        return found

    class Looking(Cache):
        def has(self, key: str) -> bool:
            with contextlib.suppress(FileNotFoundError), open(tmp_path / "parts" / K, "r+b") as part:
                part.seek(0, os.SEEK_END)
                part.write(b"x")
            return super().has(key)

    with running(lambda: cache.fill(K, 1, download, "k")):
        assert begun.wait(300)
        monkeypatch.setattr("torchyoga.stores.cache.time", SimpleNamespace(monotonic=now, time=time.time))
        monkeypatch.setattr("torchyoga.stores.cache._LONGEST_STANDSTILL", 0)
        assert filled(Looking(tmp_path), K, 1, download, "the file") == tmp_path / "files" / K
        end.set()
    assert caplog.messages == ["waiting for another process that downloads the file (6 s)"]
    assert caplog.records[0].name == "torchyoga"


def test_the_default_folder_is_the_user_s_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    if sys.platform == "linux":
        assert default_folder() == Path("/somewhere/cache/torchyoga")
        for nothing in ("", None):  # XDG's specification: an empty one counts as none
            monkeypatch.delenv("XDG_CACHE_HOME") if nothing is None else monkeypatch.setenv(
                "XDG_CACHE_HOME", ""
            )
            assert default_folder() == Path.home() / ".cache" / "torchyoga"
    assert default_folder().name == "torchyoga"


# -- links, modes, and files that are not ours


def write_part(cache: Cache, data: bytes) -> Callable[[Path], None]:
    def download(path: Path) -> None:
        with cache.part(path.name) as part:
            part.write(data)

    return download


@pytest.mark.parametrize("name", ["parts", "files", "locks", f"parts/{K}", f"files/{K}", f"locks/{K}.lock"])
@pytest.mark.parametrize("is_there", [True, False])
def test_links_in_a_cache_are_not_written_through(name: str, is_there: bool, tmp_path: Path) -> None:
    cache, outside = Cache(tmp_path / "cache"), tmp_path / "outside"
    put(cache, "a", 5)
    is_folder = "/" not in name
    if is_there:
        outside.mkdir() if is_folder else outside.write_bytes(b"precious")
    link = cache.folder / name
    if is_folder:
        for path in link.iterdir() if link.exists() else ():
            path.unlink()
        link.rmdir()
    link.symlink_to(outside)
    with pytest.raises((YogaError, OSError), match=re.escape(str(cache.folder))):
        cache.fill(K, 8, write_part(cache, b"from afar"), "k")
    assert link.is_symlink()
    assert outside.exists() == is_there
    assert not is_there or (
        list(outside.iterdir()) == [] if is_folder else outside.read_bytes() == b"precious"
    )


def test_a_link_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    path = put(cache, "k", 5)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    for act in (cache.find, cache.has, lambda name: put(cache, "k", 5)):
        with pytest.raises(YogaError, match="is a link where a file should be; remove it"):
            act(K)
    cache.drop(K)
    assert (tmp_path / "elsewhere").read_bytes() == b"k" * 5


def test_files_that_the_cache_has_not_written_are_not_deleted(tmp_path: Path) -> None:
    """The cache folder may be any folder of the user's."""
    photo = f"{'0' * 32}.jpg"  # some programs name their files like this
    names = ("files/photo.jpg", f"files/{photo}", f"parts/{photo}", "parts/cello.pdf", "locks/door")
    own = [tmp_path / name for name in (*names, "checking/account/1")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
        os.utime(path, (0, 0))
    cache = Cache(tmp_path, limit=10)
    for name in "abc":
        put(cache, name, 8)
    with cache.scratch():
        assert all(path.exists() for path in own)
    assert {path.name for path in (cache.folder / "files").iterdir()} == {key("c"), "photo.jpg", photo}
    # No locks are left of files that have arrived.
    assert {path.name for path in (cache.folder / "locks").iterdir()} == {"room.lock", "door"}


# -- checks


CHECKER = """
import sys, time
from pathlib import Path
from torchyoga.stores.cache import Cache
with Cache(Path(sys.argv[1])).scratch() as scratch:
    scratch.fill(sys.argv[2], 4, lambda path: (path.write_bytes(b"file"), None)[1], "k")
    print("checking", flush=True)
    sys.stdin.read()
"""


def test_files_left_by_a_killed_check_are_deleted_a_week_later(tmp_path: Path) -> None:
    with started(CHECKER, str(tmp_path), K) as dying, started(CHECKER, str(tmp_path), K) as living:
        for program in (dying, living):
            assert program.stdout.readline() == "checking\n"
        dying.kill()
        dying.wait()
        living.stdin.close()
        assert living.wait() == 0
    (left,) = (tmp_path / "checking").iterdir()
    with Cache(tmp_path).scratch() as scratch:
        assert [*scratch.folder.iterdir()] == []
        assert (left / "files" / K).read_bytes() == b"file"
    os.utime(left, (time.time() - 8 * 86400,) * 2)
    with Cache(tmp_path).scratch() as scratch:
        assert [*(tmp_path / "checking").iterdir()] == [scratch.folder]
    assert [*(tmp_path / "checking").iterdir()] == []


# -- obstacles


def test_nothing_is_left_of_a_download_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2**20) as disk:
        cache = Cache(disk.path)
        put(cache, "a", 1000)
        with pytest.raises(OSError, match=r"no space left for k .* make room there"):
            cache.fill(K, 2**21, write_part(cache, bytes(2**21)), "k")
        assert [path.name for path in disk.path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
        put(cache, "b", 1000)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_folder_deleted_while_a_file_is_downloaded_is_made_again(when: str, tmp_path: Path) -> None:
    cache, downloads = Cache(tmp_path / "cache"), []

    def download(path: Path) -> None:
        downloads.append(path)
        if len(downloads) < 3 and when == "before":
            shutil.rmtree(cache.folder)
        with cache.part(K) as file:
            file.write(b"abc")
        if len(downloads) < 3 and when == "after":
            shutil.rmtree(cache.folder)

    def missing(path: Path) -> None:
        downloads.append(path)
        cache.part(key("a")).close()
        raise FileNotFoundError("not in the store")

    for number in (1, 2, 3):  # whoever wants it asks again
        cache.fill(K, 3, download, "k")
        assert len(downloads) == number
    assert cache.path("files", K).read_bytes() == b"abc"
    with pytest.raises(FileNotFoundError, match="not in the store"):
        cache.fill(key("a"), 3, missing, "a")
    assert len(downloads) == 4
