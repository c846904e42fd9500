"""One leaf of every row: the kinds of values, how each becomes an array and comes back, and its column."""

from __future__ import annotations

import datetime
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from decimal import Decimal
from enum import Enum
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import CorruptError, SchemaError
from ..process.lazy import cached_property, np, torch
from .types import Array, Json, Row

T = TypeVar("T")
_MOST_WORDS = 2**20


@dataclass(frozen=True)
class Codec:
    """How the bytes of a column are encoded.

    Attributes:
        name: such as `jpeg` or `zstd`.
        parameters: pairs of a name and a number, a text or a bool.
    """

    name: str
    parameters: tuple[tuple[str, str | int | float | bool], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(sorted(self.parameters)))  # as they are read back

    def to_json(self) -> Json:
        """Plain data for a manifest."""
        return {"name": self.name, **({"parameters": dict(self.parameters)} if self.parameters else {})}

    @staticmethod
    def from_json(data: Json) -> Codec:
        """The codec that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        parameters = exactly(dict, data.get("parameters", {}))
        for name, value in parameters.items():
            if type(value) not in (str, int, float, bool):
                raise TypeError(f"a codec's {name} is {value!r:.80}")
        return Codec(exactly(str, data["name"]), tuple(parameters.items()))


@dataclass(frozen=True)
class Meaning:
    """The meaning of values. False if that is only what their dtype says.

    Attributes:
        timezone: of times, which are stored in UTC: a name such as `Europe/Berlin`, or `+02:00`.
        scale: of decimals: how many of the digits are behind the point.
        words: of codes: code i stands for `words[i]`.
        codec: of bytes that are encoded.

    Example:
        >>> Meaning(words=("cat", "dog")).to_json()
        {'words': ['cat', 'dog']}
    """

    timezone: str | None = None
    scale: int | None = None
    words: tuple[str, ...] | None = None
    codec: Codec | None = None

    def __bool__(self) -> bool:
        return self != PLAIN

    def to_json(self) -> Json:
        """Plain data for a manifest."""
        found = {
            "timezone": self.timezone,
            "scale": self.scale,
            "words": None if self.words is None else list(self.words),
            "codec": None if self.codec is None else self.codec.to_json(),
        }
        return {name: value for name, value in found.items() if value is not None}

    @staticmethod
    def from_json(data: Json) -> Meaning:
        """The meaning that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        exactly(dict, data)
        words = data.get("words")
        if words is not None and len(words) > _MOST_WORDS:
            raise ValueError(f"there are {len(words)} words, {_MOST_WORDS} are allowed")
        return Meaning(
            timezone=exactly(str, data["timezone"]) if "timezone" in data else None,
            scale=exactly(int, data["scale"]) if "scale" in data else None,
            words=None if words is None else tuple(exactly(str, word) for word in words),
            codec=Codec.from_json(data["codec"]) if "codec" in data else None,
        )


PLAIN = Meaning()


def exactly(cls: type[T], value: Any) -> T:
    """A value of a type, not of a subclass; TypeError if it is not."""
    if type(value) is not cls:
        raise TypeError(f"expected {cls.__name__}, found {value!r:.80}")
    return value


MOST_DIGITS = 18  # that 64 bits hold
_UTC = datetime.timezone.utc
_MIDNIGHT = datetime.datetime(1970, 1, 1)  # the day does not matter
_MICROSECOND = datetime.timedelta(microseconds=1)


def _encode_datetime(value: datetime.datetime) -> Leaf:
    if value.tzinfo is None:
        return Leaf("datetime", "<M8[us]", np.array(value, "<M8[us]"))
    plain = value.astimezone(_UTC).replace(tzinfo=None)
    return Leaf("datetime", "<M8[us]", np.array(plain, "<M8[us]"), Meaning(timezone=_name_of(value)))


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
    except (ValueError, OSError, OverflowError, ZoneInfoNotFoundError) as error:
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


def _encode_date(value: datetime.date) -> Leaf:
    return Leaf("date", "<M8[D]", np.array(value, "<M8[D]"))


