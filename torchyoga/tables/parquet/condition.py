"""Terms, or an expression of pyarrow's -> what is asked of rows, in the types of their columns."""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
import numbers
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

Term: TypeAlias = tuple[str, str, object]
Filters: TypeAlias = "ds.Expression | Sequence[Term] | Sequence[Sequence[Term]]"
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class Condition:
    """A condition on rows.

    Attributes:
        holds: for which rows it holds.
        terms: lists of which one holds as a whole where `holds` does, with the column of each, though the
            smallest and largest values of a group leave out NaN and do not tell 0.0 from -0.0.
        fields: what `may_hold` may name; if it names others, such values say nothing.
    """

    holds: ds.Expression
    terms: Sequence[Sequence[tuple[str, ds.Expression]]]
    fields: pa.Schema

    @staticmethod
    def of(filters: Filters, fields: pa.Schema) -> Condition:
        """A condition on columns of these types; see `filtered`."""
        if isinstance(filters, ds.Expression):
            return Condition(filters, [[("", filters)]], pa.schema(_surely_compared(fields)))
        if _is_term(filters):
            raise TypeError(
                f"filters= takes a list of terms; put the term into one, as in [{filters!r:.100}]"
            )
        holds, may_hold = [], list[list[tuple[str, ds.Expression]]]()
        for terms in [filters] if all(map(_is_term, filters)) else filters:
            made = []
            sure = []
            for term in terms:
                if not _is_term(term):
                    raise TypeError(f"filters= takes terms such as ('x', '>', 3), found {filters!r:.100}")
                name, comparison, value = term
                if name not in fields.names:
                    raise unknown_name(name, fields)
                kind = fields.field(name).type
                made.append(_expression(name, comparison, value, kind))
                if not pa.types.is_floating(kind) or comparison not in ("!=", "in", "not in"):
                    sure.append((name, made[-1]))
            if not made:
                raise ValueError("filters= has a list without terms, such as ('x', '>', 3)")
            holds.append(functools.reduce(operator.and_, made))
            may_hold.append(sure)
        return Condition(functools.reduce(operator.or_, holds), may_hold, fields)

    def may_hold(self, unknown: Collection[str]) -> ds.Expression:
        """Weaker than `holds`: without the terms on columns of which nothing is known."""
        lists = ([held for name, held in terms if name not in unknown] for terms in self.terms)
        each = (functools.reduce(operator.and_, held, ds.scalar(True)) for held in lists)
        return functools.reduce(operator.or_, each)


def _is_term(term: object) -> TypeGuard[Term]:
    return isinstance(term, tuple) and len(term) == 3 and isinstance(term[0], str)


def unknown_name(name: str, fields: pa.Schema) -> KeyError:
    """An error that says which columns there are, those with a similar name first."""
    near = difflib.get_close_matches(name, fields.names, n=3, cutoff=0.5) or fields.names[:20]
    return KeyError(
        f"filters= names a column {name!r}, which there is not; there are {', '.join(map(repr, near))}"
    )


