"""Whole numbers -> short text for states, and back.

Rice codes (R. Rice and J. Plaunt, "Adaptive Variable-Length Coding for Efficient Compression of Spacecraft
Television Data", 1971): a number's low bits as they are, the rest in unary. So numbers of one size take two
bits more than they need, and one that is much larger than the others does no harm.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import lru_cache

_MOST_BITS = 62
MARK = "["  # which may stand behind lists
_FOR_STATES = str.maketrans(";", ",")  # which divides the stages of a state
_FROM_STATES = str.maketrans(",", ";")


def compact(numbers: Sequence[int]) -> str:
    """Whole numbers as text that JSON takes as it is, without ";", ".", ":" and "/".

    Example:
        >>> compact([3, 1, 2]), expanded(compact([3, 1, 2]), 3)
        ('01tN', [3, 1, 2])
    """
    low = max(0, (sum(numbers) // max(len(numbers), 1)).bit_length() - 1)
    bits = "".join(
        "1" * (number >> low) + "0" + (f"{number & (1 << low) - 1:0{low}b}" if low else "")
        for number in numbers
    )
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""
    return f"{low:02d}" + base64.b85encode(data).decode().translate(_FOR_STATES)


def expanded(text: str, count: int) -> list[int]:
    """The numbers of a text of `compact`.

    Raises:
        ValueError: it is damaged, or has fewer than `count`.
    """
    low, data = text[:2], base64.b85decode(text[2:].translate(_FROM_STATES))
    if not low.isascii() or not low.isdigit() or int(low) > _MOST_BITS:
        raise ValueError("damaged numbers")
    bits = f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}" if data else ""
    numbers = list(_read(bits, int(low), count))
    if any(number.bit_length() > _MOST_BITS for number in numbers):
        raise ValueError("damaged numbers")
    return numbers


@lru_cache(maxsize=64)  # the stages of a state that is saved again and again
def lists_compact(text: str) -> str:
    """Lists of whole numbers, written with "," within and "/" between them, as short text after a "~".

    Example:
        >>> lists_compact("5,3,2/1000,600,400"), lists_expanded(lists_compact("5,3,2/1000,600,400"))
        ('~3.01+dl/3.09y%AxM', '5,3,2/1000,600,400')
    """
    numbers = text.rstrip(MARK)
    found = "~" + "/".join(_list_compact(list(map(int, part.split(",")))) for part in numbers.split("/"))
    return found + text[len(numbers) :]


@lru_cache(maxsize=64)
def lists_expanded(text: str) -> str:
    """The lists of a text of `lists_compact`; another text as it is.

    Raises:
        ValueError: it is damaged.
    """
    if not text.startswith("~"):
        return text
    told = text[1:].rstrip(MARK)
    numbers = "/".join(",".join(map(str, _list_expanded(part))) for part in told.split("/"))
    return numbers + text[1 + len(told) :]


def _list_compact(numbers: Sequence[int]) -> str:
    """How many numbers, and they; or what remains when they are halved as often as it goes, and how often."""
    halved = [(number & -number).bit_length() - 1 if number else 0 for number in numbers]
    odd = [number >> times for number, times in zip(numbers, halved, strict=True)]
    plain, apart = compact(numbers), f"{compact(odd)}.{compact(halved)}"
    return f"{len(numbers)}.{min(plain, apart, key=len)}"


def _list_expanded(text: str) -> list[int]:
    count, *parts = text.split(".")
    if not count.isascii() or not count.isdigit() or len(count) > 6 or not 1 <= len(parts) <= 2:
        raise ValueError("damaged numbers")
    numbers = expanded(parts[0], int(count))
    if len(parts) == 2:
        times = expanded(parts[1], int(count))
        if max(times, default=0) > _MOST_BITS:
            raise ValueError("damaged numbers")
        numbers = [number << halved for number, halved in zip(numbers, times, strict=True)]
    return numbers


def _read(bits: str, low: int, count: int) -> Iterator[int]:
    at = 0
    for _ in range(count):
        end = bits.find("0", at)
        if end < 0 or end + 1 + low > len(bits):
            raise ValueError("damaged numbers")
        yield (end - at) << low | (int(bits[end + 1 : end + 1 + low], 2) if low else 0)
        at = end + 1 + low
