"""`python -m torchyoga` says what is installed."""

from __future__ import annotations

import subprocess
import sys

import torch
from waiting import PATIENCE

import torchyoga


def versions(*options: str) -> dict[str, str]:
    command = [sys.executable, *options, "-m", "torchyoga"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return {line[:12].strip(): line[12:] for line in found.stdout.splitlines()}


def test_versions_and_what_is_missing() -> None:
    found = versions()
    assert found["torchyoga"] == torchyoga.__version__
    assert found["torch"] == torch.__version__
    assert found["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"numpy", "lmdb", "h5py", "fsspec", "isal", "s3fs", "gcsfs", "adlfs"} <= found.keys()
    assert all(found.values())
    missing = [text.removeprefix("not installed: ") for text in found.values() if text.startswith("not")]
    assert all(missing)  # what is done without
