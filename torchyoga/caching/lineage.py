"""Whatever makes a version -> its lineage: code, commit, packages, user, time and message.

Nothing that may be secret is recorded.
No environment variable, no argument, no path and no remote of git; the source text and the host stay in
directories of this machine, unless `record="source"` sends them to a store, too. See docs/versions.md.
"""

from __future__ import annotations

import functools
import inspect
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import torch

from ..process.digests import hexdigest
from ..rows.types import Json
from ..stores.history import check_message, user_name
from .code import OwnCode, digest_of, inside_of, own_code_of

Record: TypeAlias = bool | Literal["source"]
_GIT_SECONDS = 2.0
_LIBRARIES = ("torch", "numpy", "builtins", "torchyoga", "tensorflow", "keras", "datasets", "pandas")


def check_record(record: object, message: object) -> None:
    """Raises ValueError or TypeError unless these are `record` and `message` of a build."""
    if not (record is True or record is False or record == "source"):
        raise ValueError(f"record must be True, False or 'source', found {record!r:.80}")
    check_message(message)
    if message is not None and record is False:
        raise ValueError("message is a part of what record=False leaves out; pass one of them")


def lineage_of(made_by: object, record: Record, message: str | None = None) -> Callable[[float], Json]:
    """A function that makes the lineage of a version from the seconds that it took.

    Args:
        made_by: the function that makes the rows, or the data that gives them.
        record: False for an empty lineage; "source" to keep source and host behind URLs, too.
        message: what the user says about it.

    Raises:
        ValueError, TypeError: `record` or `message` is something else.

    Example:
        >>> found = lineage_of([1, 2], record=True, message="two rows")(0.5)
        >>> found["message"], found["seconds"], "function" in found
        ('two rows', 0.5, False)
    """
    check_record(record, message)
    return functools.partial(_lineage, _code_of(made_by), record, message)


def _code_of(made_by: object) -> Callable[..., object] | None:
    """The function or class whose code makes the rows; None if that is a library's."""
    if inspect.isroutine(made_by) or isinstance(made_by, (type, functools.partial)):
        return made_by
    if made_by is None:
        return None
    found = type(made_by)
    return None if found.__module__.partition(".")[0] in _LIBRARIES else found


def _lineage(
    function: Callable[..., object] | None, record: Record, message: str | None, seconds: float
) -> Json:
    if record is False:
        return {}
    own = OwnCode(None, "") if function is None else own_code_of(function)
    inside = None if function is None else inside_of(function)
    module = getattr(inside, "__module__", None) or "__main__"
    found: Json = {
        "function": None if inside is None else f"{module}.{getattr(inside, '__qualname__', '?')}"[:300],
        "code": None if function is None else _digest(function, own),
        "packages": _packages(),
        "user": user_name(),
        "host": socket.gethostname()[:300],
        "seconds": round(seconds, 3),
        "message": message,
        "source": own.source.encode(errors="backslashreplace").decode(),
        "record": "source" if record == "source" else None,
        **commit_of(_folder_of(module)),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _digest(function: Callable[..., object], own: OwnCode) -> str | None:
    code = digest_of(function)
    if code is None:
        return None
    text = "\n".join([code, *(f"{name} {digest}" for name, digest in sorted((own.parts or {}).items()))])
    return hexdigest(text.encode(errors="backslashreplace"))


def _packages() -> dict[str, str]:
    """Versions of Python and of what every dataset needs, by name."""
    own = getattr(sys.modules.get(__name__.partition(".")[0]), "__version__", None)
    found = {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}
    return {**found, "torchyoga": own} if isinstance(own, str) else found


def _folder_of(module: str) -> str | None:
    """The folder of the file of a module, else of the program; None if there is none."""
    for name in (module, "__main__"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and os.path.isfile(file):
            return os.path.dirname(os.path.abspath(file))
    return None


@functools.lru_cache(maxsize=64)  # the code that runs is that of the first look
def commit_of(folder: str | None) -> Json:
    """The git commit of a folder, and whether files that it tracks have changed; empty without git."""
    if folder is None:
        return {}
    command = ["git", "-c", "core.fsmonitor=false", "-C", folder, "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(
            [*command, "--untracked-files=no", "--ignore-submodules"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    lines = done.stdout.decode(errors="replace").splitlines()
    commits = [line.rpartition(" ")[2] for line in lines if line.startswith("# branch.oid ")]
    if len(commits) != 1 or not set(commits[0]) <= set("0123456789abcdef"):  # before the first commit
        return {}
    return {"commit": commits[0], "dirty": any(not line.startswith("#") for line in lines)}
