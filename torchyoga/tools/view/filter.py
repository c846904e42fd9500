"""A condition on columns, as people write it -> the rows that meet it.

A filter is comparisons of a column with a value, joined by `and`, `or`, `not` and parentheses. Nothing is
evaluated. Only the columns that it names are read, thousands of rows at once where a schema says how.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from ...process.messages import escaped
from ...reading.dataref import DataRef
from ...reading.stream import in_epoch
from ...rows.block import Data, leaf_values, node_values
from ...rows.collector import block_of
from ...rows.column import Column
from ...rows.node import Node, outermost, path_name
from ...rows.schema import PACK_LENGTHS, Projection, Schema
from ...rows.types import Ints
from ...views.scan import RaggedColumn
from ..cells.flat import flat
from ..cells.text import class_names, plain_name
from .comparison import TEXTS, Literal, Mask, Test, compared, is_single, meets, of_arrays, refuse_order

_LONGEST = 1000
_DEEPEST = 50  # parentheses
_ROWS, _BYTES = 2**14, 2**23  # at once, at most
_SIGN = re.compile(
    r"\s*(<=|>=|!=|<>|==|=|<|>)\s*|\s*(?<![\w])(not\s+)?(in|contains)(?=[\s(\[\"']|$)\s*", re.IGNORECASE
)
_WORD = re.compile(r"\s*(and|or|not)(?=[\s(\"]|$)\s*", re.IGNORECASE)
_IN_ANY = re.compile(r"contains(?=[\s(\[\"'])\s*", re.IGNORECASE)  # without a column before it
_ENDS = re.compile(r"\s+(and|or)(?=[\s(]|$)", re.IGNORECASE)
_AFTER = re.compile(r"(?=[\s,)\]]|$)")
_ALIKE = {"==": "=", "<>": "!="}
_HOW = (
    "write a column, a comparison and a value, as in label = 3, text contains cat or score > 0.5, and join "
    "several by and, or, not and parentheses; a value with such words in it stands in quotes"
)


class _ColumnRows(NamedTuple):
    """Some rows of a column: values as they are stored, and which of them are there; all, if that is None."""

    values: Any
    valid: Mask | None


_Holds: TypeAlias = Callable[[Mapping[str, _ColumnRows]], Mask]


@dataclass(frozen=True)
class Filter:
    """A condition on rows.

    Attributes:
        columns: names of those it is about, in the order of rows, as `DataRef.columns` takes them; as rows
            name them, if they have no schema.

    Example:
        >>> from torchyoga.tools.view.filter import Filter
        >>> ref = yoga.from_arrays({"label": np.arange(9) % 3, "score": np.arange(9) / 8})
        >>> found = Filter.of("label in (0, 2) and not score > 0.5", ref.schema)
        >>> found.columns, found.picked(ref, np.arange(9)).tolist()
        (('label', 'score'), [0, 2, 3])
    """

    columns: tuple[str, ...]
    _schema: Schema | None
    _holds: _Holds

    @staticmethod
    def of(
        text: str, schema: Schema | None, info: Mapping[str, object] | None = None, names: Sequence[str] = ()
    ) -> Filter:
        """The condition that a text states.

        Args:
            text: such as `label = 3 and text contains cat`.
            schema: of the rows. Columns may be written as rows name them, or as pages show them.
            info: of the dataset, which may name classes; then a class may be written for its number.
            names: of the values of a row, if there is no schema; what is in them is seen row by row.

        Raises:
            ValueError: it is not one, or compares a column with what it cannot hold; says how to write it.
        """
        if len(text) > _LONGEST:
            raise ValueError(f"a filter has at most {_LONGEST:,} characters, found {len(text):,}")
        reader = _Parser(
            text, list(map(_ColumnTests, names)) if schema is None else _fields(schema, info or {})
        )
        holds = reader.whole()
        if schema is not None and schema.packed:  # which any projection has
            reader.named[PACK_LENGTHS] = None
        return Filter(
            tuple(field.name for field in reader.fields if field.name in reader.named), schema, holds
        )

    def picked(self, ref: DataRef, rows: Ints) -> Ints:
        """Those of some rows that meet it, in their order.

        Args:
            ref: the dataset, of the schema that the filter was made for.
            rows: numbers of rows (N,).

        Raises:
            ValueError: rows without a schema hold what cannot be compared.
        """
        if not len(rows):
            return rows
        given: Mapping[str, Any]
        if self._schema is None:
            flat_rows = [dict(flat(row)) for row in in_epoch(ref, 0, 0).take(rows)]
            given = {name: _ColumnRows([row.get(name) for row in flat_rows], None) for name in self.columns}
        else:
            given = dict(zip(self.columns, _columns(self._narrow(ref), rows), strict=True))
        return rows[self._holds(given)]

    def found(self, ref: DataRef, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Ints]]:
        """The rows from one on that meet it, some at a time: the first row not looked at yet, and numbers."""
        end = len(ref) if stop is None else min(stop, len(ref))
        bytes_of_row = max(1, (ref if self._schema is None else self._narrow(ref))._row_bytes)
        step = max(1, min(_ROWS if self._schema is not None else 256, _BYTES // bytes_of_row))
        for at in range(start, end, step):
            rows = np.arange(at, min(at + step, end), dtype=np.int64)
            yield at + len(rows), self.picked(ref, rows)

    def _narrow(self, ref: DataRef) -> DataRef:
        assert self._schema is not None, "rows without a schema have no columns"
        return ref._projected(Projection.of(self._schema, list(self.columns)))


def _columns(ref: DataRef, rows: Ints) -> list[_ColumnRows]:
    """Some rows of each outermost value of a DataRef."""
    block = block_of(in_epoch(ref, 0, 0).take(rows), ref.schema)
    pieces = zip(block.schema.columns, block.data, strict=True)
    return [
        _given(node, list(islice(pieces, node.num_leaves)), len(rows))
        for _, node in outermost(block.schema.tree)
    ]


def _given(node: Node, pieces: list[tuple[Column, Data]], num_rows: int) -> _ColumnRows:
    if node.kind == "nullable":
        return _given(node.children[0], pieces[:-1], num_rows)._replace(valid=pieces[-1][1].values)
    column, data = pieces[0]
    is_list = node.kind == "varying" and node.children[0].kind == "leaf"
    if node.kind != "leaf" and not is_list:
        return _ColumnRows(node_values(node, iter(pieces), num_rows), None)
    if is_list or (column.is_ragged and not is_single(column)):
        return _ColumnRows(RaggedColumn(data.values, np.diff(data.part("offsets"))), None)
    if not column.is_ragged:
        is_time = data.values.dtype.kind in "mM" and column.shape == ()
        return _ColumnRows(data.values, ~np.isnat(data.values) if is_time else None)
    texts = np.empty(num_rows, object)
    texts[:] = leaf_values(column, data, num_rows)
    return _ColumnRows(texts, None)


# -- columns


@dataclass(frozen=True)
class _ColumnTests:
    """A value of rows that a filter may name.

    Attributes:
        name: as the schema has it; `column`: None for what is seen row by row.
        is_single: False for arrays and lists.
        classes: the names that its numbers stand for.
    """

    name: str
    column: Column | None = None
    is_single: bool = True
    classes: Sequence[str] = ()

    @property
    def is_text(self) -> bool:
        """True for a column of texts."""
        return self.column is not None and self.is_single and self.column.kind in TEXTS

    def holds(self, comparison: str, literals: Sequence[Literal]) -> _Holds:
        """A function of columns that says for which rows one of the values meets a comparison.

        Raises:
            ValueError: the column holds nothing that can be compared with a value.
        """
        tests = [self._test(comparison, one) for one in literals]
        return lambda given: _joined(np.logical_or, tests, given[self.name])

    def _test(self, comparison: str, literal: Literal) -> Callable[[_ColumnRows], Mask]:
        is_not = comparison == "!="
        if literal.is_none and self.column is not None:
            if comparison not in ("=", "!="):
                raise ValueError(
                    f"what is missing is found by = or !=, as in {escaped(self.name):.80} = none"
                )
            return lambda given: _there(given) == is_not
        if self.column is None:
            if not self.is_single:
                refuse_order(self.name, comparison, literal)
            return lambda given: _each(given.values, comparison, literal, self.name)
        make = compared if self.is_single else of_arrays
        test: Test = make(self.column, comparison, literal, self.classes)

        def held(given: _ColumnRows) -> Mask:
            are_met = test(given.values)
            return are_met if given.valid is None else np.where(given.valid, are_met, is_not)

        return held


def _each(values: Sequence[object], comparison: str, literal: Literal, name: str) -> Mask:
    return np.fromiter((meets(one, comparison, literal, name) for one in values), np.bool_, len(values))


def _there(given: _ColumnRows) -> Mask:
    return np.ones(len(given.values), np.bool_) if given.valid is None else given.valid


def _fields(schema: Schema, info: Mapping[str, object]) -> list[_ColumnTests]:
    columns = iter(schema.columns)
    tests = []
    for path, node in outermost(schema.tree):
        column, *_ = islice(columns, node.num_leaves)
        child = node.children[0] if node.kind == "nullable" else node
        is_list = child.kind == "varying" and child.children[0].kind == "leaf"
        known = column if is_list or child.kind == "leaf" else None
        is_one = child.kind == "leaf" and is_single(column)
        tests.append(_ColumnTests(path_name(path), known, is_one, class_names(column, info)))
    return tests


# -- the text


class _Parser:
    """Reads a filter from its beginning to its end."""

    def __init__(self, text: str, fields: Sequence[_ColumnTests]) -> None:
        self._text, self._at, self.fields = text.strip(), 0, fields
        self._shown = {escaped(plain_name(field.name)): field for field in fields}
        plain = {plain_name(field.name): field for field in fields}
        names = self._shown | plain | {field.name: field for field in fields}
        self._spellings = {f'"{name}"': field for name, field in names.items()} | names
        self._lengths = sorted({len(name) for name in self._spellings}, reverse=True)
        self.named: dict[str, None] = {}

    def whole(self) -> _Holds:
        """All of it."""
        holds = self._any(0)
        if self._at < len(self._text):
            self._fail(f"{self._rest()} is left over")
        return holds

    def _any(self, depth: int) -> _Holds:
        parts = [self._all(depth)]
        while self._word("or"):
            parts.append(self._all(depth))
        return lambda given: _joined(np.logical_or, parts, given)

    def _all(self, depth: int) -> _Holds:
        parts = [self._one(depth)]
        while self._word("and"):
            parts.append(self._one(depth))
        return lambda given: _joined(np.logical_and, parts, given)

    def _one(self, depth: int) -> _Holds:
        is_not = False
        while True:
            self._space()
            field = self._column()
            if field is not None:
                holds = self._compared(field)
                break
            if self._word("not"):
                is_not = not is_not
            elif self._text.startswith("(", self._at):
                holds = self._inside(depth + 1)
                break
            elif _IN_ANY.match(self._text, self._at):
                holds = self._in_any_text()
                break
            else:
                self._fail_at_column()
        return (lambda given: ~holds(given)) if is_not else holds

    def _inside(self, depth: int) -> _Holds:
        if depth > _DEEPEST:
            raise ValueError(f"a filter has at most {_DEEPEST} parentheses in each other")
        self._at += 1
        holds = self._any(depth)
        self._space()
        if not self._text.startswith(")", self._at):
            self._fail(f"a parenthesis is not closed before {self._rest()}")
        self._at += 1
        return holds

    def _column(self) -> _ColumnTests | None:
        """The column that is named here, if a comparison follows; of `a` and `a b`, the longer is meant."""
        for length in self._lengths:
            field = self._spellings.get(self._text[self._at : self._at + length])
            if field is not None and _SIGN.match(self._text, self._at + length):
                self._at += length
                return field
        return None

    def _compared(self, field: _ColumnTests) -> _Holds:
        sign = _SIGN.match(self._text, self._at)
        assert sign is not None, "it follows a column"
        self._at = sign.end()
        self.named[field.name] = None
        if sign[3] is None:
            return field.holds(_ALIKE.get(sign[1], sign[1]), [self._value(False)])
        if sign[3].lower() == "contains":
            holds = field.holds("contains", [self._value(False)])
        else:
            holds = field.holds("=", self._values())
        return holds if sign[2] is None else lambda given: ~holds(given)

    def _in_any_text(self) -> _Holds:
        """True for rows of which any text contains the value behind `contains`."""
        fields = [field for field in self.fields if field.is_text]
        begin = _IN_ANY.match(self._text, self._at)
        assert begin is not None, "it was seen"
        if not fields:
            self._fail("there is no column of texts, so name one before contains")
        self._at = begin.end()
        value = [self._value(False)]
        self.named |= dict.fromkeys(field.name for field in fields)
        parts = [field.holds("contains", value) for field in fields]
        return lambda given: _joined(np.logical_or, parts, given)

    def _values(self) -> list[Literal]:
        """The values of a list, in parentheses or brackets."""
        begin = self._text[self._at : self._at + 1]
        if begin not in ("(", "["):
            self._fail("in is followed by values in parentheses, as in label in (1, 2)")
        self._at += 1
        literals: list[Literal] = []
        while True:
            self._space()
            if literals and self._text.startswith(")" if begin == "(" else "]", self._at):
                self._at += 1
                return literals
            literals.append(self._value(True))
            self._space()
            if self._text.startswith(",", self._at):
                self._at += 1
            elif not self._text.startswith(")" if begin == "(" else "]", self._at):
                self._fail(f"the list is not closed before {self._rest()}")

    def _value(self, in_list: bool) -> Literal:
        """A value, as it is or in quotes, which may hold their own quote twice."""
        text, start = self._text, self._at
        quote = text[start : start + 1]
        if quote in ('"', "'") and quote:
            whole = re.compile(rf"{quote}((?:[^{quote}]|{quote}{quote})*){quote}").match(text, start)
            if whole is None or not _AFTER.match(text, whole.end()):
                self._fail(f"the quote at {self._rest()} is not closed; write it twice within a value")
            self._at = whole.end()
            return Literal(whole[1].replace(quote * 2, quote), True)
        ends, depth, stop = _ENDS.search(text, start), 0, len(text)
        stop = ends.start() if ends is not None else stop
        for at in range(start, stop):
            if not depth and (text[at] == ")" or (in_list and text[at] in ",]")):
                stop = at
                break
            depth += (text[at] == "(") - (text[at] == ")")
        value = text[start:stop].strip()
        if not value:
            self._fail(f"a value is missing before {self._rest()}")
        self._at = stop
        return Literal(value)

    def _word(self, word: str) -> bool:
        match = _WORD.match(self._text, self._at)
        if match is None or match[1].lower() != word:
            return False
        self._at = match.end()
        return True

    def _space(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

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


def _joined(join: Any, parts: Sequence[Callable[[Any], Mask]], given: object) -> Mask:
    mask = parts[0](given)
    for part in parts[1:]:
        mask = join(mask, part(given))
    return np.asarray(mask, np.bool_)
