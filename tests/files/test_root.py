"""Roots: nothing is made, replaced or deleted through a link or outside; modes follow the umask."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest
from children import run_program
from others import OTHERS, remove
from waiting import PATIENCE, running

import torchyoga as yoga
from torchyoga.errors import CorruptError, YogaError
from torchyoga.files.root import Root, beside, open_regular, read_regular

needs_links = pytest.mark.skipif(os.name == "nt", reason="making links needs a right on Windows")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root(tmp_path / "top")
    made.make("a/b")
    return made


@pytest.fixture(params=[False, 0, 0o022, 0o077, 0o027])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param or 0)
    yield request.param or 0
    os.umask(before)


@pytest.mark.parametrize(
    "name", ["..", "a/../../x", "/x", "a//x", "a/", "", ".", "a/./x", "x\0y", "../top/x", "a/.."]
)
def test_names_that_lead_elsewhere_are_refused(root: Root, name: str) -> None:
    for act in (root.create, root.unlink, root.find, lambda name: root.move("a/x", name)):
        with pytest.raises(ValueError, match="is not the name of a file below a folder"):
            act(name)
    assert not list(root.top.rglob("x"))


ACTS: dict[str, Callable[[Root], object]] = {
    "create": lambda root: root.create("a/b/new").close(),
    "recreate": lambda root: root.recreate("a/b/there").close(),
    "touch": lambda root: root.touch("a/b/new"),
    "write": lambda root: root.write("a/b/there", b"forged"),
    "prepare": lambda root: root.prepare("a/b/there", b"forged"),
    "make": lambda root: root.make("a/b/c/d"),
    "unlink": lambda root: root.unlink("a/b/there"),
    "rmdir": lambda root: root.rmdir("a/b/folder"),
    "move from": lambda root: root.move("a/b/there", "new"),
    "move to": lambda root: root.move("file", "a/b/there"),
    "read": lambda root: root.read("a/b/there", 10),
    "scan": lambda root: root.scan("a/b"),
    "sync": lambda root: root.sync("a/b"),
}


@pytest.fixture(params=[True, False])
def handles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With folders held open, and without, as on Windows."""
    if not request.param:
        monkeypatch.setattr("torchyoga.files.root.HAS_HANDLES", False)


@needs_links
@pytest.mark.usefixtures("handles")
@pytest.mark.parametrize("act", list(ACTS))
@pytest.mark.parametrize("link", ["a", "a/b"])
def test_nothing_goes_through_a_folder_that_is_a_link(tmp_path: Path, act: str, link: str) -> None:
    root, outside = Root(tmp_path / "root"), tmp_path / "outside"
    root.make()
    root.write("file", b"file")
    target = outside / "b" if link == "a" else outside
    (target / "folder").mkdir(parents=True)
    (target / "there").write_bytes(b"mine")
    (root.top / link).parent.mkdir(exist_ok=True)
    (root.top / link).symlink_to(outside)
    before = sorted(path.relative_to(outside) for path in outside.rglob("*"))
    with pytest.raises(
        YogaError, match=f"root/{link} is a link to .*outside; torchyoga writes and deletes nothing"
    ):
        ACTS[act](root)
    assert sorted(path.relative_to(outside) for path in outside.rglob("*")) == before
    assert (target / "there").read_bytes() == b"mine"


@needs_links
@pytest.mark.parametrize("leads", ["to a file", "nowhere"])
def test_a_file_that_is_a_link_is_left_alone(root: Root, tmp_path: Path, leads: str) -> None:
    mine = tmp_path / "mine"
    if leads == "to a file":
        mine.write_bytes(b"mine")
    root.write("x", b"x")
    for name in ("a/link", beside("a/y")):
        (root.top / name).symlink_to(mine)
    with pytest.raises(FileExistsError):
        root.create("a/link")
    with pytest.raises(FileExistsError):
        root.recreate("a/link")
    with pytest.raises(FileExistsError):
        root.write("a/y", b"forged")
    for act in (
        lambda: root.touch("a/link"),
        lambda: root.read("a/link", 9),
        lambda: root.move("x", "a/link"),
        lambda: root.locked("a/link").__enter__(),
    ):
        with pytest.raises(YogaError, match=r"is a link to .*mine; torchyoga writes and deletes nothing"):
            act()
    assert not root.unlink("a/link")
    assert not root.rmdir("a/link")
    assert mine.exists() == (leads == "to a file")
    assert not mine.exists() or mine.read_bytes() == b"mine"
    assert os.path.islink(root.top / "a" / "link")


