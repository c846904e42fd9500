"""A build under way: its files, and the list of those that are finished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .durable import replace_synced, sync_directory, write_new
from .manifest import FileEntry, digest
from .regular import refuse_irregular

__all__ = ["Staging"]

_PROGRESS = "progress.json"


@dataclass(frozen=True)
class Staging:
    """The files of a build under way, and the list of those that are finished.

    Attributes:
        path: where they are.
        replaces: the build that is to be replaced, if there is one.
    """

    path: Path
    replaces: str | None = None

    def load(self) -> dict[str, Any]:
        """What `save` noted last; empty if nothing is to be continued.

        Raises:
            CorruptError: something else than a file has its name.
        """
        refuse_irregular(self.path / _PROGRESS)
        try:
            found = json.loads((self.path / _PROGRESS).read_bytes())
            sound = isinstance(found, dict) and found.pop("checksum", None) == digest(found)
            return found if sound else {}
        except (FileNotFoundError, ValueError, RecursionError):
            return {}

    def save(self, progress: dict[str, Any]) -> None:
        """Notes finished, synced files, in one step."""
        sync_directory(self.path)
        content = {**progress, "checksum": digest(progress)}
        write_new(self.path / _PROGRESS, json.dumps(content).encode())
        replace_synced(self.path / _PROGRESS)

    def keep_only(self, files: Sequence[FileEntry]) -> None:
        """Deletes everything but these files and the note."""
        named = {file.name for file in files} | {_PROGRESS}
        for path in self.path.iterdir():
            if path.name not in named:
                path.unlink()

    def free_bytes(self) -> int:
        """Bytes left on this disk."""
        return shutil.disk_usage(self.path).free

    def clear(self) -> None:
        """Deletes the staging directory."""
        shutil.rmtree(self.path, ignore_errors=True)
