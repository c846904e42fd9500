"""A control group of Linux for programs that tests start."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

__all__ = ["control_group"]


@contextlib.contextmanager
def control_group(kind: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Path]:
    """The folder of a new group with these settings; skips the test where that cannot be had.

    Args:
        kind: "cpu" or "memory".
        first: texts by the name of a file, where groups are of version 1.
        second: where they are of version 2.
    """
    root = Path("/sys/fs/cgroup") / kind
    settings = first if root.is_dir() else second
    folder = (root if root.is_dir() else root.parent) / f"torchyoga-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            for name, text in settings.items():
                (folder / name).write_text(text)
        except OSError as error:
            pytest.skip(f"no limit can be set here: {error}")
        yield folder
    finally:
        end = time.monotonic() + 10  # programs leave it when they end
        while folder.is_dir() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                folder.rmdir()