@needs_links
def test_links_on_the_way_to_the_root_are_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    root = Root(tmp_path / "home" / "root")
    root.make("a")
    root.write("a/x", b"x")
    assert (tmp_path / "disk" / "root" / "a" / "x").read_bytes() == b"x"


@needs_links
def test_a_link_put_in_place_while_files_are_made_is_never_followed(tmp_path: Path) -> None:
    root, outside = Root(tmp_path / "root"), tmp_path / "outside"
    root.make("a")
    (tmp_path / "other").mkdir()
    outside.mkdir()
    (outside / "x").write_bytes(b"mine")
    over = threading.Event()

    def swap() -> None:
        (tmp_path / "link").symlink_to(outside)
        while not over.is_set():
            os.rename(root.top / "a", tmp_path / "away")
            os.rename(tmp_path / "link", root.top / "a")
            os.rename(root.top / "a", tmp_path / "link")
            os.rename(tmp_path / "away", root.top / "a")
            time.sleep(0.0005)

    kinds: Counter[str] = Counter()
    deadline = time.monotonic() + 60
    with running(swap):
        try:
            while min(kinds["done"], kinds["YogaError"]) < 100 and time.monotonic() < deadline:
                try:
                    root.write("a/x", b"forged")
                    root.unlink("a/x")
                    kinds["done"] += 1
                except (YogaError, FileNotFoundError, FileExistsError, NotADirectoryError) as error:
                    kinds[type(error).__name__] += 1
        finally:
            over.set()
    assert os.listdir(outside) == ["x"]
    assert (outside / "x").read_bytes() == b"mine"
    assert min(kinds["done"], kinds["YogaError"]) >= 100, kinds


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_modes_follow_the_umask_without_write_for_others(tmp_path: Path, umask: int) -> None:
    for root, folders, files, whole in (
        (Root(tmp_path / "up" / "own"), 0o755 & ~umask, 0o644 & ~umask, 0o644),
        (Root(tmp_path / "private", private=True), 0o700, 0o600, 0o600),
        (Root(tmp_path / "shared", shared=True), 0o2775 & ~umask | 0o2070, 0o664 & ~umask | 0o060, 0o664),
        (Root(tmp_path / "team", shared=True, private=True), 0o2770, 0o660, 0o660),
    ):
        assert root.file_mode == whole
        root.make("a/b")
        root.write("a/b/x", b"x")
        root.touch("a/b/y")
        for name in ("", "a", "a/b"):
            assert stat.S_IMODE((root.top / name).stat().st_mode) == folders, oct(folders)
        for name in ("a/b/x", "a/b/y"):
            assert stat.S_IMODE((root.top / name).stat().st_mode) == files, oct(files)
    assert stat.S_IMODE((tmp_path / "up").stat().st_mode) == 0o755 & ~umask


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    os.chmod(tmp_path / "root", 0o777)
    Root(tmp_path / "root", private=True).make("a")
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o777


def test_something_that_is_not_a_file_is_not_read_and_does_not_hang(root: Root) -> None:
    with pytest.raises((CorruptError, OSError)):
        root.read("a/b", 9)
    if hasattr(os, "mkfifo"):
        os.mkfifo(root.top / "pipe")
        with pytest.raises(CorruptError, match="pipe is a FIFO where a file should be"):
            root.read("pipe", 9)
        assert not root.unlink("pipe")
        with pytest.raises(YogaError, match="pipe is not a file, and torchyoga has not made it"):
            root.reopen("pipe")
    root.write("x", b"12345")
    assert root.read("x", 5) == b"12345"
    with pytest.raises(CorruptError, match="larger than 4 bytes"):
        root.read("x", 4)
    with pytest.raises(FileNotFoundError):
        root.read("nothing", 4)


def test_folders_are_made_while_others_delete_them(root: Root) -> None:
    over = threading.Event()

    def tidy() -> None:
        while not over.is_set():
            root.at("c/d/e").remove_empty()

    with running(tidy):
        try:
            for _ in range(500):
                root.make("c/d/e")
        finally:
            over.set()
    root.make("c/d/e")
    root.touch("c/x")
    root.at("c/d/e").remove_empty()
    assert [entry.name for entry in root.scan("c")] == ["x"]
    Root(root.top).remove_empty()
    assert root.top.is_dir()


def test_names_are_relative_to_a_folder(root: Root) -> None:
    below = root.at("a").at("b")
    below.write("x", b"x")
    assert below.path == root.top / "a" / "b"
    assert [entry.name for entry in root.scan("a/b")] == ["x"]
    below.move("x", "y")
    found = root.find("a/b/y")
    assert found is not None
    assert (found.is_file, found.is_folder, found.nbytes) == (True, False, 1)
    assert root.find("a/b/x") is None
    assert root.scan("nowhere/at/all") == []


