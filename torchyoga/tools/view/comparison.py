"""A column, a comparison and a value as people write it -> which values of the column meet it.

Values are compared as they are stored, many at a time.
Whole numbers, decimals, dates and times are integers there, and no digit is lost: what was written becomes
a fraction of their unit. Floats are compared in their own precision, so that 0.1 finds what pages show as
0.1. A value that a column cannot hold is an error, since it would only look as if no row had it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import SchemaError
from ...process.messages import escaped
from ...rows.column import Column, column_of, encode, timezone_of
from ...views.scan import RaggedColumn, plain

Mask: TypeAlias = npt.NDArray[np.bool_]
Test: TypeAlias = Callable[[Any], Mask]
_ORDERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": le,
    ">=": ge,
    "!=": ne,
    "=": eq,
    "<": lt,
    ">": gt,
}
_KINDS = {
    "int": "whole numbers",
    "float": "numbers",
    "bool": "true and false",
    "complex": "complex numbers",
    "decimal": "decimal numbers",
    "datetime": "dates with times",
    "date": "dates",
    "time": "times of day",
    "timedelta": "spans of time",
}
_MOST_ITEMS = 10_000  # of a list, that are looked at
TEXTS, _BYTES = ("str", "numpy.str"), ("bytes", "numpy.bytes")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_CLOCK = r"(\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
_TIME = re.compile(_CLOCK)
_MOMENT = re.compile(rf"(\d{{4}})-(\d\d)-(\d\d)(?:[T ]{_CLOCK}\s*(Z|[+-]\d\d:?\d\d)?)?", re.IGNORECASE)
_SPAN = re.compile(rf"(-)?(?:(\d{{1,9}}) ?d(?:ays?)?,? ?)?(?:{_CLOCK})?", re.IGNORECASE)
_PER_SECOND = {"D": Fraction(1, 86400), "h": Fraction(1, 3600), "m": Fraction(1, 60), "s": Fraction(1)} | {
    unit: Fraction(1000**power) for power, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), 1)
}
_SPECIAL = {"nan": math.nan, "inf": math.inf, "+inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Literal:
    """A value as it was written; `is_quoted` if it stood in quotes."""

    text: str
    is_quoted: bool = False

    @property
    def is_none(self) -> bool:
        """True if it stands for what is missing."""
        return not self.is_quoted and self.text.lower() in ("none", "null")


def is_single(column: Column) -> bool:
    """True if a row of a column is one value, which has an order or at least equals others."""
    return column.kind in (*TEXTS, *_BYTES) or column.shape == ()


def compared(column: Column, comparison: str, literal: Literal, classes: Sequence[str] = ()) -> Test:
    """A function of values of a column, as they are stored, that says which of them meet a comparison.

    Args:
        column: whose values are tested, or the elements of its arrays. Text is an array of objects.
        comparison: a key of `_ORDERS`, or "contains" for text.
        literal: what to compare with.
        classes: the names that integers stand for, by number.

    Raises:
        ValueError: no value of the column can be compared with it; says what the column holds.
    """
    if column.kind == "none":
        return lambda values: np.zeros(len(values), np.bool_)
    dtype = column.storage
    if column.kind in (*TEXTS, *_BYTES) or dtype.kind in "US":
        is_bytes = column.kind in _BYTES or dtype.kind == "S"
        return _of_text(comparison, literal.text, is_bytes)
    if comparison == "contains":
        raise ValueError(f"{_held(column)}, of which none contains another value; compare it with =")
    if dtype.kind == "c":
        return _of_complex(column, comparison, literal)
    if column.letter == "f":
        return _of_floats(column, comparison, _number(column, literal, classes))
    if dtype.kind in "mM" or column.kind == "time":
        wanted, as_integers = _counted(column, literal), _shift(column)
    else:
        number = _flag(column, literal) if dtype.kind == "b" else _number(column, literal, classes)
        wanted, as_integers = number * 10 ** (column.meaning.scale or 0), lambda values: values
    if comparison == "=" and not _is_held(dtype, wanted):
        text = escaped(literal.text)
        raise _UnheldError(f"{_held(column)}, of which none can be {text!r:.80}; compare it with < or >")
    return _of_whole(comparison, wanted, as_integers)


class _UnheldError(ValueError):
    """A column cannot hold a value, though it can be compared with it."""


def _is_held(dtype: np.dtype[Any], wanted: Fraction | float) -> bool:
    about = np.iinfo(dtype if dtype.kind in "iu" else np.int64)
    return isinstance(wanted, Fraction) and wanted.denominator == 1 and about.min <= wanted <= about.max


def _held(column: Column) -> str:
    """The name of a column and its kind, as a message begins with them."""
    name = escaped(column.name)
    given = column.dtype if column.kind == "tensor" else column.storage.name
    kind = _KINDS.get(column.kind, given)
    zone = "" if column.meaning.timezone is None else f" in {column.meaning.timezone}"
    return f"{name!r:.80} holds {kind}{zone}"


def _unlike(column: Column, literal: Literal, wanted: str) -> ValueError:
    return ValueError(
        f"{_held(column)}, which cannot be compared with {escaped(literal.text)!r:.80}; write {wanted}"
    )


# -- what was written, as a number


def _number(column: Column, literal: Literal, classes: Sequence[str]) -> Fraction | float:
    """A number, or that of a class."""
    text = literal.text.strip()
    by_name = _code(text, classes)
    if by_name is not None and (literal.is_quoted or not _NUMBER.fullmatch(text)):
        return Fraction(by_name)
    if _NUMBER.fullmatch(text):
        return Fraction(Decimal(text))
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    if classes:
        near = difflib.get_close_matches(text, classes[:_MOST_ITEMS], 3, 0.5)
        near += [name for name in classes[:10] if name not in near]
        raise _unlike(column, literal, f"a number or a class, such as {', '.join(map(escaped, near)):.300}")
    raise _unlike(column, literal, "a number")


def _code(text: str, classes: Sequence[str]) -> int | None:
    if text in classes:
        return classes.index(text)
    alike = [number for number, name in enumerate(classes) if name.casefold() == text.casefold()]
    return alike[0] if len(alike) == 1 else None


def _flag(column: Column, literal: Literal) -> Fraction:
    found = {"true": 1, "false": 0, "1": 1, "0": 0}.get(literal.text.strip().lower())
    if found is None:
        raise _unlike(column, literal, "true or false")
    return Fraction(found)


def _counted(column: Column, literal: Literal) -> Fraction | float:
    """A time in the unit in which a column counts."""
    text, dtype = literal.text.strip(), column.storage
    if text.lower() == "nan":
        return math.nan
    if column.kind == "time":
        match = _TIME.fullmatch(text)
        if match is None:
            raise _unlike(column, literal, "a time of day, as in 13:45 or 13:45:30.5")
        return _seconds(*match.groups()) * 10**6
    unit, step = _unit(dtype)
    per_second = _PER_SECOND["D" if unit in "YMW" else unit] / (1 if unit in "YMW" else step)
    if dtype.kind == "m":
        return _span(column, literal, text) * per_second
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise _unlike(column, literal, "a date, as in 2026-03-01 or 2026-03-01 13:45")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    rest, zone = match[7], match[8]
    try:
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError as error:
        raise _unlike(column, literal, f"a date that there is ({error})") from None
    if zone is not None and column.meaning.timezone is None:
        raise _unlike(column, literal, f"it without {zone}, since its times have no zone")
    own = timezone.utc if column.meaning.timezone is None else timezone_of(column.meaning.timezone)
    given = own if zone is None else timezone_of("UTC" if zone in "Zz" else f"{zone[:3]}:{zone[-2:]}")
    since = moment.replace(tzinfo=given) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86400 + since.seconds + _part(rest)) * per_second


def _unit(dtype: np.dtype[Any]) -> tuple[str, int]:
    """The unit in which times are counted, and how many of it are one step."""
    return np.datetime_data(dtype)


def _seconds(hour: str | None, minute: str | None, second: str | None, rest: str | None) -> Fraction:
    return int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0) + _part(rest)


def _part(digits: str | None) -> Fraction:
    return Fraction(int(digits), 10 ** len(digits)) if digits else Fraction(0)


def _span(column: Column, literal: Literal, text: str) -> Fraction:
    """Seconds."""
    if _NUMBER.fullmatch(text):
        return Fraction(Decimal(text))
    match = _SPAN.fullmatch(text)
    if not text or match is None:
        raise _unlike(column, literal, "seconds, or as in 2 days, 13:45:00")
    found = int(match[2] or 0) * 86400 + _seconds(*match.groups()[2:])
    return -found if match[1] else found


# -- values as they are stored


def _shift(column: Column) -> Callable[[Any], Any]:
    """A function that makes integers of stored times."""
    dtype = column.storage
    if column.kind == "time":
        return lambda values: values
    coarse = _unit(dtype)[0] in "YMW"
    return lambda values: (values.astype(f"{dtype.kind}8[D]") if coarse else values).astype(np.int64)


def _of_whole(comparison: str, wanted: Fraction | float, as_integers: Callable[[Any], Any]) -> Test:
    """Integers against a number, exactly."""
    order = _ORDERS[comparison]
    if isinstance(wanted, float):  # not a number, or infinite
        return lambda values: np.full(len(values), bool(order(0.0, wanted)))
    if wanted.denominator > 1 and comparison == "!=":
        return lambda values: np.full(len(values), True)
    bound = math.ceil(wanted) if comparison in ("<", ">=") else math.floor(wanted)

    def test(values: Any) -> Mask:
        numbers = as_integers(values)
        if numbers.dtype.kind == "b":
            numbers = numbers.astype(np.uint8)
        about = np.iinfo(numbers.dtype)
        if not about.min <= bound <= about.max:
            return np.full(len(values), bool(order(0, bound)))
        return np.asarray(order(numbers, numbers.dtype.type(bound)), np.bool_)

    return test


def _of_floats(column: Column, comparison: str, wanted: Fraction | float) -> Test:
    order = _ORDERS[comparison]
    try:
        number = float(wanted)
    except OverflowError:
        number = math.copysign(math.inf, wanted)
        return lambda values: np.asarray(order(np.zeros(len(values)), number))

    def test(values: Any) -> Mask:
        floats = plain(column, values)
        if math.isnan(number):
            are_nan = np.isnan(floats)
            return np.asarray(are_nan if comparison == "=" else ~are_nan & (comparison == "!="), np.bool_)
        with np.errstate(over="ignore", under="ignore"):
            near = floats.dtype.type(number)
        is_like = bool(np.isfinite(near)) == math.isfinite(number) and bool(near) == bool(number)
        return np.asarray(order(floats, near) if is_like else order(floats.astype(np.float64), number))

    return test


def _of_complex(column: Column, comparison: str, literal: Literal) -> Test:
    if comparison not in ("=", "!="):
        raise ValueError(f"{_held(column)}, which has no order; compare it with = or !=")
    try:
        wanted = complex(literal.text.replace(" ", ""))
    except ValueError:
        raise _unlike(column, literal, "a number, as in 1+2j") from None
    return lambda values: np.asarray(_ORDERS[comparison](values, values.dtype.type(wanted)), np.bool_)


def _of_text(comparison: str, text: str, is_bytes: bool) -> Test:
    wanted: Any = text.encode("utf-8", "surrogatepass") if is_bytes else text
    if comparison != "contains":
        return lambda values: np.asarray(_ORDERS[comparison](values.astype(object), wanted), np.bool_)
    if is_bytes:
        return lambda values: np.fromiter((wanted in one for one in values.tolist()), np.bool_, len(values))
    folded = text.casefold()
    return lambda values: np.fromiter(
        (folded in one.casefold() for one in values.tolist()), np.bool_, len(values)
    )


# -- values of rows that have no schema


def _is_missing(value: object) -> bool:
    """True if a value is None, or not a time."""
    return value is None or (isinstance(value, (np.datetime64, np.timedelta64)) and bool(np.isnat(value)))


def meets(value: object, comparison: str, literal: Literal, name: str = "value") -> bool:
    """Whether one value meets a comparison, whatever it is.

    Raises:
        ValueError: it cannot be compared.
    """
    if _is_missing(value):
        is_none = literal.is_none
        return comparison == "!=" if not is_none else comparison == "="
    if literal.is_none:
        return comparison == "!="
    if isinstance(value, (list, tuple, set, frozenset)):
        refuse_order(name, comparison, literal)
        return any(meets(one, "=", literal, name) for one in islice(value, _MOST_ITEMS))
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        one: Any = value if isinstance(value, str) else bytes(value)
        given = np.empty(1, object)
        given[0] = one
        return bool(_of_text(comparison, literal.text, not isinstance(value, str))(given)[0])
    try:
        leaf = encode(value)
    except SchemaError as error:
        raise ValueError(f"{escaped(name)!r:.80} holds a {type(value).__name__}: {error}") from None
    column = column_of(name, leaf, False)
    is_one = leaf.array.ndim == 0
    try:
        test = (compared if is_one else of_arrays)(column, comparison, literal)
    except _UnheldError:  # another row may hold it
        return False
    return bool(test(leaf.array.reshape(1) if is_one else leaf.array[None])[0])


def refuse_order(name: str, comparison: str, literal: Literal) -> None:
    """Raises ValueError unless a comparison is one of arrays and lists."""
    if comparison != "contains":
        raise ValueError(
            f"{escaped(name)!r:.80} holds arrays or lists, which are not compared as a whole; write "
            f"{escaped(name):.80} contains {escaped(literal.text):.40}"
        )


def of_arrays(column: Column, comparison: str, literal: Literal, classes: Sequence[str] = ()) -> Test:
    """A function of rows of arrays, that says which of them contain a value.

    Raises:
        ValueError: it is another comparison, or the arrays cannot contain it.
    """
    refuse_order(column.name, comparison, literal)
    element = compared(column, "=", literal, classes)

    def test(values: Any) -> Mask:
        if isinstance(values, RaggedColumn):
            return values.any(element(values.values))
        found = element(values.reshape(-1)).reshape(values.shape)
        return np.asarray(found.any(axis=tuple(range(1, found.ndim))), np.bool_)

    return test
