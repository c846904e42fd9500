"""Columns of several files -> the type that holds the values of all, and values of that type."""

from __future__ import annotations

import pyarrow as pa

from ..buffers import is_list


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that values of two become where they differ only in how they are written; None if in more.

    Example:
        >>> common_type(pa.dictionary(pa.int8(), pa.string()), pa.large_string())
        DataType(large_string)
        >>> common_type(pa.int32(), pa.int64()) is None
        True
    """
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_dictionary(one) and types.is_dictionary(other):
        words = common_type(one.value_type, other.value_type)
        codes = max(one.index_type, other.index_type, key=lambda kind: kind.bit_width)
        return None if words is None else pa.dictionary(codes, words, one.ordered and other.ordered)
    if types.is_dictionary(one) or types.is_dictionary(other):
        return common_type(*(kind.value_type if types.is_dictionary(kind) else kind for kind in (one, other)))
    for small, large in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        if {one, other} == {small, large}:
            return large
    pairs = _within(one, other)
    fields = [_common_field(*pair) for pair in pairs or ()]
    if not pairs or any(field is None for field in fields):
        return None
    if types.is_struct(one):
        return pa.struct(fields)
    if types.is_map(one):
        return pa.map_(*fields)
    if types.is_fixed_size_list(one) and types.is_fixed_size_list(other):
        return pa.list_(fields[0], one.list_size)
    is_large = types.is_large_list(one) or types.is_large_list(other)
    return pa.large_list(fields[0]) if is_large else pa.list_(fields[0])


def _common_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    kind = common_type(one.type, other.type)
    return None if kind is None else pa.field(one.name, kind, one.nullable or other.nullable)


def _within(one: pa.DataType, other: pa.DataType) -> list[tuple[pa.Field, pa.Field]] | None:
    """The fields in one type and those in another that has its shape; None if it has another shape."""
    types = pa.types
    if types.is_struct(one) and types.is_struct(other):
        pairs = [(one.field(i), other.field(i)) for i in range(min(one.num_fields, other.num_fields))]
        same = one.num_fields == other.num_fields and all(a.name == b.name for a, b in pairs)
        return pairs if same else None
    if types.is_map(one) and types.is_map(other):
        return [(one.key_field, other.key_field), (one.item_field, other.item_field)]
    if not is_list(one) or not is_list(other):
        return None
    are_fixed = types.is_fixed_size_list(one) and types.is_fixed_size_list(other)
    return None if are_fixed and one.list_size != other.list_size else [(one.value_field, other.value_field)]


def can_become(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """True if values of a type can be those of another one, as far as the types tell."""
    pairs = _within(kind, wanted)
    if pairs is not None:
        return all(can_become(one.type, other.type) for one, other in pairs)
    is_nested = pa.types.is_nested(kind) or pa.types.is_nested(wanted)
    if is_nested and kind != wanted and not pa.types.is_null(kind):
        return False
    try:
        as_type(pa.chunked_array([], kind), wanted)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def as_type(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """The values of a column as a type has them; codes of words stay as they are.

    Raises:
        ArrowInvalid: a value does not fit.
    """
    if column.type == wanted:
        return column
    if pa.types.is_dictionary(wanted):
        if pa.types.is_dictionary(column.type) and common_type(column.type, wanted) is not None:
            return column
        return column.cast(wanted.value_type).dictionary_encode()
    return column.cast(wanted)
