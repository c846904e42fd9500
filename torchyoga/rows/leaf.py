"""One leaf of a row: the kind of value it was, and the NumPy array that holds it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from enum import Enum
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..errors import CorruptError, SchemaError
from ..process.lazy import np, torch
from .meaning import PLAIN, Meaning
from .times import DECODE, ENCODE
from .types import Array, Row

MOST_EMPTY = 2**20  # items without elements in a list: no bytes bound how many a damaged file may claim
# Of a row: NumPy allows 64 (32 before its version 2), and a block of rows has one more.
_FEWEST_DIMENSIONS, _MOST_DIMENSIONS = 31, 63
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


def most_dimensions(wanted: int = _MOST_DIMENSIONS) -> int:
    """Of a row, as far as NumPy allows; it is not asked if `wanted` are few."""
    if wanted <= _FEWEST_DIMENSIONS or np.__version__.startswith("1."):
        return _FEWEST_DIMENSIONS
    return _MOST_DIMENSIONS


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
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, SyntaxError):
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
        return encode_numbers(value, cls)
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
        return Leaf(*ENCODE[cls](value))
    raise SchemaError(f"a value of type {type_name(cls)} cannot be kept; {_advice(value)}")


def encode_numbers(values: Row, cls: type) -> Leaf:
    """The leaf of a Python number of a type, or of a list of such numbers.

    Raises:
        SchemaError: an int does not fit 64 bits.
    """
    kind, dtype = NUMBERS[cls]
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
        advice = (
            "turn structured arrays into a dict of arrays"
            if dtype.fields
            else "use a numeric dtype, str or bytes"
        )
        raise SchemaError(f"an array of dtype {dtype} cannot be kept; {advice}")
    _refuse_size(dtype.itemsize, value.shape)
    return Leaf(kind, dtype.str, np.array(value, order="C", copy=True, subok=False))


def _refuse_size(itemsize: int, shape: tuple[int, ...]) -> None:
    most = most_dimensions(len(shape))
    if len(shape) > most:
        raise SchemaError(f"{len(shape)} dimensions cannot be kept, a row may have {most}; reshape it")
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
    data = array.tobytes()
    if kind == "bytes":
        return data
    if kind == "numpy.bytes":
        return np.bytes_(data)
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
