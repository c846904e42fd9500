"""`make` installs wheels with their native libraries; `python -m torchyoga` says what is installed."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from waiting import PATIENCE

import torchyoga

ROOT = Path(__file__).parents[1]
INSTALL = runpy.run_path(str(ROOT / "release" / "install.py"))
# Prints the shared libraries that packages load, but those of Python's own modules and those of the packages.
LOADED = """
import bz2, ctypes, hashlib, importlib, lzma, sqlite3, ssl, sys, uuid, zlib
def loaded():
    lines = [line.split(None, 5)[5:] for line in open("/proc/self/maps")]
    return {line[0].strip() for line in lines if line and ".so" in line[0]}
own = loaded()
for name in sys.argv[1:]:
    importlib.import_module(name)
brought = {"site-packages", "lib-dynload"}
print(*(path for path in loaded() - own if not brought & set(path.split("/"))), sep="\\n")
"""
# Packages with native parts that `make test` installs; wheels made for Linux may take these from the system.
NATIVE = {
    "media": "soundfile cv2 imagecodecs simplejpeg skimage PIL.Image",
    "tables": "pyarrow.parquet polars pandas",
    "others": "lmdb h5py hdf5plugin zstandard obstore isal xxhash sklearn torch",
}
OF_THE_SYSTEM = r"/(ld-linux[-\w]*|lib(c|m|mvec|dl|rt|pthread|util|gcc_s|stdc\+\+|z))[-.\d]*\.so[.\d]*$"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.quick("media")
@pytest.mark.parametrize("kind", NATIVE)
def test_packages_bring_their_native_libraries(kind: str) -> None:
    command = [sys.executable, "-c", LOADED, *NATIVE[kind].split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert [path for path in done.stdout.split() if not re.search(OF_THE_SYSTEM, path)] == []


@pytest.mark.parametrize(
    ("listed", "failing", "last"),
    [
        ("", None, "uv"),
        ("user.name='index-url'\nglobal.timeout='9'\n", None, "uv"),
        ("", "uv pip", "pip"),
        ("", "--quiet", "pip"),
        (":env:.find-links='/wheels'", None, "pip"),
        ("global.extra-index-url='file:///one/simple file:///other/simple'", None, "pip"),
        ("install.index-url='https://packages.example/simple'", None, "pip"),
    ],
)
def test_pip_installs_where_it_has_sources_of_its_own_and_where_uv_cannot(
    listed: str, failing: str | None, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[list[str], Any]] = []

    def run(command: list[str], env: Any = None, **options: Any) -> SimpleNamespace:
        asked.append((command, env))
        return SimpleNamespace(stdout=listed, returncode=failing is not None and failing in " ".join(command))

    assert INSTALL["main"](["-c", "constraints.txt", "-e", ".[demo]"], run) == 0
    command, environment = asked[-1]
    assert command[:3] == [sys.executable, "-m", last]
    assert command[-4:] == ["-c", "constraints.txt", "-e", ".[demo]"]
    if last == "uv":
        assert environment["UV_TORCH_BACKEND"] == "cpu"
    assert ("minutes" in capsys.readouterr().out) == (failing == "uv pip")


def test_every_environment_of_make_is_made_so() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"-m pip install .*", makefile.split("dist-check:")[0]) == []
    assert makefile.count("release/install.py ") == 3
    assert "EXTRAS_$(DOCS_STAMP) := demo,bench,docs\n" in makefile  # no TensorFlow


def test_versions_and_what_is_missing() -> None:
    command = [sys.executable, "-m", "torchyoga"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    found = {line[:12].strip(): line[12:] for line in done.stdout.splitlines()}
    assert found["torchyoga"] == torchyoga.__version__
    assert found["torch"] == torch.__version__
    assert found["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"numpy", "lmdb", "h5py", "fsspec", "isal", "s3fs", "gcsfs", "adlfs"} <= found.keys()
    assert all(found.values())
    missing = [text.removeprefix("not installed: ") for text in found.values() if text.startswith("not")]
    assert all(missing)  # what is done without
