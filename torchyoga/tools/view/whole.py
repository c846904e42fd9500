"""A value of a row -> all of it as text, part by part."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..cells.text import shown, visible

__all__ = ["Part", "part_of"]

_CHARACTERS, _NUMBERS, _BYTES, _ITEMS = 20_000, 4_096, 4_096, 1_000
_A_LINE, _BYTES_A_LINE = 8, 16
_LONGEST_NUMBER, _LONGEST_ITEM = 60, 400


@dataclass(frozen=True)
class Part:
    """Some of a value.

    Attributes:
        kind: what the value is, such as `text` or `float32 (3, 4)`.
        lines: the text.
        start: what it begins with; `stop`: what comes next; `total`: how much there is.
        unit: of these three, such as "characters"; empty if the value has no parts.
    """

    kind: str
    lines: tuple[str, ...]
    start: int = 0
    stop: int = 0
    total: int = 0
    unit: str = ""


def part_of(value: object, start: int = 0, most: int = _CHARACTERS) -> Part:
    """A part of a value.

    Args:
        value: anything.
        start: the character, number, byte or item to begin with.
        most: characters, of a text.

    Example:
        >>> from torchyoga.tools.view.whole import part_of
        >>> found = part_of(np.arange(10).reshape(2, 5), 5)
        >>> found.kind, found.lines, found.total, found.unit
        ('int64 (2, 5)', ('5 6 7 8 9',), 10, 'numbers')
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        name, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            return Part(f"{name} {shape}", (shown(value, most),))
        flat = value.detach().reshape(-1)
        numbers = flat[start : start + _count(most)].tolist()
        return _of_numbers(f"{name} {_extents(shape)}", numbers, shape, start, len(flat))
    if isinstance(value, np.ndarray) and value.ndim:
        numbers = list(value.reshape(-1)[start : start + _count(most)])
        return _of_numbers(f"{value.dtype} {_extents(value.shape)}", numbers, value.shape, start, value.size)
    if isinstance(value, str):
        part = value[start : start + most]
        lines = tuple(visible(line) for line in part.split("\n"))
        return Part("text", lines, start, start + len(part), len(value), "characters")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value[start : start + min(_BYTES, most)]), start, len(value))
    if isinstance(value, (list, Mapping)):
        return _of_items(value, start, min(_ITEMS, max(1, most // 20)))
    return Part(type(value).__name__, (shown(value, most),))


def _count(most: int) -> int:
    return max(_A_LINE, min(_NUMBERS, most // 5))


def _extents(shape: tuple[int, ...]) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else str(tuple(map(int, shape)))


def _of_numbers(kind: str, numbers: list[object], shape: tuple[int, ...], start: int, total: int) -> Part:
    """Lines that end where those of the array do, if these are short."""
    width = shape[-1] if len(shape) > 1 and 0 < shape[-1] <= 32 else _A_LINE
    lines, line = [], []
    for number, value in enumerate(numbers, start):
        line.append(shown(value, _LONGEST_NUMBER))
        if (number + 1) % width == 0:
            lines.append(" ".join(line))
            line = []
    lines += [" ".join(line)] if line else []
    return Part(kind, tuple(lines), start, start + len(numbers), total, "numbers")


def _of_bytes(part: bytes, start: int, total: int) -> Part:
    lines = []
    for at in range(0, len(part), _BYTES_A_LINE):
        some = part[at : at + _BYTES_A_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{start + at:08x}  {some.hex(' '):<{3 * _BYTES_A_LINE}} {text}")
    return Part("bytes", tuple(lines), start, start + len(part), total, "bytes")


def _of_items(value: list[object] | Mapping[object, object], start: int, most: int) -> Part:
    if isinstance(value, list):
        lines = [
            f"{at}: {shown(one, _LONGEST_ITEM)}" for at, one in enumerate(value[start : start + most], start)
        ]
    else:
        items = list(value.items())[start : start + most]
        lines = [f"{shown(name, _LONGEST_ITEM)}: {shown(one, _LONGEST_ITEM)}" for name, one in items]
    kind = f"{type(value).__name__} of {len(value):,}"
    return Part(kind, tuple(lines), start, start + len(lines), len(value), "items")
