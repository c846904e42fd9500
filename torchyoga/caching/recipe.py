"""A function's code, what it reaches and the files that it reads -> a record, and what differs from one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..versions.lineage import Lineage, escaped
from ..versions.manifest import FunctionEntry, Manifest
from .arguments import salted
from .reach import reached_by
from .source_files import SourceFiles

__all__ = ["Recipe"]

_MOST_NAMED = 5
_MOST_LINES, _MOST_WIDTH = 40, 160  # of a diff in a message


@dataclass(frozen=True)
class Recipe:
    """What a function makes its rows of, apart from its arguments.

    Attributes:
        function: the function.
        code: a digest of its code; None without its source.
        files: that it reads.
    """

    function: Callable[..., object]
    code: str | None
    files: SourceFiles

    def noted(self, entry: FunctionEntry) -> FunctionEntry:
        """A record of a call with all that is known now.

        Raises:
            FileNotFoundError: a pattern of `files` matches none.
        """
        reached = reached_by(self.function)
        return replace(
            entry,
            reached=_digests(entry.salt, reached.parts) if reached.is_known else None,
            packages=reached.packages,
            sources=tuple(self.files.recorded(entry.salt)),
        )

    def differing(self, entry: FunctionEntry) -> list[str]:
        """What differs from a record, each as the end of a sentence that names the function."""
        found = []
        if None not in (self.code, entry.code) and self.code != entry.code:
            found.append("is written otherwise")
        reached = reached_by(self.function)
        if reached.is_known and entry.reached is not None:
            now = _digests(entry.salt, reached.parts)
            other = sorted(
                name for name in now.keys() | entry.reached.keys() if now.get(name) != entry.reached.get(name)
            )
            if other:
                found.append(f"reaches other code: {_some(other)}")
            packages = [
                f"{name} {reached.packages[name]} instead of {escaped(then)[:40]}"
                for name, then in sorted(entry.packages.items())
                if reached.packages.get(name, then) != then
            ]
            if packages:
                found.append(f"uses other packages: {', '.join(packages[:_MOST_NAMED])}")
        changed = self.files.differing(entry.sources, entry.salt)
        if changed:
            found.append(f"reads other files: {', '.join(changed[:_MOST_NAMED])}")
        return found

    def difference(self, manifest: Manifest) -> str:
        """The stored source beside the present one, as lines to add to a message; empty if there is none."""
        then = Lineage.of(manifest.lineage).source
        now = reached_by(self.function).source
        if not then or not now or then == now:
            return ""
        lines = [*difflib.unified_diff(then.splitlines(), now.splitlines(), "then", "now", n=1, lineterm="")]
        shown = [escaped(line[:_MOST_WIDTH]) for line in lines[:_MOST_LINES]]
        more = [f"... and {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        return "\n".join(["", *shown, *more])


def _digests(salt: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {name: salted(salt, name, digest.encode()) for name, digest in parts.items()}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(escaped(name)[:100] for name in names[:_MOST_NAMED]) + more
