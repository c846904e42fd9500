"""A condition on columns, as people write it -> the rows that meet it.

A filter is comparisons of a column with a value, joined by `and`, `or`, `not` and parentheses. Nothing is
evaluated. Only the columns that it names are read, thousands of rows at once where a schema says how.

Values are compared many at a time. Whole numbers, decimals, dates and times are whole numbers of a unit, and
no digit of what was written is lost. Floats are compared in their own precision, so that 0.1 finds what pages
show as 0.1. A value that a column cannot hold is an error, since it would only look as if no row had it.
"""

from __future__ import annotations

import difflib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from ...process.messages import escaped
from ...reading.dataref import DataRef
from ...rows.column import Column, timezone_of
from ...rows.schema import Schema
from ...rows.types import Ints
from ...views.scan import RaggedColumn
from ..cells.flat import flat_names
from ..cells.text import class_names, plain_name

Mask: TypeAlias = npt.NDArray[np.bool_]
_Test: TypeAlias = Callable[[Any], Mask]  # of the values of a column
_Holds: TypeAlias = Callable[[Mapping[str, Any]], Mask]  # of columns by name, as `DataRef.where` gives them
_LONGEST = 1000
_DEEPEST = 50  # parentheses
_ROWS, _BYTES = 2**14, 2**23  # at once, at most
_MOST_CLASSES = 10_000  # among which one like what was written is looked for
_SIGN = re.compile(
    r"\s*(<=|>=|!=|<>|==|=|<|>)\s*|\s*(?<![\w])(not\s+)?(in|contains)(?=[\s(\[\"']|$)\s*", re.IGNORECASE
)
_IN_ANY = re.compile(r"contains(?=[\s(\[\"'])\s*", re.IGNORECASE)  # without a column before it
_ENDS = re.compile(r"\s+(and|or)(?=[\s(]|$)", re.IGNORECASE)
_QUOTED = re.compile(r"(['\"])((?:(?!\1).|\1\1)*)\1(?=[\s,)\]]|$)", re.DOTALL)
_ALIKE = {"==": "=", "<>": "!="}
_HOW = (
    "write a column, a comparison and a value, as in label = 3, text contains cat or score > 0.5, and join "
    "several by and, or, not and parentheses; a value with such words in it stands in quotes"
)
_ORDERS: Mapping[str, Any] = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "!=": ne}
_KINDS = {
    **{"int": "whole numbers", "float": "numbers", "bool": "true and false", "decimal": "decimal numbers"},
    **{"datetime": "dates with times", "date": "dates", "time": "times of day", "timedelta": "spans of time"},
}
_TEXTS, _BYTE_STRINGS = ("str", "numpy.str"), ("bytes", "numpy.bytes")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_SPECIAL = {"nan": math.nan, "inf": math.inf, "+inf": math.inf, "-inf": -math.inf}
_MOMENT = re.compile(
    r"((?!0000)\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)?)\s*(Z|[+-]\d\d:?\d\d)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Filter:
    """A condition on rows.

    Attributes:
        columns: names of those it is about, in the order of rows, as `DataRef.columns` takes them.

    Example:
        >>> from torchyoga.tools.view.filter import Filter
        >>> ref = yoga.from_arrays({"label": np.arange(9) % 3, "score": np.arange(9) / 8})
        >>> condition = Filter.of("label in (0, 2) and not score > 0.5", ref.schema)
        >>> condition.columns, condition.first(ref)[0].tolist()
        (('label', 'score'), [0, 2, 3])
    """

    columns: tuple[str, ...]
    _holds: _Holds

    @staticmethod
    def of(text: str, schema: Schema | None, info: Mapping[str, object] | None = None) -> Filter:
        """The condition that a text states.

        Args:
            text: such as `label = 3 and text contains cat`.
            schema: of the rows. Columns may be written as rows name them, or as pages show them.
            info: of the dataset, which may name classes; then a class may be written for its number.

        Raises:
            ValueError: it is not one, or compares a column with what it cannot hold; says how to write it. Or
                there is no schema.
        """
        if len(text) > _LONGEST:
            raise ValueError(f"a filter has at most {_LONGEST:,} characters, found {len(text):,}")
        if schema is None:
            raise ValueError(
                "a filter is about columns, but these rows have no schema; name it where they are made, as "
                "in map(function, schema=...)"
            )
        reader = _Parser(text, _fields(schema, info or {}))
        holds = reader.whole()
        return Filter(tuple(field.name for field in reader.fields if field.name in reader.named), holds)

    def first(
        self,
        ref: DataRef,
        start: int = 0,
        most: int | None = None,
        stop: int | None = None,
        seconds: float = math.inf,
    ) -> tuple[Ints, int]:
        """The first rows from one on that meet it, and the first row that was not looked at.

        Args:
            ref: the dataset, of the schema that the filter was made for.
            start: the first row to look at.
            most: rows to find; None for all.
            stop: the first row not to look at; None for the end.
            seconds: after which no more rows are looked at.
        """
        end, until = len(ref) if stop is None else min(stop, len(ref)), time.monotonic() + seconds
        step = max(1, min(_ROWS, _BYTES // max(1, ref.columns(list(self.columns))._row_bytes)))
        found, left, looked = [np.zeros(0, np.int64)], len(ref) if most is None else most, start
        for at in range(start, end, step):
            mask = self._mask(ref[at : min(at + step, end)])
            found.append(at + np.flatnonzero(mask)[:left])
            left, looked = left - len(found[-1]), at + len(mask)
            if not left:
                looked = int(found[-1][-1]) + 1
            if not left or time.monotonic() > until:
                break
        return np.concatenate(found), looked

    def _mask(self, rows: DataRef) -> Mask:
        """A mask of the rows that meet it."""
        masks: list[Mask] = []

        def held(columns: Mapping[str, Any]) -> Mask:
            masks.append(self._holds(columns))
            return masks[-1]

        rows.where(list(self.columns), held)
        return np.concatenate(masks)


# -- columns


class _Literal(NamedTuple):
    """A value as it was written; `is_quoted` if it stood in quotes."""

    text: str
    is_quoted: bool = False


@dataclass(frozen=True)
class _Field:
    """A value of rows that a filter may name.

    Attributes:
        name: as the schema has it; `column`: its values, or the elements of its lists.
        is_single: False for arrays and lists.
        classes: the names that its numbers stand for.
    """

    name: str
    column: Column
    is_single: bool
    classes: Sequence[str]

    def holds(self, comparison: str, literals: Sequence[_Literal]) -> _Holds:
        """A function of columns that says for which rows one of the values meets a comparison.

        Raises:
            ValueError: the column holds nothing that can be compared with a value.
        """
        test = _joined(np.logical_or, [self._test(comparison, one) for one in literals])
        return lambda given: test(given[self.name])

    def _test(self, comparison: str, literal: _Literal) -> _Test:
        is_not = comparison == "!="
        if not literal.is_quoted and literal.text.lower() in ("none", "null"):  # what is missing
            if comparison not in ("=", "!="):
                raise ValueError(
                    f"what is missing is found by = or !=, as in {escaped(self.name):.80} = none"
                )
            return lambda values: _missing(values) != is_not
        if self.is_single:
            test = _compared(self.column, comparison, literal, self.classes)
        elif comparison == "contains":
            test = _containing(_compared(self.column, "=", literal, self.classes))
        else:
            name, text = escaped(self.name), escaped(literal.text)
            raise ValueError(
                f"{name!r:.80} holds arrays or lists, which are not compared as a whole; write {name:.80} "
                f"contains {text:.40}"
            )

        def held(values: Any) -> Mask:
            are_missing = _missing(values)
            if not are_missing.any():
                return test(np.ma.getdata(values) if isinstance(values, np.ndarray) else values)
            found = np.full(len(values), is_not)
            found[~are_missing] = test(np.ma.getdata(values[~are_missing]))
            return found

        return held


def _fields(schema: Schema, info: Mapping[str, object]) -> list[_Field]:
    """The values of a row that are one column, or a list of one."""
    columns = {column.name: column for column in schema.columns}
    fields = []
    for name in flat_names(schema.tree):
        column = columns.get(name)
        if column is None:
            continue
        is_text = column.kind in (*_TEXTS, *_BYTE_STRINGS)
        is_single = f"{name}{{lengths}}" not in columns and (is_text or column.shape == ())
        fields.append(_Field(name, column, is_single, class_names(column, info)))
    return fields


def _missing(values: Any) -> Mask:
    """A mask of the values that are None, or times that are none."""
    if isinstance(values, np.ma.MaskedArray):
        return np.asarray(np.ma.getmaskarray(values).reshape(len(values), -1).any(axis=1), np.bool_)
    if isinstance(values, RaggedColumn) or values.dtype.kind not in "OmM" or values.ndim > 1:
        return np.zeros(len(values), np.bool_)
    return _each(lambda value: value is None)(values) if values.dtype.kind == "O" else np.isnat(values)


def _each(test: Callable[[Any], bool]) -> _Test:
    return lambda values: np.fromiter(map(test, values), np.bool_, len(values))


def _containing(element: _Test) -> _Test:
    """A function of rows of arrays or lists that says which of them have an element that meets a test."""

    def test(values: Any) -> Mask:
        if isinstance(values, RaggedColumn):
            return values.any(element(values.values))
        if values.dtype.kind == "O":  # lists
            return _each(lambda items: bool(element(_elements(items)).any()))(values)
        return np.asarray(element(values.reshape(-1)).reshape(len(values), -1).any(axis=1), np.bool_)

    return test


def _elements(items: Any) -> Any:
    if isinstance(items, list) and items and isinstance(items[0], (str, bytes)):
        return np.array(items, object)
    return np.asarray(items).reshape(-1)


# -- one column and one value


def _compared(column: Column, comparison: str, literal: _Literal, classes: Sequence[str] = ()) -> _Test:
    """A function of values (B,) of a column, or elements of its arrays, that says which meet a comparison.

    Raises:
        ValueError: no value of the column can be compared with it; says what the column holds.
    """
    kind = column.storage.kind
    if column.kind == "none":
        return lambda values: np.zeros(len(values), np.bool_)
    if column.kind in (*_TEXTS, *_BYTE_STRINGS) or kind in "US":
        return _of_text(comparison, literal.text, column.kind in _BYTE_STRINGS or kind == "S")
    if comparison == "contains":
        raise ValueError(f"{_held_by(column)}, of which none contains another value; compare it with =")
    if column.letter in "cm" or column.kind == "time":
        raise ValueError(f"{_held_by(column)}, which a filter does not compare")
    if column.letter == "f":
        return _of_floats(comparison, float(_number(column, literal, classes)))
    if kind == "M":
        return _of_times(column, comparison, literal)
    number = _flag(column, literal) if kind == "b" else _number(column, literal, classes)
    unit = 10 ** (column.meaning.scale or 0)
    test = _of_whole(column, comparison, literal, number * unit)
    return test if unit == 1 else lambda values: test(np.rint(values * unit).astype(np.int64))


def _held_by(column: Column) -> str:
    """The name of a column and its kind, as a message begins with them."""
    given = column.dtype if column.kind == "tensor" else column.storage.name
    zone = "" if column.meaning.timezone is None else f" in {column.meaning.timezone}"
    return f"{escaped(column.name)!r:.80} holds {_KINDS.get(column.kind, given)}{zone}"


def _unlike(column: Column, literal: _Literal, wanted: str) -> ValueError:
    return ValueError(
        f"{_held_by(column)}, which cannot be compared with {escaped(literal.text)!r:.80}; write {wanted}"
    )


def _number(column: Column, literal: _Literal, classes: Sequence[str]) -> Fraction | float:
    """A number, or that of a class."""
    text = literal.text.strip()
    alike = [number for number, name in enumerate(classes) if name.casefold() == text.casefold()]
    by_name = classes.index(text) if text in classes else alike[0] if len(alike) == 1 else None
    if by_name is not None and (literal.is_quoted or not _NUMBER.fullmatch(text)):
        return Fraction(by_name)
    if _NUMBER.fullmatch(text):
        return Fraction(Decimal(text)) if column.letter != "f" else float(text)
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    if classes:
        near = difflib.get_close_matches(text, classes[:_MOST_CLASSES], 3, 0.5)
        near += [name for name in classes[:10] if name not in near]
        raise _unlike(column, literal, f"a number or a class, such as {', '.join(map(escaped, near)):.300}")
    raise _unlike(column, literal, "a number")


def _flag(column: Column, literal: _Literal) -> Fraction:
    found = {"true": 1, "false": 0, "1": 1, "0": 0}.get(literal.text.strip().lower())
    if found is None:
        raise _unlike(column, literal, "true or false")
    return Fraction(found)


def _moment(column: Column, literal: _Literal) -> Any:
    """A date and time, in UTC if the column has a time zone."""
    match, own = _MOMENT.fullmatch(literal.text.strip()), column.meaning.timezone
    if match is None:
        raise _unlike(column, literal, "a date, as in 2026-03-01 or 2026-03-01 13:45")
    try:
        moment = np.datetime64(match[1])
    except ValueError as error:
        raise _unlike(column, literal, f"a date that there is ({error})") from None
    given = match[2]
    if own is None:
        if given is not None:
            raise _unlike(column, literal, f"it without {given}, since its times have no zone")
        return moment
    zone = timezone_of(own if given is None else "UTC" if given in "Zz" else f"{given[:3]}:{given[-2:]}")
    offset = moment.astype("M8[s]").item().replace(tzinfo=zone).utcoffset()
    return moment - np.timedelta64(offset)


def _of_times(column: Column, comparison: str, literal: _Literal) -> _Test:
    """Dates and times against one, which is rounded down to their unit."""
    dtype, wanted = column.storage, _moment(column, literal)
    floor = wanted.astype(dtype)
    is_exact = bool(floor.astype(wanted.dtype) == wanted)
    if not is_exact and np.promote_types(dtype, wanted.dtype) == dtype:  # beyond what their unit reaches
        return _of_whole(column, comparison, literal, math.copysign(math.inf, wanted.astype(np.int64)))
    if floor.astype(wanted.dtype) > wanted:
        floor -= 1
    return _of_bound(column, comparison, literal, floor, is_exact)


def _of_whole(column: Column, comparison: str, literal: _Literal, wanted: Fraction | float) -> _Test:
    """Whole numbers against a number, exactly."""
    reach: Any = np.iinfo(column.storage if column.storage.kind in "iu" else np.int64)
    if comparison == "=" and not reach.min <= wanted <= reach.max:
        raise _unheld(column, literal)
    if isinstance(wanted, float):  # not a number, or infinite
        return lambda values: np.full(len(values), bool(_ORDERS[comparison](0.0, wanted)))
    return _of_bound(column, comparison, literal, math.floor(wanted), wanted.denominator == 1)


def _of_bound(column: Column, comparison: str, literal: _Literal, floor: Any, is_exact: bool) -> _Test:
    """Values of whole steps against a step, or against what lies between it and the next."""
    if comparison == "=" and not is_exact:
        raise _unheld(column, literal)
    if comparison == "!=" and not is_exact:
        return lambda values: np.ones(len(values), np.bool_)
    bound = floor if is_exact or comparison in ("<=", ">") else floor + 1
    return lambda values: np.asarray(_ORDERS[comparison](values, bound), np.bool_)


def _unheld(column: Column, literal: _Literal) -> ValueError:
    text = escaped(literal.text)
    return ValueError(f"{_held_by(column)}, of which none can be {text!r:.80}; compare it with < or >")


def _of_floats(comparison: str, number: float) -> _Test:
    order = _ORDERS[comparison]

    def test(values: Any) -> Mask:
        if math.isnan(number):
            are_nan: Mask = np.isnan(values)
            return are_nan if comparison == "=" else ~are_nan & (comparison == "!=")
        with np.errstate(over="ignore", under="ignore"):
            near = values.dtype.type(number)
        is_like = bool(np.isfinite(near)) == math.isfinite(number) and bool(near) == bool(number)
        return np.asarray(order(values, near) if is_like else order(values.astype(np.float64), number))

    return test


def _of_text(comparison: str, text: str, is_bytes: bool) -> _Test:
    wanted: Any = text.encode("utf-8", "surrogatepass") if is_bytes else text
    if comparison != "contains":
        return lambda values: np.asarray(_ORDERS[comparison](values.astype(object), wanted), np.bool_)
    if is_bytes:
        return _each(lambda one: wanted in one)
    folded = text.casefold()
    return _each(lambda one: folded in one.casefold())


# -- the text


class _Parser:
    """Reads a filter from its beginning to its end."""

    def __init__(self, text: str, fields: Sequence[_Field]) -> None:
        self._text, self._at, self._depth, self.fields = text.strip(), 0, 0, fields
        self._shown = {escaped(plain_name(field.name)): field for field in fields}
        plain = {plain_name(field.name): field for field in fields}
        names = self._shown | plain | {field.name: field for field in fields}
        self._spellings = {f'"{name}"': field for name, field in names.items()} | names
        self._lengths = sorted({len(name) for name in self._spellings}, reverse=True)
        self.named: dict[str, None] = {}

    def whole(self) -> _Holds:
        """All of it."""
        holds = self._any()
        if self._at < len(self._text):
            self._fail(f"{self._rest()} is left over")
        return holds

    def _any(self) -> _Holds:
        return self._several("or", np.logical_or, self._all)

    def _all(self) -> _Holds:
        return self._several("and", np.logical_and, self._one)

    def _several(self, word: str, join: Any, read: Callable[[], _Holds]) -> _Holds:
        parts = [read()]
        while self._word(word):
            parts.append(read())
        return _joined(join, parts)

    def _one(self) -> _Holds:
        is_not = False
        while (holds := self._comparison()) is None and self._word("not"):
            is_not = not is_not
        if holds is None and self._take(r"\("):
            holds = self._inside()
        elif holds is None and self._take(_IN_ANY):
            holds = self._in_any_text()
        elif holds is None:
            self._fail_at_column()
        return _negated(holds) if is_not else holds

    def _inside(self) -> _Holds:
        """A filter in parentheses."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"a filter has at most {_DEEPEST} parentheses in each other")
        holds = self._any()
        self._take(r"\s*")
        if not self._take(r"\)"):
            self._fail(f"a parenthesis is not closed before {self._rest()}")
        self._depth -= 1
        return holds

    def _comparison(self) -> _Holds | None:
        """A column and what it is compared with, if they come next; of `a` and `a b`, the longer is meant."""
        self._take(r"\s*")
        for length in self._lengths:
            field = self._spellings.get(self._text[self._at : self._at + length])
            sign = None if field is None else _SIGN.match(self._text, self._at + length)
            if field is not None and sign is not None:
                self._at = sign.end()
                self.named[field.name] = None
                return self._compared(field, sign)
        return None

    def _compared(self, field: _Field, sign: re.Match[str]) -> _Holds:
        word = (sign[3] or "").lower()
        if not word:
            return field.holds(_ALIKE.get(sign[1], sign[1]), [self._value(False)])
        holds = field.holds("=", self._values()) if word == "in" else field.holds(word, [self._value(False)])
        return holds if sign[2] is None else _negated(holds)

    def _in_any_text(self) -> _Holds:
        """True for rows of which any text contains the value behind `contains`."""
        fields = [field for field in self.fields if field.is_single and field.column.kind in _TEXTS]
        if not fields:
            self._fail("there is no column of texts, so name one before contains")
        value = [self._value(False)]
        self.named |= dict.fromkeys(field.name for field in fields)
        return _joined(np.logical_or, [field.holds("contains", value) for field in fields])

    def _values(self) -> list[_Literal]:
        """The values of a list, in parentheses or brackets."""
        begin = self._take(r"[(\[]")
        if begin is None:
            self._fail("in is followed by values in parentheses, as in label in (1, 2)")
        end = r"\s*\)" if begin[0] == "(" else r"\s*\]"
        literals: list[_Literal] = []
        while True:
            self._take(r"\s*")
            literals.append(self._value(True))
            has_more = self._take(r"\s*,")
            if self._take(end):
                return literals
            if not has_more:
                self._take(r"\s*")
                self._fail(f"the list is not closed before {self._rest()}")

    def _value(self, in_list: bool) -> _Literal:
        """A value, as it is or in quotes, which may hold their own quote twice."""
        if quoted := self._take(_QUOTED):
            return _Literal(quoted[2].replace(quoted[1] * 2, quoted[1]), True)
        text, start = self._text, self._at
        if text.startswith(('"', "'"), start):
            self._fail(f"the quote at {self._rest()} is not closed; write it twice within a value")
        ends, depth = _ENDS.search(text, start), 0
        stop = len(text) if ends is None else ends.start()
        for at in range(start, stop):
            if not depth and (text[at] == ")" or (in_list and text[at] in ",]")):
                stop = at
                break
            depth += (text[at] == "(") - (text[at] == ")")
        value = text[start:stop].strip()
        if not value:
            self._fail(f"a value is missing before {self._rest()}")
        self._at = stop
        return _Literal(value)

    def _take(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        """The match of a pattern with what comes next, which then is read; None if it does not match."""
        match = re.compile(pattern).match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _word(self, word: str) -> bool:
        return self._take(rf"(?i)\s*{word}(?=[\s(\"]|$)\s*") is not None

    def _rest(self) -> str:
        rest = self._text[self._at :]
        return repr(escaped(rest[:40])) if rest else "the end"

    def _fail_at_column(self) -> NoReturn:
        rest = self._text[self._at :]
        named = re.match(r"\s*(\"[^\"]+\"|[^<>=!()]+?)(?=\s*[<>=!]|\s+(?:not\s+)?(?:in|contains)\b)", rest)
        known = list(self._shown)
        if named is None:
            some = ", ".join(known[:10])
            self._fail(f"{self._rest()} is not a column and a comparison; {_HOW}; columns are {some:.500}")
        asked = escaped(named[1].strip('"'))
        near = difflib.get_close_matches(asked, known[:20_000], 3, 0.5)
        some = ", ".join([*near, *(name for name in known if name not in near)][:10])
        self._fail(f"there is no column {asked!r:.80}; columns are {some:.500}; {_HOW}")

    def _fail(self, why: str) -> NoReturn:
        raise ValueError(f"{escaped(self._text)!r:.200} is not a filter: {why}")


def _joined(join: Any, tests: Sequence[Callable[[Any], Mask]]) -> Callable[[Any], Mask]:
    """A function that joins what several say of the same."""
    return lambda given: np.asarray(reduce(join, (test(given) for test in tests)), np.bool_)


def _negated(holds: _Holds) -> _Holds:
    return lambda given: ~holds(given)
