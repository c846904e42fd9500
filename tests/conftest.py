"""What all tests share: deterministic hypothesis runs, sound versions at the end, and the real digits."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from quick import leave_to_the_rest
from smallfiles import make_files_of
from sound import check_versions
from torch.utils.data import Dataset

from torchyoga import Storage

settings.register_profile("torchyoga", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("quick", settings.get_profile("torchyoga"), max_examples=30)  # of `make test`
settings.load_profile("torchyoga")

# Workers and programs that are forked from a server need no seconds for imports.
multiprocessing.set_forkserver_preload(["torch", "torchyoga"])


def pytest_configure() -> None:
    # A shell has programs in the background ignore Ctrl-C, which tests press, here and in what they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the marks of an expression are looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_to_the_rest(items, is_whole=not any("::" in argument for argument in config.args))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept of files is not kept in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("kept")))
        yield


@pytest.fixture(autouse=True)
def versions_are_sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks every version that a test has left under its `tmp_path`, unless it is marked `damages`."""
    marker = request.node.get_closest_marker("damages")
    assert marker is None or marker.args, "say why the test damages versions: @pytest.mark.damages(reason)"
    if "tmp_path" not in request.fixturenames or marker:
        yield
        return
    folder: Path = request.getfixturevalue("tmp_path")  # requested here, so that it exists until the end
    yield
    check_versions(folder)


@pytest.fixture
def tmp_path_others_reach() -> Iterator[Path]:
    """A folder for tests in which there is another user."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o711)
        yield Path(path)


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk, for tests of who deletes what; `test_power` looks at what is synced."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def files_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Call it with how many rows each file has that is built from now on."""
    return partial(make_files_of, patch=monkeypatch.setattr)


@pytest.fixture(params=["directory", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage: a directory, or behind a URL."""
    if request.param == "directory":
        return Storage(tmp_path / "storage")
    return Storage(f"memory://{uuid.uuid4().hex}", cache_dir=tmp_path / "cache")


MNIST = Path(__file__).parents[2] / "shared" / "data" / "mnist"


@pytest.fixture(scope="session")
def mnist() -> tuple[np.ndarray, np.ndarray]:
    """10,000 real images (N, 28, 28) of uint8 and their labels (N,)."""
    if not MNIST.is_dir():
        pytest.skip("the MNIST files are not beside this checkout")
    images = gzip.decompress((MNIST / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((MNIST / "t10k-labels-idx1-ubyte.gz").read_bytes())
    return np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28), np.frombuffer(
        labels, np.uint8, offset=8
    )


class Broken(Dataset[int]):
    """A dataset whose row 9 cannot be read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise RuntimeError("row 9 is broken")
        return index


@pytest.fixture
def broken() -> Dataset[int]:
    """A dataset of 20 rows, one of which cannot be read."""
    return Broken()
