"""Times, dates and decimals of Python <-> NumPy's, and what a column must know of them besides."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import CorruptError, SchemaError
from ..process.lazy import np
from .meaning import PLAIN, Meaning
from .types import Array, Row

MOST_DIGITS = 18  # that 64 bits hold
_UTC = datetime.timezone.utc
_MIDNIGHT = datetime.datetime(1970, 1, 1)  # the day does not matter
_MICROSECOND = datetime.timedelta(microseconds=1)


def _encode_datetime(value: datetime.datetime) -> tuple[str, str, Array, Meaning]:
    if value.tzinfo is None:
        return "datetime", "<M8[us]", np.array(value, "<M8[us]"), PLAIN
    plain = value.astimezone(_UTC).replace(tzinfo=None)
    return "datetime", "<M8[us]", np.array(plain, "<M8[us]"), Meaning(timezone=_name_of(value))


def _name_of(value: datetime.datetime) -> str:
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return zone.key
    if zone is _UTC:
        return "UTC"
    offset = value.utcoffset()
    assert offset is not None
    minutes, rest = divmod(offset, datetime.timedelta(minutes=1))
    if rest:
        raise SchemaError(
            f"a datetime is {offset} from UTC, not whole minutes; use .astimezone(timezone.utc)"
        )
    sign, minutes = "-" if minutes < 0 else "+", abs(minutes)
    return f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def timezone_of(name: str) -> datetime.tzinfo:
    """The timezone of this name.

    Raises:
        CorruptError: there is none.
    """
    if name == "UTC":
        return _UTC
    try:
        if name[:1] in ("+", "-"):
            hours, minutes = map(int, name[1:].split(":"))
            return datetime.timezone(
                (-1 if name[0] == "-" else 1) * datetime.timedelta(hours=hours, minutes=minutes)
            )
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise CorruptError(
            f"the timezone {name!r:.80} of a column is unknown here; install tzdata, or read the column as an"
            " array, by map_batches"
        ) from error


def _decode_datetime(value: Any, meaning: Meaning) -> Row:
    found = value.item()
    if not isinstance(found, datetime.datetime):
        raise CorruptError(f"{value!r} is not a datetime of Python's")
    if meaning.timezone is None:
        return found
    try:
        return found.replace(tzinfo=_UTC).astimezone(timezone_of(meaning.timezone))
    except OverflowError:
        raise CorruptError(f"{value!r} is not a datetime of Python's in {meaning.timezone}") from None


def _encode_date(value: datetime.date) -> tuple[str, str, Array, Meaning]:
    return "date", "<M8[D]", np.array(value, "<M8[D]"), PLAIN


def _decode_date(value: Any, meaning: Meaning) -> Row:
    found = value.item()
    if not isinstance(found, datetime.date):
        raise CorruptError(f"{value!r} is not a date of Python's")
    return found


def _encode_time(value: datetime.time) -> tuple[str, str, Array, Meaning]:
    if value.tzinfo is not None:
        raise SchemaError("a time with a timezone cannot be kept; keep a datetime, or the time in UTC")
    since = datetime.datetime.combine(_MIDNIGHT, value) - _MIDNIGHT
    return "time", "<i8", np.array(since // _MICROSECOND, "<i8"), PLAIN


def _decode_time(value: Any, meaning: Meaning) -> Row:
    microseconds = int(value)
    if not 0 <= microseconds < 86_400_000_000:
        raise CorruptError(f"{microseconds} microseconds are not a time of day")
    return (_MIDNIGHT + microseconds * _MICROSECOND).time()


def _encode_timedelta(value: datetime.timedelta) -> tuple[str, str, Array, Meaning]:
    microseconds = value // _MICROSECOND
    if not -(2**63) < microseconds < 2**63:
        raise SchemaError(
            f"a timedelta of {value.days} days does not fit 64 bits of microseconds; keep its days"
        )
    return "timedelta", "<m8[us]", np.array(microseconds, "<i8").view("<m8[us]"), PLAIN


def _decode_timedelta(value: Any, meaning: Meaning) -> Row:
    return int(value.astype("<i8")) * _MICROSECOND


def _encode_decimal(value: Decimal) -> tuple[str, str, Array, Meaning]:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise SchemaError(f"the decimal {value} cannot be kept; keep it as a float or as str")
    if len(digits) + max(0, exponent) > MOST_DIGITS or -exponent > MOST_DIGITS:
        raise SchemaError(f"the decimal {value!s:.40} has more than {MOST_DIGITS} digits; keep it as str")
    # Not by methods of Decimal, which round as the thread's context says.
    number = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    return "decimal", "<i8", np.array(-number if sign else number, "<i8"), Meaning(scale=max(0, -exponent))


def _decode_decimal(value: Any, meaning: Meaning) -> Row:
    number = int(value)
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -(meaning.scale or 0)))


# What `leaf.encode` does with values of a type, and `leaf.decode` with those of a kind.
ENCODE: Mapping[type, Callable[[Any], tuple[str, str, Array, Meaning]]] = MappingProxyType(
    {
        datetime.datetime: _encode_datetime,
        datetime.date: _encode_date,
        datetime.time: _encode_time,
        datetime.timedelta: _encode_timedelta,
        Decimal: _encode_decimal,
    }
)
DECODE: Mapping[str, Callable[[Any, Meaning], Row]] = MappingProxyType(
    {
        "datetime": _decode_datetime,
        "date": _decode_date,
        "time": _decode_time,
        "timedelta": _decode_timedelta,
        "decimal": _decode_decimal,
    }
)