def _decode_date(value: Any, meaning: Meaning) -> Row:
    found = value.item()
    if not isinstance(found, datetime.date):
        raise CorruptError(f"{value!r} is not a date of Python's")
    return found


def _encode_time(value: datetime.time) -> Leaf:
    if value.tzinfo is not None:
        raise SchemaError("a time with a timezone cannot be kept; keep a datetime, or the time in UTC")
    since = datetime.datetime.combine(_MIDNIGHT, value) - _MIDNIGHT
    return Leaf("time", "<i8", np.array(since // _MICROSECOND, "<i8"))


def _decode_time(value: Any, meaning: Meaning) -> Row:
    microseconds = int(value)
    if not 0 <= microseconds < 86_400_000_000:
        raise CorruptError(f"{microseconds} microseconds are not a time of day")
    return (_MIDNIGHT + microseconds * _MICROSECOND).time()


def _encode_timedelta(value: datetime.timedelta) -> Leaf:
    microseconds = value // _MICROSECOND
    if not -(2**63) < microseconds < 2**63:
        raise SchemaError(
            f"a timedelta of {value.days} days does not fit 64 bits of microseconds; keep its days"
        )
    return Leaf("timedelta", "<m8[us]", np.array(microseconds, "<i8").view("<m8[us]"))


def _decode_timedelta(value: Any, meaning: Meaning) -> Row:
    return int(value.astype("<i8")) * _MICROSECOND


def _encode_decimal(value: Decimal) -> Leaf:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise SchemaError(f"the decimal {value} cannot be kept; keep it as a float or as str")
    if len(digits) + max(0, exponent) > MOST_DIGITS or -exponent > MOST_DIGITS:
        raise SchemaError(f"the decimal {value!s:.40} has more than {MOST_DIGITS} digits; keep it as str")
    # Not by methods of Decimal, which round as the thread's context says.
    number = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    return Leaf(
        "decimal", "<i8", np.array(-number if sign else number, "<i8"), Meaning(scale=max(0, -exponent))
    )


def _decode_decimal(value: Any, meaning: Meaning) -> Row:
    number = int(value)
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -(meaning.scale or 0)))


# What `leaf.encode` does with values of a type, and `leaf.decode` with those of a kind.
ENCODE: Mapping[type, Callable[[Any], Leaf]] = {
    datetime.datetime: _encode_datetime,
    datetime.date: _encode_date,
    datetime.time: _encode_time,
    datetime.timedelta: _encode_timedelta,
    Decimal: _encode_decimal,
}
DECODE: Mapping[str, Callable[[Any, Meaning], Row]] = {
    "datetime": _decode_datetime,
    "date": _decode_date,
    "time": _decode_time,
    "timedelta": _decode_timedelta,
    "decimal": _decode_decimal,
}


MOST_EMPTY = 2**20  # items without elements in a list: no bytes bound how many a damaged file may claim
MOST_DIMENSIONS = 31  # of a row: NumPy allows 32 before its version 2, and a block of rows has one more
_LARGEST_ROW = 2**40  # bytes

