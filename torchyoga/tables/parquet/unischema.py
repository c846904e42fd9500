"""Petastorm's pickled schema -> what each of its fields is, without Petastorm and without running its code.

The classes named in the pickle are replaced by stand-ins that hold what they are given and do nothing.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CorruptError, SchemaError

__all__ = ["Field", "fields_of"]

_PACKAGES = ("petastorm", "av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")
_CODECS = {
    "NdarrayCodec": "ndarray",
    "CompressedNdarrayCodec": "npz",
    "CompressedImageCodec": "image",
    "ScalarCodec": "scalar",
}
# The types of NumPy that a field may have, by their names then and now.
_NUMBERS = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "bool_", "datetime64"),
)
_TEXTS = {"str_": "text", "unicode_": "text", "string_": "bytes", "bytes_": "bytes"}
_MOST_BYTES = 64 * 2**20  # of a pickle


@dataclass(frozen=True)
class Field:
    """A field of Petastorm's schema.

    Attributes:
        name: of the column.
        codec: "ndarray", "npz", "image", or "scalar" for values that are stored as they are.
        image: "png" or "jpeg", of an image.
        dtype: of its values, as NumPy names it; or "text", "bytes", "decimal".
        shape: of a value; None for extents that vary.
        may_be_none: True if it may be None.
    """

    name: str
    codec: str
    image: str
    dtype: str
    shape: tuple[int | None, ...]
    may_be_none: bool


class _Held:
    """Stands in for an object: what its class was, and what was put into it."""

    kind = ""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


def fields_of(pickled: bytes, where: str) -> dict[str, Field]:
    """The fields of a pickled Unischema, by name.

    Args:
        pickled: as it lies in the file.
        where: the file, for messages.

    Raises:
        CorruptError: it is damaged, or names something else than Petastorm's schemas do.
        SchemaError: a field has a codec or a type that is not known.
    """
    if len(pickled) > _MOST_BYTES:
        raise CorruptError(f"{where}: its schema is a pickle of {len(pickled)} bytes, which no schema needs")
    try:
        found = _Restricted(io.BytesIO(pickled), encoding="latin1").load()
        listed = found.state["_fields"].values()
    except CorruptError as error:
        raise CorruptError(f"{where}: {error}") from None
    except Exception as error:  # a damaged pickle may raise anything
        raise CorruptError(f"{where}: the pickled schema is damaged: {error!r:.200}") from error
    return {field.name: field for field in (_field(item, where) for item in listed)}


def _field(item: object, where: str) -> Field:
    values: tuple[Any, ...] = item.arguments if isinstance(item, _Held) else ()
    if len(values) not in (4, 5) or not isinstance(values[0], str) or not isinstance(values[2], tuple):
        raise CorruptError(f"{where}: a field of the pickled schema is {values!r:.200}")
    name, dtype, shape, codec = values[:4]
    kind = "scalar" if codec is None else _CODECS.get(getattr(codec, "kind", ""), "")
    if not kind:
        raise SchemaError(
            f"{where}: column {name!r} has the codec {getattr(codec, 'kind', codec)!r:.100}; known are "
            f"{', '.join(_CODECS)}. Read its bytes with from_parquet"
        )
    if not isinstance(dtype, str) or not all(type(extent) in (int, type(None)) for extent in shape):
        raise SchemaError(
            f"{where}: column {name!r} has values of a type or a shape that is not known: {dtype!r:.100} "
            f"{shape!r:.100}"
        )
    state = getattr(codec, "state", {})
    image = state.get("_image_codec", ".png") if isinstance(state, dict) else ".png"
    image = str(image).lstrip(".").replace("jpg", "jpeg")
    return Field(name, kind, image, dtype, shape, len(values) > 4 and bool(values[4]))


class _Restricted(pickle.Unpickler):
    """Loads what a Unischema consists of, and refuses everything else before it is made."""

    def find_class(self, module: str, name: str) -> object:
        """A stand-in for a class; CorruptError for one that no Unischema needs."""
        package, _, part = module.rpartition(".")
        if package in _PACKAGES and part in ("unischema", "codecs"):
            return _stand_in(name)
        if module == "pyspark.sql.types" and name.endswith("Type"):
            return _stand_in(name)
        if module == "pyspark.serializers" and name == "_restore":
            return _restored
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray"):
            if name in _NUMBERS:
                return np.dtype(getattr(np, name)).str
            if name in _TEXTS:
                return _TEXTS[name]
        module = {"copy_reg": "copyreg", "__builtin__": "builtins"}.get(module, module)
        known: dict[tuple[str, str], object] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("decimal", "Decimal"): "decimal",
            ("copyreg", "_reconstructor"): _reconstructed,
            ("builtins", "object"): object,
            ("builtins", "tuple"): tuple,
        }
        if (module, name) in known:
            return known[module, name]
        raise CorruptError(
            f"the pickled schema wants {module}.{name}, which no schema of Petastorm needs; nothing was run"
        )


def _stand_in(name: str) -> type[_Held]:
    """A new class: whatever a pickle does to it is forgotten with it."""
    return type(name, (_Held,), {"kind": name, "__new__": _new})


def _new(cls: type[_Held], *arguments: object) -> _Held:
    made = object.__new__(cls)
    made.arguments = arguments
    return made


def _reconstructed(cls: Callable[..., object], base: type, state: object) -> object:
    """What pickles of Python 2 make objects with."""
    if not (isinstance(cls, type) and issubclass(cls, _Held)):
        raise CorruptError(f"the pickled schema makes a {cls!r:.100}; nothing was run")
    return _new(cls, *state) if base is tuple and isinstance(state, tuple) else _new(cls)


def _restored(name: str, fields: object, values: tuple[object, ...]) -> _Held:
    """What pyspark makes namedtuples with."""
    return _new(_stand_in(str(name)), *values)