@pytest.mark.usefixtures("handles")
def test_what_was_deleted_is_said(root: Root) -> None:
    root.make("a/b/folder")
    root.touch("a/b/x")
    assert root.rmdir("a/b") is False
    assert root.unlink("a/b/folder") is root.unlink("a/b/nothing") is root.unlink("nowhere/x") is False
    assert root.rmdir("a/b/x") is root.rmdir("a/b/nothing") is root.rmdir("nowhere/x") is False
    assert root.unlink("a/b/x") is root.rmdir("a/b/folder") is root.rmdir("a/b") is True
    assert root.scan("a") == []


def test_a_file_where_a_folder_is_needed_is_named(root: Root) -> None:
    root.touch("x")
    with pytest.raises(YogaError, match="x is not a folder, and torchyoga has not made it; move it away"):
        root.make("x/y")
    root.make("folder")
    with pytest.raises(YogaError, match="folder is not a file"):
        root.touch("folder")
    with pytest.raises(YogaError, match="folder is not a file"):
        root.move("x", "folder")


def test_a_write_that_fails_leaves_the_old_file(root: Root) -> None:
    root.write("x", b"old")
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    code = """
import resource, signal, sys
from pathlib import Path
from torchyoga.files.root import Root
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    Root(Path(sys.argv[1])).write("x", b"new" * 1000)
except OSError as error:
    print(error.errno)
"""
    finished = run_program(code, str(root.top))
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) == errno.EFBIG
    assert root.read("x", 9) == b"old"
    assert root.find(beside("x")) is None


def test_a_file_with_another_name_is_not_written(root: Root, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    os.link(tmp_path / "mine", root.top / "a" / "part")
    with pytest.raises(YogaError, match=r"a/part is a file that has other names \(hard links\); remove it"):
        root.reopen("a/part")
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_a_lock_is_held_by_one_and_by_those_who_know_filelock(tmp_path: Path) -> None:
    root, other = Root(tmp_path), filelock.FileLock(tmp_path / "k.lock")
    with root.locked("k.lock") as is_held:
        assert is_held
        with root.locked("k.lock") as is_held_again:
            assert not is_held_again
        with pytest.raises(filelock.Timeout):
            other.acquire(timeout=0)
    with other.acquire(timeout=0), root.locked("k.lock") as is_held:
        assert not is_held


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    """The child lives on, as a worker does, when the parent has left the lock, or has died."""
    root = Root(tmp_path)
    ours, theirs = os.pipe()
    holder = os.fork()
    if not holder:
        with root.locked("k.lock") as is_held:
            child = os.fork()
            if not child:
                time.sleep(PATIENCE)
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(theirs, child.to_bytes(4, "little") if is_held else bytes(4))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(holder, 0)
    child = int.from_bytes(os.read(ours, 4), "little")
    try:
        assert child
        with root.locked("k.lock") as is_held:
            assert is_held
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(ours)
        os.close(theirs)


# -- something else in place of a file


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 3) == b"abc"
    with pytest.raises(CorruptError, match="larger than any manifest"):
        read_regular(tmp_path / "file", 2)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", OTHERS)
def test_something_in_place_of_a_file_of_a_storage_is_named(kind: str, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    storage.submit([1, 2], "a", "1")
    folder = storage.path / "a" / "1"
    (data,) = folder.glob("*.mdb")
    for path in (folder / "manifest.json", data):
        path.rename(tmp_path / "kept")
        OTHERS[kind](path)
        for ask in (lambda: storage.fetch("a", "1")[0], lambda: storage.check("a", "1")):
            with pytest.raises(CorruptError, match=kind):
                ask()
        remove(path)
        (tmp_path / "kept").rename(path)
    assert list(storage.fetch("a", "1")) == [1, 2]


@pytest.mark.parametrize("kind", OTHERS)
def test_something_in_place_of_a_file_of_a_build_is_named(kind: str, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    folder = storage.path / ".staging" / "a" / "1"
    folder.mkdir(parents=True)
    OTHERS[kind](folder / "progress.json")
    is_link = (folder / "progress.json").is_symlink()  # builders do not follow links
    with pytest.raises(YogaError, match=f"progress.json is {'a link to' if is_link else kind}"):
        storage.submit([1, 2], "a", "1")
    assert os.path.lexists(folder / "progress.json")