# torch types that NumPy lacks are kept as their bits.
_BIT_DTYPES = {
    "bfloat16": "<u2",
    "float8_e4m3fn": "|u1",
    "float8_e4m3fnuz": "|u1",
    "float8_e5m2": "|u1",
    "float8_e5m2fnuz": "|u1",
}
_TORCH_DTYPES = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "uint16": "<u2",
    "int16": "<i2",
    "uint32": "<u4",
    "int32": "<i4",
    "uint64": "<u8",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
    **_BIT_DTYPES,
}
NUMBERS = {bool: ("bool", "|b1"), int: ("int", "<i8"), float: ("float", "<f8"), complex: ("complex", "<c16")}
_PYTHON_DTYPES = {
    **dict(NUMBERS.values()),
    "none": "|u1",
    "datetime": "<M8[us]",
    "date": "<M8[D]",
    "time": "<i8",  # microseconds since midnight
    "timedelta": "<m8[us]",
    "decimal": "<i8",  # without its point
}
_SIZES = ("u2", "u4", "u8", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
_USUAL_DTYPES = {"|b1", "|u1", "|i1"} | {order + size for order in "<>" for size in _SIZES}
# At other texts NumPy may end the process, as at a unit divided by 0: "<M8[s/0]".
_DTYPE = re.compile(r"[<>|][a-zA-Z][0-9]+(\[([1-9][0-9]*)?[a-zA-Z]+\])?")
_UNBIND = "keep a list of its tensors, .unbind(), or each as a row of its own: rows may differ in shape"
TEXT_KINDS = ("str", "bytes", "numpy.str", "numpy.bytes")


class Leaf(NamedTuple):
    """A value on its way into a column.

    Attributes:
        meaning: the timezone of a time, the digits behind the point of a decimal.
    """

    kind: str  # what it was: "ndarray", "tensor", "scalar", "int", "str", ...
    dtype: str  # a NumPy dtype string, or a torch dtype name for tensors
    array: Array  # its own copy of the data, of storage_dtype(kind, dtype)
    meaning: Meaning = PLAIN


def item_bytes(kind: str, dtype: str) -> int:
    """Bytes of one value of this kind."""
    text = _TORCH_DTYPES[dtype] if kind == "tensor" else dtype
    return int(text[2:]) if text in _USUAL_DTYPES else storage_dtype(kind, dtype).itemsize


def letter_of(kind: str, dtype: str) -> str:
    """NumPy's letter for values of this kind, without NumPy; "f" also for floats that it lacks."""
    return "f" if dtype in _BIT_DTYPES else (_TORCH_DTYPES[dtype] if kind == "tensor" else dtype)[1]


def storage_dtype(kind: str, dtype: str) -> np.dtype[np.generic]:
    """The NumPy dtype in which values of this kind lie on disk."""
    return np.dtype(_TORCH_DTYPES[dtype] if kind == "tensor" else dtype)


def is_ragged_kind(kind: str) -> bool:
    """True for text and bytes, whose length always varies."""
    return kind in TEXT_KINDS


def is_valid(kind: str, dtype: str) -> bool:
    """True if `kind` and `dtype` name something that `encode` can make: what a manifest may ask for."""
    if kind in TEXT_KINDS:
        return dtype == "|u1"
    if kind in _PYTHON_DTYPES:
        return dtype == _PYTHON_DTYPES[kind]
    if kind == "tensor":
        return dtype in _TORCH_DTYPES
    return kind in ("ndarray", "scalar") and _is_plain_dtype(dtype)


def _is_plain_dtype(text: str) -> bool:
    if text in _USUAL_DTYPES:
        return True
    if not _DTYPE.fullmatch(text):
        return False
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError):
        return False
    return dtype.str == text and dtype.kind in "biufcmMSU" and dtype.itemsize > 0


def is_too_large(itemsize: int, shape: Iterable[int]) -> bool:
    """True if no machine can hold rows of this shape; zeros count as ones, as in NumPy's own limits."""
    return itemsize * prod(max(extent, 1) for extent in shape) >= _LARGEST_ROW


def encode(value: Row) -> Leaf:
    """The leaf that holds a copy of `value`.

    Raises:
        SchemaError: values of this type cannot be kept; the message says what to turn them into.
    """
    cls = type(value)
    if cls is np.ndarray or cls is np.memmap:
        return _encode_array("ndarray", value)
    if cls is torch.Tensor:
        return _encode_tensor(value)
    if cls in NUMBERS:
        return encode_numbers(value)
    if cls is str or cls is np.str_:
        kind = "str" if cls is str else "numpy.str"
        return Leaf(kind, "|u1", np.frombuffer(value.encode("utf-8", "surrogatepass"), "|u1"))
    if cls is bytes or cls is np.bytes_:
        return Leaf("bytes" if cls is bytes else "numpy.bytes", "|u1", np.frombuffer(bytes(value), "|u1"))
    if value is None:
        return Leaf("none", "|u1", np.empty(0, "|u1"))
    if isinstance(value, np.generic):
        return _encode_array("scalar", np.asarray(value))
    if cls in ENCODE:
        return ENCODE[cls](value)
    raise SchemaError(f"a value of type {type_name(cls)} cannot be kept; {_advice(value)}")


