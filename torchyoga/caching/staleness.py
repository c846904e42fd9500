"""A published version and a call -> whether the version is the one that the call would make."""

from __future__ import annotations

from typing import Literal

from ..errors import ExistsError
from ..versions.manifest import Manifest
from .arguments import Call

__all__ = ["Stale", "stale_advice"]

Stale = Literal["warn", "error", "ignore"]  # what to do about a version that other code may have made


def stale_advice(manifest: Manifest, call: Call, code: str | None, stale: Stale) -> str | None:
    """A warning to give before a version is read for a call; None if the call would make the same version.

    Args:
        manifest: of the version.
        call: the call that chose it.
        code: digest of the function's current code; None if that is not known.
        stale: what to do if the version was made by other code, or has no record of what made it.

    Raises:
        ExistsError: the version was made with other arguments; or, with `stale="error"`, by other code.
    """
    what, made = f"{manifest.id!r} {manifest.version!r}", manifest.function
    anew = f"choose another version, or call storage.remove({manifest.id!r}, {manifest.version!r}) first"
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
        captured = call.captured_differing(made)
        if captured:
            others = " and another ".join(captured)
            found = f"{call.function.name} has another {others} around it than when it made {what}"
        elif None in (code, made.code) or code == made.code:
            return None
        else:
            found = f"{call.function.name} is written otherwise than when it made {what}"
        advice = f"to build it anew, {anew}; if the rows are the same, pass stale='ignore'"
    if stale == "ignore":
        return None
    if stale == "error":
        raise ExistsError(f"{found}; {advice}")
    return f"{found}. It is read as it is; {advice}"
