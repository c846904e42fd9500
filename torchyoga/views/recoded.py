"""Codes with names: the same code is the same name in all rows that come together.

A class folder, a ClassLabel and a dictionary of Arrow number their names each in their own way. So where
rows of several datasets become one, codes are changed to those of one list: the names of the first, then
new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ..errors import CorruptError, SchemaError
from ..process.digests import hexdigest
from ..reading.dataref import DataRef
from ..rows.block import Block, Data
from ..rows.column import Column
from ..rows.schema import Projection, Schema
from ..rows.types import Ints, Json
from .over import ChangedBlocks, Over

Names: TypeAlias = Mapping[str, tuple[str, ...]]  # of the codes of columns, by the column's name
_LAST = "append the rows as they were before map, or call map last, as concat([one, other]).map(function)"


def named_alike(refs: Sequence[DataRef]) -> list[DataRef]:
    """The DataRefs with the codes of a column that has names in several of them changed to those of one list.

    Raises:
        SchemaError: the names are too many for a column; or an `info` names the codes of a column otherwise
            than another one does, and no column says that it has them.
    """
    if len(refs) < 2:
        return list(refs)
    names = joined_names([ref.schema for ref in refs if ref.schema is not None])
    found = [recoded(ref, names) for ref in refs]
    called = [f"DataRef {number}" for number in range(len(found))]
    known: Mapping[str, int] = {}
    for name, ref in zip(called, found, strict=True):
        if ref.schema is not None and has_codes(ref.schema):
            known = codes_of_both(ref.schema, known, ref.info, "those before", name)
    mapped = {name: ref for name, ref in zip(called, found, strict=True) if ref.schema is None}
    if not mapped:
        return found
    before = {name: rows_before(ref) for name, ref in zip(called, found, strict=True)}
    names = joined_names([schema for schemas in before.values() for schema in schemas if schema is not None])
    for name in called:
        check_names(before[name], names, name)
    # Where a column names its codes, they are changed before the function; where only an `info` does, the
    # function may be what changes them to those of rows without one.
    are_named = any(not lacks_names(schema) for name in mapped for schema in before[name])
    known = {}
    for name, ref in zip(called, found, strict=True):
        if (are_named or name in mapped) and any(one is None or has_codes(one) for one in before[name]):
            known = codes_of_both(None, known, ref.info, "those before", name)
    return found


def rows_before(ref: DataRef) -> Sequence[Schema | None]:
    """How rows look, or those that a function makes them of; None where that is not known."""
    below: Sequence[DataRef] = getattr(ref, "sources", [getattr(ref, "whole", None)])
    if ref.schema is not None or None in below:
        return [ref.schema]
    return [schema for one in below for schema in rows_before(one)]


def check_names(before: Sequence[Schema | None], names: Names, called: str) -> None:
    """Raises SchemaError if rows that a function changes have other codes than the rest for the same names.

    Args:
        before: how they look before the function.
        names: of the codes of all rows.
        called: what they are called.
    """
    for column in (column for schema in before if schema is not None for column in schema.columns):
        words, wanted = column.meaning.words, names.get(column.name, ())
        if words is not None and words != wanted[: len(words)]:
            raise SchemaError(
                f"column {column.name!r} of {called} has codes of {', '.join(words)!s:.200}, the "
                f"rows of all have those of {', '.join(wanted)!s:.200}; {_LAST}"
            )


def extended(old: Schema, new: Schema) -> Schema | None:
    """The schema of rows of both, if they differ only in names that one of them has besides; else None."""
    names = joined_names([old, new])
    schema = with_names(old, names)
    words = ((column.meaning.words, names.get(column.name)) for column in new.columns)
    has_codes = all(
        own is None or all_names is None or own == all_names[: len(own)] for own, all_names in words
    )
    return schema if has_codes and with_names(new, names) == schema else None


def joined_names(schemas: Sequence[Schema]) -> Names:
    """The names of each column whose codes have some: those of the first schema, then what the others add."""
    found: dict[str, dict[str, None]] = {}
    for schema in schemas:
        for column in schema.columns:
            if column.meaning.words is not None:
                found.setdefault(column.name, {}).update(dict.fromkeys(column.meaning.words))
    return {name: tuple(words) for name, words in found.items()}


def with_names(schema: Schema, names: Names) -> Schema:
    """A schema whose codes have these names; SchemaError if a column cannot hold so many codes."""
    return replace(schema, columns=tuple(_named(column, names) for column in schema.columns))


def _named(column: Column, names: Names) -> Column:
    words = names.get(column.name)
    if column.meaning.words is None or words is None or words == column.meaning.words:
        return column
    if len(words) - 1 > np.iinfo(column.storage.str).max:
        raise SchemaError(
            f"column {column.name!r} has codes of {column.dtype}, too small for the {len(words)} names "
            "of all; convert its codes to int64 first"
        )
    return replace(column, meaning=replace(column.meaning, words=words))


def recoded(ref: DataRef, names: Names) -> DataRef:
    """The rows of a DataRef with codes that have these names; the DataRef itself if they have them."""
    schema = ref.schema
    if schema is None or (made := with_names(schema, names)) == schema:
        return ref
    tables = {}
    for number, (before, after) in enumerate(zip(schema.columns, made.columns, strict=True)):
        old, new = before.meaning.words, after.meaning.words
        if old is not None and new is not None and old != new[: len(old)]:
            code = {word: place for place, word in enumerate(new)}
            tables[number] = np.array([code[word] for word in old], after.storage)
    return RecodedRef(ref, made, tables)


class RecodedRef(ChangedBlocks):
    """The rows of another DataRef with other codes for the same names.

    Args:
        whole: the other DataRef; it has a schema.
        named: the schema with the names.
        tables: by the number of a column, the new code of each old one; nothing where names were only added.
    """

    def __init__(self, whole: DataRef, named: Schema, tables: Mapping[int, Ints]) -> None:
        super().__init__(whole, named, tables)
        self._schema = named
        self._tables = tables

    _keeps_rows = Over._keeps_rows

    def _changed(self, block: Block) -> Block:
        data = list(block.data)
        for number, table in self._tables.items():
            data[number] = _with_codes(self._schema.columns[number], data[number], table)
        return Block(self._schema, block.num_rows, tuple(data))

    def _projected(self, of: Projection) -> DataRef:
        """Some columns; the others are not read."""
        assert self.whole.schema is not None
        own = (
            replace(column, meaning=self.whole.schema.columns[number].meaning)
            for number, column in zip(of.columns, of.schema.columns, strict=True)
        )
        whole = self.whole._projected(Projection(Schema(of.schema.tree, tuple(own)), of.columns))
        tables = {place: self._tables[n] for place, n in enumerate(of.columns) if n in self._tables}
        return whole if whole.schema == of.schema else RecodedRef(whole, of.schema, tables)

    def _pinned(self, whole: str) -> str:
        tables = sorted((number, table.tolist()) for number, table in self._tables.items())
        return hexdigest(f"{whole} recoded {tables}") if tables else whole

    @property
    def info(self) -> Json:
        """The whole's, with the names of all codes."""
        assert self.whole.schema is not None
        return named_in(self.whole.info, self.whole.schema, self._schema)


