"""A published version and a call -> whether the version is the one that the call would make.

A function's code, that of its module which it names, and the files that it reads are a record, which is
compared.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import ExistsError
from ..process.texts import escaped
from ..versions.lineage import Lineage
from ..versions.manifest import FunctionEntry, Manifest
from .arguments import Call, salted
from .code import own_code_of
from .source_files import SourceFiles

__all__ = ["FunctionCode", "Stale", "stale_advice"]

# What to do about a version that other code, or other files, may have made.
Stale = Literal["warn", "error", "ignore", "rebuild"]
_MOST_NAMED = 5
_MOST_LINES, _MOST_WIDTH = 40, 160  # of a diff in a message


def stale_advice(manifest: Manifest, call: Call, recipe: FunctionCode, stale: Stale) -> str | None:
    """A warning to give before a version is read for a call; None if the call would make the same version.

    Args:
        manifest: of the version.
        call: the call that chose it.
        recipe: the function's code, and the files that it reads, as they are now.
        stale: what to do if the version was made by other code or of other files, or has no record of what
            made it. With "rebuild" the warning says why the version is built anew.

    Raises:
        ExistsError: the version was made with other arguments; or, with `stale="error"`, by other code or of
            other files; or, with "error" and "rebuild", it has no record.
    """
    what, made = f"{manifest.id!r} {manifest.version!r}", manifest.function
    anew = f"choose another version, or call storage.remove({manifest.id!r}, {manifest.version!r}) first"
    difference = ""
    if made is None:
        found = f"{what} does not say what made it, for submit did"
        if call.names:
            found += f", so {', '.join(call.names)} could not be compared"
        advice = f"to build it with {call.function.name}, {anew}; stale='ignore' reads it and says nothing"
    else:
        differing = call.differing(made)
        if differing:
            raise ExistsError(
                f"{what} is published already, made with another {' and another '.join(differing)} than "
                f"this call of {call.function.name} has. {call.advice(made)}"
            )
        if stale == "ignore":
            return None
        captured = call.captured_differing(made)
        changes = recipe.differing(made)
        if captured:
            others = " and another ".join(captured)
            changes = [f"has another {others} around it", *changes]
        if not changes:
            return None
        found = f"{call.function.name} {', and '.join(changes)} than when it made {what}"
        difference = recipe.difference(manifest)
        advice = (
            f"to build it anew, pass stale='rebuild', {anew}; if the rows are the same, pass stale='ignore'"
        )
    if stale == "ignore":
        return None
    if stale == "error" or (stale == "rebuild" and made is None):
        raise ExistsError(f"{found}; {advice}{difference}")
    return (
        f"{found}. It is read as it is; {advice}{difference}" if stale == "warn" else f"{found}{difference}"
    )


@dataclass(frozen=True)
class FunctionCode:
    """Everything that a function makes its rows of, apart from its arguments.

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
        parts = own_code_of(self.function).parts
        return replace(
            entry,
            parts=None if parts is None else _salted(entry.salt, parts),
            sources=tuple(self.files.recorded(entry.salt)),
        )

    def differing(self, entry: FunctionEntry) -> list[str]:
        """Differences from a record, each as the end of a sentence that names the function."""
        found = []
        if None not in (self.code, entry.code) and self.code != entry.code:
            found.append("is written otherwise")
        parts = own_code_of(self.function).parts
        if parts is not None and entry.parts is not None:
            now, then = _salted(entry.salt, parts), entry.parts
            other = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
            if other:
                found.append(f"uses other code: {_some(other)}")
        changed = self.files.differing(entry.sources, entry.salt)
        if changed:
            found.append(f"reads other files: {', '.join(changed[:_MOST_NAMED])}")
        return found

    def difference(self, manifest: Manifest) -> str:
        """The stored source beside the present one, as lines to add to a message; empty if there is none."""
        then = Lineage.of(manifest.lineage).source
        parts, now = own_code_of(self.function)
        if parts is None or not then or then == now:
            return ""
        lines = [*difflib.unified_diff(then.splitlines(), now.splitlines(), "then", "now", n=1, lineterm="")]
        shown = [escaped(line[:_MOST_WIDTH]) for line in lines[:_MOST_LINES]]
        more = [f"... and {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        return "\n".join(["", *shown, *more])


def _salted(salt: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {name: salted(salt, name, digest.encode()) for name, digest in parts.items()}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(escaped(name)[:100] for name in names[:_MOST_NAMED]) + more