def encode_numbers(values: Row) -> Leaf:
    """The leaf of a number of Python's, or of a list of such numbers, all of one type.

    Raises:
        SchemaError: an int does not fit 64 bits.
    """
    kind, dtype = NUMBERS[type(values[0] if isinstance(values, list) else values)]
    try:
        return Leaf(kind, dtype, np.array(values, dtype))
    except OverflowError:
        largest = max(values, key=abs) if isinstance(values, list) else values
        raise SchemaError(
            f"an int of {largest.bit_length()} bits does not fit 64 bits; keep it as str or bytes"
        ) from None


def _encode_array(kind: str, value: Array) -> Leaf:
    dtype = value.dtype
    if not _is_plain_dtype(dtype.str) or dtype.fields is not None:
        advice = "use a numeric dtype, str or bytes"
        if dtype.fields:
            advice = "turn structured arrays into a dict of arrays"
        raise SchemaError(f"an array of dtype {dtype} cannot be kept; {advice}")
    _refuse_size(dtype.itemsize, value.shape)
    return Leaf(kind, dtype.str, np.array(value, order="C", copy=True, subok=False))


def _refuse_size(itemsize: int, shape: tuple[int, ...]) -> None:
    if len(shape) > MOST_DIMENSIONS:
        raise SchemaError(
            f"{len(shape)} dimensions cannot be kept, a row may have {MOST_DIMENSIONS}; reshape it"
        )
    if is_too_large(itemsize, shape):
        raise SchemaError(f"a row of shape {shape} is too large; make several rows of it")


def _encode_tensor(value: torch.Tensor) -> Leaf:
    name = str(value.dtype).removeprefix("torch.")
    if value.is_nested:
        raise SchemaError(f"a nested tensor cannot be kept; {_UNBIND}")
    if value.layout is not torch.strided or name not in _TORCH_DTYPES:
        raise SchemaError(
            f"a tensor of {value.dtype}, {value.layout} cannot be kept; {_tensor_advice(value)}"
        )
    if value.is_meta:
        raise SchemaError("a tensor on the device 'meta' has no values to keep; make it on another device")
    if value.requires_grad:
        raise SchemaError(
            "a tensor that requires grad cannot be kept, because its gradients would be lost; keep its "
            "values: .detach()"
        )
    _refuse_size(value.dtype.itemsize, tuple(value.shape))
    value = value.cpu().resolve_conj().resolve_neg()
    if name in _BIT_DTYPES:
        value = value.contiguous().view(torch.uint16 if _BIT_DTYPES[name] == "<u2" else torch.uint8)
    return Leaf("tensor", name, np.array(value.numpy(), order="C", copy=True))


def _tensor_advice(value: torch.Tensor) -> str:
    if value.is_quantized:
        return "make it numeric, .dequantize(), or keep .int_repr() and its scale"
    if value.layout is not torch.strided:
        return "make it dense, .to_dense(), or keep its parts"
    near = torch.complex64 if value.dtype.is_complex else torch.float32
    return f"use .to({near}), or .view(torch.uint8) for its bits"


def decode(kind: str, dtype: str, array: Array, meaning: Meaning = PLAIN) -> Row:
    """The value that `encode` was given, over the memory of `array` where it is an array or a tensor."""
    if kind == "ndarray":
        return array
    if kind == "tensor":
        tensor = torch.from_numpy(array)
        return tensor.view(getattr(torch, dtype)) if dtype in _BIT_DTYPES else tensor
    if kind in ("int", "float", "bool", "complex"):
        return array.item()
    if kind == "scalar":
        return array[()]
    if kind == "none":
        return None
    if kind in DECODE:
        return DECODE[kind](array[()], meaning)
    return text_of(kind, array.tobytes())


