"""Files of a folder, put behind a URL."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import fsspec


def put(url: str, options: dict[str, Any] | None, folder: Path) -> None:
    """Writes all files below a folder to the same names below a URL."""
    fs, path = fsspec.core.url_to_fs(url, **(options or {}))
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            fs.pipe_file(f"{path}/{file.relative_to(folder)}", file.read_bytes())


def in_memory(folder: Path) -> str:
    """A URL in the memory of this process, which nothing else has, with the files of a folder."""
    url = f"memory://{uuid.uuid4().hex}"
    put(url, None, folder)
    return url