def _surely_compared(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    """The fields of which statistics say what rows do, in structs too.

    Those of floats leave out NaN; and in an expression Arrow refuses values of uint64 from 2**63 on beside
    values of other types, where it sees them.
    """
    for field in fields:
        kind = field.type
        if pa.types.is_struct(kind):
            inner = [kind.field(number) for number in range(kind.num_fields)]
            yield field.with_type(pa.struct(list(_surely_compared(inner))))
        elif not pa.types.is_floating(kind) and kind != pa.uint64():
            yield field


# -- terms


def _expression(name: str, comparison: str, value: Any, kind: pa.DataType) -> ds.Expression:
    """A term on a column; its value becomes one of the column's type, if one is equal to it."""
    field, compared, value = ds.field(name), _COMPARISONS.get(comparison), _plain(value)
    if pa.types.is_float16(kind):
        field = field.cast(_compared_as(kind))
    try:
        if comparison in ("in", "not in"):
            found = field.isin(_array(value, kind))
            return found if comparison == "in" else ~found
        if compared is None:
            raise ValueError(f"there is no comparison {comparison!r}")
        number = _number(value, kind)
        if number is None:
            fitted = _fitted(value, kind)
            return compared(field, value if fitted is None else fitted)
        whole = _whole(number, comparison, kind)
        if whole is not None:
            return compared(field, whole)
        # It lies beside all values of the column, or between two of them.
        return field.is_valid() if compared(_limits(kind)[0], number) else ds.scalar(False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"filters= has a term ({name!r}, {comparison!r}, {value!r:.80}), which does not fit a column of "
            f"{kind}: {error}"
        ) from error


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    """Values as a column has them, without those that it cannot have."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        are_integers = pa.types.is_integer(values.type) and pa.types.is_integer(kind)
        with contextlib.suppress(pa.ArrowInvalid):  # one does not fit
            return values.cast(kind) if are_integers else values
    listed = list(map(_plain, values))
    found = [None if value is None else _fitted(value, kind) for value in listed]
    pairs = list(zip(listed, found, strict=True))
    if any(one is None and value is not None and _number(value, kind) is None for value, one in pairs):
        return pa.array(listed)
    known = [one for value, one in pairs if one is not None or value is None]
    return pa.array(known, _compared_as(kind))


def _plain(value: Any) -> Any:
    """A number of Arrow's as Python's; anything else as it is."""
    if not isinstance(value, pa.Scalar):
        return value
    is_number = pa.types.is_integer(value.type) or pa.types.is_floating(value.type)
    return value.as_py() if is_number else value


def _compared_as(kind: pa.DataType) -> pa.DataType:
    """The type in which values are compared: Arrow compares no floats of 16 bits."""
    return pa.float32() if pa.types.is_float16(kind) else kind


def _fitted(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """The value of a column's type that is equal to another one, of floats the nearest; None without one."""
    number = _number(value, kind)
    if number is not None:
        return _whole(number, "==", kind)
    if pa.types.is_floating(kind) and isinstance(value, numbers.Real):
        with np.errstate(over="ignore"):
            near = kind.to_pandas_dtype()(value)
        is_near = np.isfinite(near) or not math.isfinite(value)
        return pa.scalar(float(near), _compared_as(kind)) if is_near else None
    value = value.item() if isinstance(value, np.generic) else value
    try:
        found = pa.scalar(value, kind)
        return found if found.as_py() == value else None
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


def _whole(number: float | Fraction, comparison: str, kind: pa.DataType) -> pa.Scalar | None:
    """The value that stands for a number in a comparison of whole ones: 3 in x < 2.5; None if none does."""
    lowest, highest = _limits(kind)
    if not lowest <= number <= highest:
        return None
    found = math.ceil(number) if comparison in ("<", ">=") else math.floor(number)
    if comparison in ("=", "==", "!=") and found != number:
        return None
    return pa.scalar(found, kind) if pa.types.is_integer(kind) else pa.scalar(found).cast(kind)


def _limits(kind: pa.DataType) -> tuple[int, int]:
    """The smallest and the largest integer of a type, or time in its unit."""
    about = np.iinfo(kind.to_pandas_dtype() if pa.types.is_integer(kind) else np.int64)
    return int(about.min), int(about.max)


def _number(value: Any, kind: pa.DataType) -> float | Fraction | None:
    """A value as a number of what a column counts, integers or times; None if either is something else."""
    if pa.types.is_integer(kind) and isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    moment = _moment(value, kind) if pa.types.is_timestamp(kind) else None
    if moment is None:
        return None
    rest = Fraction(getattr(value, "nanosecond", 0), 10**9)  # of a pandas.Timestamp, which Arrow cuts off
    return (Fraction(moment.value, _PER_SECOND[moment.type.unit]) + rest) * _PER_SECOND[kind.unit]


def _moment(value: object, kind: pa.DataType) -> pa.Scalar | None:
    """A time as Arrow has it; None if it is none, or cannot be compared with those of a column."""
    if isinstance(value, np.datetime64) and np.datetime_data(value)[0] not in _PER_SECOND:
        value = value.astype("M8[s]")
    if isinstance(value, str):
        text = pa.scalar(value)
        with contextlib.suppress(pa.ArrowInvalid):  # its zone may not be written: then it is UTC
            return text.cast(pa.timestamp("us", kind.tz))
        return text.cast(pa.timestamp("us"))
    if not isinstance(value, (date, np.datetime64, pa.TimestampScalar)):
        return None
    found = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    if pa.types.is_date(found.type):
        found = found.cast(pa.timestamp("s"))
    return found if found.is_valid and (kind.tz or not found.type.tz) else None