def text_of(kind: str, data: bytes) -> Row:
    """The text, or the bytes, that `encode` was given; CorruptError if text is not UTF-8."""
    if kind in ("bytes", "numpy.bytes"):
        return data if kind == "bytes" else np.bytes_(data)
    return as_text(data) if kind == "str" else np.str_(as_text(data))


def as_text(data: bytes) -> str:
    """The text that `encode` was given; CorruptError if the bytes are not UTF-8."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise CorruptError(f"a text is not UTF-8: {error}; remove the version and build it again") from error


def first_not_text(texts: Sequence[bytes]) -> int | None:
    """Which of some texts is the first that is not UTF-8; None if all are."""
    whole = b"\0".join(texts)
    try:
        whole.isascii() or whole.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        return bisect_right([*accumulate(len(text) + 1 for text in texts)], error.start)
    return None


def type_name(cls: type) -> str:
    """The name of a class, for messages."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _advice(value: Row) -> str:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return _UNBIND
    if isinstance(value, torch.Tensor):
        plain = ".detach().as_subclass" if value.requires_grad else ".as_subclass"
        return f"tensor subclasses lose their type: use {plain}(torch.Tensor)"
    if isinstance(value, np.ndarray) and hasattr(value, "mask"):
        return "array subclasses lose their meaning: keep None in rows where it is masked, or .data and .mask"
    if isinstance(value, np.ndarray):
        return "array subclasses lose their meaning: use numpy.asarray"
    modules = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    if "PIL" in modules:
        return "keep it encoded, codecs={'<column>': yoga.codecs.png()}, or its pixels, numpy.asarray(image)"
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return "turn it into an array with numpy.asarray"
    if hasattr(value, "__fspath__"):
        return "keep the path as text, str(path), or what the file holds, path.read_bytes()"
    if is_dataclass(value):
        return "turn it into a dict, dataclasses.asdict(row), or vars(row) where nothing is nested"
    if isinstance(value, Enum):
        return "keep its .name or its .value"
    if isinstance(value, (set, frozenset)):
        return "turn it into a list, sorted(value)"
    return (
        "rows are made of dict, tuple, list, namedtuple, arrays, tensors, numbers, str, bytes, None, dates, "
        "times and decimals"
    )


MAX_NAME = 400  # bytes; a name is part of an LMDB key, which may hold 511


