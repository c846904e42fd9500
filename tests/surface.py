"""Every public name, its members and their parameters; `python tests/surface.py` writes `surface.txt`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torchyoga

SURFACE = Path(__file__).parent / "surface.txt"


def _parameters(function: object) -> str:
    try:
        names = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = [kinds.get(one.kind, "") + one.name for one in names if one.name not in ("self", "cls")]
    return f"({', '.join(shown)})"


def _members(cls: type) -> Iterator[str]:
    for name in sorted(dir(cls)):
        value = inspect.getattr_static(cls, name)
        is_ours = any(name in vars(base) for base in cls.__mro__ if base.__module__.startswith("torchyoga"))
        if is_ours and not name.startswith("_"):
            yield f"  {name}{_parameters(getattr(cls, name)) if callable(getattr(cls, name, value)) else ''}"


def surface() -> str:
    """One line for each public name, and one for each public member of a class."""
    lines = []
    for name in torchyoga.__all__:
        value = getattr(torchyoga, name)
        lines.append(f"{name}{_parameters(value) if callable(value) else ''}")
        lines += _members(value) if isinstance(value, type) else []
        if isinstance(value, ModuleType):
            lines += [
                f"  {each}{_parameters(getattr(value, each))}" for each in value.__all__ if name != "errors"
            ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    SURFACE.write_text(surface(), encoding="utf-8")
