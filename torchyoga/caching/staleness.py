"""A published version and a call -> whether the version is the one that the call would make."""

from __future__ import annotations

from typing import Literal

from ..errors import ExistsError
from ..versions.manifest import Manifest
from .arguments import Call
from .recipe import Recipe

__all__ = ["Stale", "stale_advice"]

# What to do about a version that other code, or other files, may have made.
Stale = Literal["warn", "error", "ignore", "rebuild"]


def stale_advice(manifest: Manifest, call: Call, recipe: Recipe, stale: Stale) -> str | None:
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
        found = f"{what} does not say what made it, for submit or an older torchyoga did"
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