@dataclass(frozen=True)
class Column:
    """One leaf of every row.

    Attributes:
        name: the path to the leaf, such as `image` or `meta/size/0`.
        kind: the type that went in: `ndarray`, `tensor`, `scalar` (NumPy), `int`, `float`, `bool`, `complex`,
            `str`, `bytes`, `none`, `numpy.str`, `numpy.bytes`.
        dtype: a NumPy dtype string such as `<f4`, or the name of a torch dtype for tensors.
        shape: the shape of one row; None for a ragged column, whose rows have any shape.
        ndim: number of dimensions of a row, for a ragged column: exactly 1, or at most this many.
        meaning: what its values stand for, beyond their dtype.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...] | None
    ndim: int
    meaning: Meaning = PLAIN

    def __post_init__(self) -> None:
        if not is_valid(self.kind, self.dtype):
            raise ValueError(f"column {self.name!r}: no such kind and dtype: {self.kind!r}, {self.dtype!r}")
        if len(self.name.encode()) > MAX_NAME:
            raise SchemaError(
                f"column {self.name[:40]!r}...: its path is longer than {MAX_NAME} bytes; shorten the keys"
            )
        if self.shape is not None and (len(self.shape) != self.ndim or min(self.shape, default=0) < 0):
            raise ValueError(
                f"column {self.name!r}: the shape {self.shape} does not have {self.ndim} dimensions of at "
                "least 0"
            )
        most = MOST_DIMENSIONS + self.is_ragged  # ragged rows never lie side by side
        if not 0 <= self.ndim <= most or is_too_large(item_bytes(self.kind, self.dtype), self.shape or ()):
            raise ValueError(f"column {self.name!r}: rows of shape {self.shape!s:.200} are too large")
        if (self.kind == "decimal") != (self.meaning.scale is not None) or not 0 <= (
            self.meaning.scale or 0
        ) <= MOST_DIGITS:
            raise ValueError(f"column {self.name!r}: decimals need a scale of 0 to {MOST_DIGITS}")
        if self.meaning.words is not None and self.letter not in "iu":
            raise ValueError(f"column {self.name!r}: only integers are codes of words")
        if self.shape is None and self.ndim == 0:
            raise ValueError(f"column {self.name!r}: a ragged column needs at least 1 dimension")

    @property
    def is_ragged(self) -> bool:
        """True if rows differ in shape or length."""
        return self.shape is None

    @cached_property
    def storage(self) -> np.dtype[np.generic]:
        """The NumPy dtype of the values on disk."""
        return storage_dtype(self.kind, self.dtype)

    @property
    def letter(self) -> str:
        """NumPy's letter for its values, such as "i"; "f" for all floats, also those kept as their bits."""
        return letter_of(self.kind, self.dtype)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row of a fixed column; of one element of a ragged one."""
        return item_bytes(self.kind, self.dtype) * prod(self.shape or ())

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The runs of bytes that a block of this column consists of."""
        if self.shape is not None:
            return ("values",)
        return ("values", "offsets") if self.ndim == 1 else ("values", "offsets", "shapes")

    @cached_property
    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of an item of each part: of a row, of an element, of the place of a row."""
        return (self.row_bytes, 8, 8 * self.ndim)[: len(self.parts)]

    def __str__(self) -> str:
        if self.kind == "none":
            return f"{self.name}: None"
        shape = f"ragged, {self.ndim}-d" if self.shape is None else "x".join(map(str, self.shape)) or "scalar"
        words = self.meaning.words
        meant = (
            "" if words is None else f", codes of {', '.join(words[:5])}{', ...' if len(words) > 5 else ''}"
        )
        return f"{self.name}: {self.kind} {self.dtype} [{shape}]{meant}"

    def to_json(self) -> Json:
        """Plain data for a manifest."""
        shape = None if self.shape is None else list(self.shape)
        found = {"name": self.name, "kind": self.kind, "dtype": self.dtype, "shape": shape, "ndim": self.ndim}
        return {**found, "meaning": self.meaning.to_json()} if self.meaning else found

    @staticmethod
    def from_json(data: Json) -> Column:
        """The column that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        return Column(
            name=exactly(str, data["name"]),
            kind=exactly(str, data["kind"]),
            dtype=exactly(str, data["dtype"]),
            shape=None if data["shape"] is None else tuple(exactly(int, extent) for extent in data["shape"]),
            ndim=exactly(int, data["ndim"]),
            meaning=Meaning.from_json(data.get("meaning", {})),
        )


def column_of(name: str, leaf: Leaf, ragged: bool) -> Column:
    """The column that holds leaves like this one."""
    if ragged or is_ragged_kind(leaf.kind):
        # A length does not describe a 0-d row, so such a column keeps shapes.
        return Column(name, leaf.kind, leaf.dtype, None, leaf.array.ndim or 2, leaf.meaning)
    return Column(name, leaf.kind, leaf.dtype, leaf.array.shape, leaf.array.ndim, leaf.meaning)


def stacked(column: Column, count: int | None = None) -> Column:
    """The column of several rows of a column, of any number if `count` is None: tensors, or else arrays.

    Rows of unknown shape, as images in their own size, must have one shape, which shows when they are read.
    """
    is_kept = column.shape is None or column.kind == "tensor"
    kind, dtype = (column.kind, column.dtype) if is_kept else ("ndarray", column.storage.str)
    shape = None if column.shape is None or count is None else (count, *column.shape)
    return replace(column, kind=kind, dtype=dtype, shape=shape, ndim=column.ndim + 1)
