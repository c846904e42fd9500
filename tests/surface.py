"""Every public name, its members and their parameters; `python tests/surface.py` writes `surface.txt`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ceilings import members

import torchyoga

SURFACE = Path(__file__).parent / "surface.txt"


def _parameters(function: object, *, of_member: bool = False) -> str:
    try:
        names = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = names[of_member and names[:1] != [] and names[0].name in ("self", "cls", "ref") :]
    shown = [kinds.get(one.kind, "") + one.name for one in names]
    return f"({', '.join(shown)})"


def _lines() -> Iterator[str]:
    for name in torchyoga.__all__:
        value = getattr(torchyoga, name)
        yield f"{name}{_parameters(value) if callable(value) else ''}"
        if isinstance(value, ModuleType):
            yield from (f"  {each}{_parameters(getattr(value, each))}" for each in value.__all__)
        for each in members(value) if isinstance(value, type) else ():
            shown = getattr(value, each, None)
            yield f"  {each}{_parameters(shown, of_member=True) if callable(shown) else ''}"


def surface() -> str:
    """One line for each public name, and one for each public member of a class or module."""
    return "\n".join(_lines()) + "\n"


if __name__ == "__main__":
    SURFACE.write_text(surface(), encoding="utf-8")