def _with_codes(column: Column, data: Data, table: Ints) -> Data:
    codes = data.values
    if codes.size and int(codes.max()) >= max(1, len(table)):  # without names, all values are None, kept as 0
        raise CorruptError(
            f"column {column.name!r} has the code {int(codes.max())}, but only {len(table)} codes have a name"
        )
    table = np.append(table, np.zeros(1, table.dtype))
    return Data(np.where(codes < 0, codes, table[np.maximum(codes, 0)]), data.offsets, data.shapes)


def named_in(info: Json, before: Schema, after: Schema) -> Json:
    """An `info` that has the names of codes of one schema, as `classes`, `class_to_idx` or `features` of
    Hugging Face, with those of another."""
    for one, other in zip(before.columns, after.columns, strict=True):
        old, new = one.meaning.words, other.meaning.words
        if old and new and old != new:
            info = _renamed(info, list(old), list(new))
    return info


def _renamed(value: Any, old: list[str], new: list[str]) -> Any:
    if value == old:
        return new
    if isinstance(value, dict):
        if value == {word: code for code, word in enumerate(old)}:
            return {word: code for code, word in enumerate(new)}
        return {key: _renamed(item, old, new) for key, item in value.items()}
    return value


def codes_in(info: Json) -> dict[str, int]:
    """The code of each class, as an `info` says it; nothing if it does not."""
    found = info.get("class_to_idx")
    if isinstance(found, dict) and all(type(code) is int for code in found.values()):
        return found
    classes = info.get("classes")
    if not isinstance(classes, list) or not all(isinstance(word, str) for word in classes):
        return {}
    return {word: code for code, word in enumerate(classes)}


def has_codes(schema: Schema | None) -> bool:
    """True if rows have a whole number, which may be a code."""
    return schema is not None and any(one.letter in "iu" and one.shape == () for one in schema.columns)


def lacks_names(schema: Schema | None) -> bool:
    """True if rows may have a whole number whose column does not name it."""
    return schema is None or any(
        one.letter in "iu" and one.shape == () and one.meaning.words is None for one in schema.columns
    )


def codes_of_both(
    schema: Schema | None, mine: Mapping[str, int], info: Json, first: str, second: str
) -> dict[str, int]:
    """The code of each class of rows whose classes have these codes, and of others, as their `info` says it.

    Args:
        schema: of both; None if it is not known.
        mine: the codes of the first.
        info: of the second.
        first: what the first is called.
        second: what the second is called.

    Raises:
        SchemaError: a code would mean one class in some rows and another one in others, in a column that
            does not say the names of its codes itself.
    """
    if not lacks_names(schema):
        return dict(mine)
    words = {code: word for word, code in mine.items()}
    theirs = codes_in(info)
    for word, code in theirs.items():
        if mine.get(word, code) != code or words.get(code, word) != word:
            otherwise = f"it is {words[code]!r}" if code in words else f"{word!r} is {mine[word]}"
            raise SchemaError(
                f"class_to_idx of {second} says that the label {code} is {word!r}, that of {first} that "
                f"{otherwise}; change the labels of {second} first, as by target_transform or map, to the "
                f"codes {dict(mine)!s:.500}. Where a column names its codes, {_LAST}"
            )
    return {**mine, **theirs}
