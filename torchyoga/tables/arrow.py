"""Arrow tables -> blocks of rows, over the same memory where they are laid out alike.

Which columns may be None is said by whoever opens the data, not by each batch.
An Arrow schema calls nearly every field nullable, and a batch without nulls says nothing of the next one. So
a plan is made once, of the schema, the places that have nulls and the words of dictionaries; all batches are
converted by it and look alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CorruptError, SchemaError
from ..rows.block import Block, bounds_of, joined, numbered_within
from ..rows.collector import Collector
from ..rows.column import MOST_DIGITS, PLAIN, Meaning
from ..rows.node import ITEMS, Path, path_name
from ..rows.schema import Schema, schema_under
from ..rows.types import Array
from . import buffers
from .buffers import Values, storage_type, type_without_views, without_views
from .forms import Empty, Encoded, Form, Held, Lists, Numbers, Structs, Tensors, Texts

Decimals = Literal["error", "float", "text"]
Kept: TypeAlias = "tuple[str, str, Meaning, Callable[[pa.Array], Array]]"
_MOST_WORDS = 2**16  # of a column of codes; a column with more of them is text


@dataclass(frozen=True)
class ArrowPlan:
    """How tables of an Arrow schema become rows.

    Attributes:
        schema: what a row looks like: a dict of the columns.
        names: of the Arrow columns, in the order of the row.
        form: how the columns are kept.
    """

    schema: Schema
    names: tuple[str, ...]
    form: Structs

    def block(self, table: pa.Table, where: str) -> Block:
        """The rows of a table as one block, over its own memory, read-only, where it is laid out alike.

        Args:
            table: of the schema that the plan was made for; columns that the plan does not have are left out.
            where: it lies, for messages.

        Raises:
            SchemaError: there are nulls where the plan has none, or words that it does not have; or a column
                is missing, or of another type.
            CorruptError: values contradict their type.

        Example:
            >>> import pyarrow as pa
            >>> table = pa.table({"ids": [[1, 2], [3]], "label": [5, None]})
            >>> plan = plan_of(table.schema, found_in(table.to_batches()).nulls)
            >>> found = plan.block(table, "here")
            >>> [(column.name, data.values.tolist()) for column, data in zip(plan.schema.columns, found.data)]
            [('ids', [1, 2, 3]), ('label', [5, 0]), ('label{valid}', [True, False])]
        """
        try:
            blocks = [self._block(batch) for batch in table.to_batches() if len(batch)]
        except (SchemaError, CorruptError) as error:
            raise type(error)(f"{where}: {error}") from error
        return joined(blocks) if blocks else Collector(self.schema).take()

    def _block(self, batch: pa.RecordBatch) -> Block:
        missing = [name for name in self.names if name not in batch.schema.names]
        if missing:
            raise SchemaError(f"the columns {missing} are missing; there are {batch.schema.names[:20]}")
        arrays = [without_views(batch.column(name)) for name in self.names]
        return Block(self.schema, len(batch), tuple(self.form.of_fields(arrays)))


class ArrowFacts(NamedTuple):
    """Facts about the data that an Arrow schema does not say.

    Attributes:
        nulls: the places that have some; those below lists end with `{items}`.
        words: of each place whose values are codes of words.
    """

    nulls: set[str]
    words: dict[str, tuple[str, ...]]


def plan_of(
    schema: pa.Schema,
    nulls: Collection[str] = (),
    words: Mapping[str, Sequence[str]] | None = None,
    decimals: Decimals = "error",
    meanings: Mapping[str, Meaning] | None = None,
) -> ArrowPlan:
    """How tables of an Arrow schema become rows.

    Args:
        schema: of the tables.
        nulls: names of the places that have nulls, as `found_in` gives them: `label`, `box/x` in a struct,
            `tags{items}` in lists. Values there may be None; nulls anywhere else raise an error when read.
        words: what the codes of columns of dictionaries stand for; columns not named here become text.
        decimals: what becomes of decimals of more than 18 digits: they are refused, or become floats or text.
        meanings: of places, where somebody knows more than Arrow: the words of codes that are plain integers,
            the codec of bytes, or of structs of `bytes` and `path`, which are kept as the bytes.

    Raises:
        SchemaError: a column cannot be kept; it is named, with a cast that works.

    Example:
        >>> import pyarrow as pa
        >>> schema = pa.schema({"ids": pa.list_(pa.int32()), "label": pa.int8()})
        >>> print(plan_of(schema, nulls=["label"]).schema.exact)
        ids: ndarray <i4 [ragged, 1-d]
        label: scalar |i1 [scalar]
        label{valid}: bool |b1 [scalar]
    """
    maker = _Maker(frozenset(nulls), words or {}, decimals, meanings or {})
    names = tuple(schema.names)
    _refuse_twins(names, ())
    fields = tuple(maker.held(part.type, (part.name,), False) for part in schema)
    form = Structs(names, fields)
    return ArrowPlan(schema_under(form.node, form.columns), names, form)


def found_in(batches: Iterable[pa.RecordBatch]) -> ArrowFacts:
    """Where there are nulls, and the words of dictionaries. Only nested columns and dictionaries are read.

    Example:
        >>> import pyarrow as pa
        >>> sorted(found_in(pa.table({"tags": [["a", None], None], "x": [1, 2]}).to_batches()).nulls)
        ['tags', 'tags{items}']
    """
    nulls = set[str]()
    words: dict[str, dict[str, None]] = {}
    for batch in batches:
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            _look(without_views(array), (name,), nulls, words)
    few = {place: tuple(found) for place, found in words.items() if len(found) <= _MOST_WORDS}
    return ArrowFacts(nulls, few)


def _look(array: pa.Array, path: Path, nulls: set[str], words: dict[str, dict[str, None]]) -> None:
    place, kind = path_name(path), array.type
    if pa.types.is_null(kind) and len(path) == 1:
        return
    array = _unwrapped(array)
    if isinstance(array, pa.DictionaryArray):
        if _is_text(array.type.value_type):
            words.setdefault(place, {}).update(dict.fromkeys(array.dictionary.drop_null().to_pylist()))
        if array.dictionary.null_count or pa.types.is_nested(array.type.value_type):
            array = _plain(array)
    if array.null_count:
        nulls.add(place)
    kind = array.type
    if not pa.types.is_nested(kind):
        return
    if _is_list(kind) and _is_flat(array.values.type) and not array.values.null_count:
        return  # which is known without a look at the lists
    if array.null_count:
        array = array.drop_null()
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            _look(array.field(i), (*path, kind.field(i).name), nulls, words)
    elif not pa.types.is_union(kind):
        _look(buffers.lists_of(array)[1], (*path, ITEMS), nulls, words)


def _is_flat(kind: pa.DataType) -> bool:
    """True for values that hold no others, and are no codes of words."""
    types = pa.types
    is_encoded = types.is_dictionary(kind) or types.is_run_end_encoded(kind)
    return not (is_encoded or types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _unwrapped(array: pa.Array) -> pa.Array:
    """The same values without what encodes them, but for dictionaries."""
    while True:
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_run_end_encoded(kind):
            array = pc.run_end_decode(array)
        elif pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
            array = _in_order(array)
        elif not pa.types.is_nested(kind) and type_without_views(kind) != kind:
            array = without_views(array)
        else:
            return array


def _in_order(array: pa.Array) -> pa.Array:
    """Views of lists as lists: their items in the order of the rows. Arrow's cast heeds no offset, and its
    `flatten` takes no texts that are views."""
    counts = np.asarray(array.value_lengths().fill_null(0))
    items = without_views(array.values).take(np.repeat(array.offsets, counts) + numbered_within(counts))
    return pa.LargeListArray.from_arrays(bounds_of(counts), items, mask=array.is_null())


def _plain(array: pa.Array) -> pa.Array:
    """The same values without what encodes them."""
    array = _unwrapped(array)
    while isinstance(array, pa.DictionaryArray):
        array = _unwrapped(array.dictionary_decode())
    return array


def _plain_cast(array: pa.Array, to: pa.DataType) -> pa.Array:
    return _plain(array).cast(to)


def _coded(array: pa.Array, words: pa.Array, to: pa.DataType) -> pa.Array:
    """The codes of texts among some words; SchemaError for a word that is not there."""
    array = _unwrapped(array)
    if not isinstance(array, pa.DictionaryArray):
        array = array.dictionary_encode()
    found = without_views(array.dictionary)
    if len(found) <= len(words) and found.cast(words.type).equals(words.slice(0, len(found))):
        return array.indices.cast(to)
    places = pc.index_in(found.cast(words.type), value_set=words)
    unknown = found.filter(pc.and_(places.is_null(), found.is_valid()))
    if len(unknown):
        raise SchemaError(
            f"the word {unknown[0].as_py()!r:.80} is not one of the {len(words)} that were found before; "
            "open the data again, or leave the words out"
        )
    return places.take(array.indices).cast(to)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind))


def _refuse_twins(names: Sequence[str], path: Path) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        where = f" of {path_name(path)!r}" if path else ""
        raise SchemaError(f"two columns{where} are called {twins[0]!r}; rename one")


@dataclass(frozen=True)
class _Maker:
    """Makes forms of types.

    Args:
        nulls, words, decimals: see `plan_of`.
    """

    nulls: frozenset[str]
    words: Mapping[str, Sequence[str]] = field(hash=False)
    decimals: Decimals
    meanings: Mapping[str, Meaning] = field(hash=False)

    def held(self, kind: pa.DataType, path: Path, is_deep: bool) -> Form:
        """The form of values that may be null, if this place has nulls."""
        place = path_name(path)
        if pa.types.is_null(kind) and not is_deep:
            return Empty()
        is_nullable = place in self.nulls
        prepare: Callable[[pa.Array], pa.Array] = _plain
        if pa.types.is_null(kind):
            kind, is_nullable = pa.uint8(), True
            prepare = functools.partial(_plain_cast, to=kind)
        tensor = self._tensor(kind, is_deep)
        if tensor is not None:
            return Held(tensor, place, _unwrapped, is_nullable, is_deep, True)
        plain, words = _plain(pa.nulls(0, kind)).type, self.words.get(place)
        if words is not None and _is_text(plain):
            return Held(*self._codes(kind, words, place, is_deep), is_nullable, is_deep, True)
        if pa.types.is_decimal(plain) and plain.precision > MOST_DIGITS:
            plain = self._wide_decimal(plain, place)
            prepare = functools.partial(_plain_cast, to=plain)
        is_free = prepare is _plain and plain == storage_type(kind)
        return Held(self._form(plain, path, is_deep), place, prepare, is_nullable, is_deep, is_free)

    def _form(self, kind: pa.DataType, path: Path, is_deep: bool) -> Form:
        """The form of values of a plain type."""
        types, place = pa.types, path_name(path)
        meaning = self.meanings.get(place, PLAIN)
        if meaning.codec and types.is_struct(kind):
            return Encoded(Texts("bytes", is_deep, meaning), place)
        if meaning.codec and not _is_text(kind):
            return Texts("bytes", is_deep, meaning)
        if _is_text(kind):
            return Texts("str", is_deep)
        if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
            return Texts("bytes", is_deep)
        if types.is_struct(kind):
            fields = [kind.field(i) for i in range(kind.num_fields)]
            return self._structs([(part.name, part.type) for part in fields], path, is_deep)
        if types.is_fixed_size_list(kind):
            fixed = self._fixed(kind, path, is_deep)
            if fixed is not None:
                return fixed
            return self._lists(kind.value_type, path, is_deep)
        if types.is_map(kind):
            pairs = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
            return self._lists(pairs, path, is_deep)
        if _is_list(kind):
            return self._lists(kind.value_type, path, is_deep)
        found = _number(kind)
        if found is None:
            raise SchemaError(
                f"column {place!r} is of the type {kind}, which cannot be kept; {_advice(kind)}"
            )
        name, dtype, own, read = found
        return Numbers(name, dtype, (), own or meaning, read, is_deep)

    def _structs(self, parts: list[tuple[str, pa.DataType]], path: Path, is_deep: bool) -> Form:
        names = tuple(name for name, _ in parts)
        _refuse_twins(names, path)
        if not names and is_deep:
            raise SchemaError(
                f"column {path_name(path)!r} holds lists of structs without fields; leave it out"
            )
        return Structs(names, tuple(self.held(kind, (*path, name), is_deep) for name, kind in parts))

    def _lists(self, kind: pa.DataType, path: Path, is_deep: bool) -> Form:
        item = self.held(kind, (*path, ITEMS), True)
        (first, *others) = item.columns
        is_alone = not is_deep and not others and item.node.kind == "leaf"
        is_array = is_alone and first.kind in ("scalar", "ndarray")
        if is_array:
            assert isinstance(item, Held)
            assert isinstance(item.child, Numbers)
            item = replace(item, child=replace(item.child, kind="ndarray"))
        return Lists(item, is_array, is_deep)

    def _fixed(self, kind: pa.DataType, path: Path, is_deep: bool) -> Form | None:
        """The form of lists of one size as arrays of one shape; None if they hold anything but numbers."""
        shape: list[int] = []
        while pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            path = (*path, ITEMS)
            if path_name(path) in self.nulls:
                return None
            kind = kind.value_type
        found = _number(kind)
        if found is None or found[0] != "scalar":
            return None
        meaning = found[2] or self.meanings.get(path_name(path), PLAIN)
        return Numbers(
            "ndarray", found[1], tuple(shape), meaning, functools.partial(_read_fixed, found[3]), is_deep
        )

    def _tensor(self, kind: pa.DataType, is_deep: bool) -> Form | None:
        """The form of arrays of an extension type that says their shape; None for any other type."""
        if not isinstance(kind, pa.BaseExtensionType):
            return None
        shape = getattr(kind, "shape", None)
        inner = kind.storage_type
        while _is_list(inner) or pa.types.is_fixed_size_list(inner):
            inner = inner.value_type
        found = _number(inner)
        if not shape or found is None or found[0] != "scalar":
            return None
        _, dtype, meaning, read = found
        extents = tuple(map(int, shape[1:]))
        if pa.types.is_fixed_size_list(kind.storage_type):
            extents, order = (int(shape[0]), *extents), tuple(kind.permutation or ())
            ordered = tuple(extents[i] for i in order) if order else extents
            read = functools.partial(_read_tensor, read, extents, order)
            return Numbers("ndarray", dtype, ordered, meaning, read, is_deep)
        if is_deep:
            return None
        if shape[0] is None:
            return Tensors(dtype, extents, read)
        extents = (int(shape[0]), *extents)
        return Numbers(
            "ndarray", dtype, extents, meaning, functools.partial(_read_lists, read, extents), False
        )

    def _codes(
        self, kind: pa.DataType, words: Sequence[str], place: str, is_deep: bool
    ) -> tuple[Numbers, str, Callable[[pa.Array], pa.Array]]:
        codes = kind.index_type if pa.types.is_dictionary(kind) else pa.int32()
        if len(words) > np.iinfo(codes.to_pandas_dtype()).max:
            codes = pa.int32()
        name, dtype, _, read = _number(codes) or ("", "", PLAIN, buffers.bits_of)
        numbers = Numbers(name, dtype, (), Meaning(words=tuple(words)), read, is_deep)
        return numbers, place, functools.partial(_coded, words=pa.array(words, pa.string()), to=codes)

    def _wide_decimal(self, kind: pa.DataType, place: str) -> pa.DataType:
        if self.decimals == "error":
            raise SchemaError(
                f"column {place!r} is of the type {kind}, and decimals of up to {MOST_DIGITS} digits are "
                'kept; pass decimals="float" or decimals="text"'
            )
        return pa.float64() if self.decimals == "float" else pa.string()


def _number(kind: pa.DataType) -> Kept | None:
    """How values of a fixed size are kept: the kind, dtype and meaning of the column, and what reads them."""
    types = pa.types
    if types.is_boolean(kind):
        return "scalar", "|b1", PLAIN, buffers.bits_of
    if types.is_integer(kind) or types.is_floating(kind):
        dtype = np.dtype(kind.to_pandas_dtype()).str
        return "scalar", dtype, PLAIN, Values(dtype)
    if types.is_timestamp(kind):
        return "scalar", f"<M8[{kind.unit}]", Meaning(timezone=kind.tz), Values("<i8", f"<M8[{kind.unit}]")
    if types.is_duration(kind):
        return "scalar", f"<m8[{kind.unit}]", PLAIN, Values("<i8", f"<m8[{kind.unit}]")
    if types.is_date32(kind):
        return "scalar", "<M8[D]", PLAIN, buffers.days_of
    if types.is_date64(kind):
        return "scalar", "<M8[D]", PLAIN, Values("<i8", "<M8[D]", over=24 * 60 * 60 * 1000)
    if types.is_time(kind):
        if kind.unit == "ns":  # finer than Python's own times
            return "scalar", "<m8[ns]", PLAIN, Values("<i8", "<m8[ns]")
        dtype = "<i8" if types.is_time64(kind) else "<i4"
        return "time", "<i8", PLAIN, Values(dtype, "<i8", times={"s": 10**6, "ms": 10**3, "us": 1}[kind.unit])
    if types.is_decimal(kind) and 0 <= kind.scale <= MOST_DIGITS >= kind.precision:
        return "decimal", "<i8", Meaning(scale=kind.scale), buffers.decimals_of
    return None


def _read_fixed(read: Callable[[pa.Array], Array], array: pa.Array) -> Array:
    return read(buffers.fixed_of(array))


def _read_tensor(
    read: Callable[[pa.Array], Array], shape: tuple[int, ...], order: tuple[int, ...], array: pa.Array
) -> Array:
    values = read(buffers.fixed_of(array))
    if not order:
        return values
    turned = values.reshape(len(array), *shape).transpose(0, *(1 + i for i in order))
    return np.ascontiguousarray(turned)


def _read_lists(read: Callable[[pa.Array], Array], shape: tuple[int, ...], array: pa.Array) -> Array:
    if not array.null_count:
        return buffers.tensors_of(array, shape, read)
    present = np.asarray(array.is_valid())
    held = buffers.tensors_of(array.drop_null(), shape, read)
    values = np.zeros((len(array), *shape), held.dtype)
    values[present] = held.reshape(-1, *shape)
    return values


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_union(kind):
        return "cast it to a struct with one field for each type, or to text"
    if pa.types.is_interval(kind):
        return "cast it to a struct, or to a duration"
    if pa.types.is_decimal(kind):
        return "cast it to a decimal with a scale of 0 to 18, or to float64"
    return "cast it to a number, text, list or struct"
