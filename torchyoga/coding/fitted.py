"""New rows for a version -> the same rows, encoded as those that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..building.sources import Source
from ..errors import SchemaError
from ..reading.dataref import DataRef
from ..rows.schema import Schema
from .encoders import Encoder, encoder_of
from .encoding import encoded_schema, recoded

__all__ = ["fitted"]


def fitted(
    codecs: Mapping[str, Encoder | None], dataset: object, schema: Schema | None
) -> tuple[object, Schema | None, Callable[[Source], Source]]:
    """A dataset to read, the schema that its build is given, and what encodes a source of it.

    Args:
        codecs: what was passed for some columns.
        dataset: the new rows, whatever a source can be made of.
        schema: of the version; None if it has no rows and none is known.

    Raises:
        SchemaError: a column is encoded in a way that is not known here.
        KeyError: there is no such column.
    """
    if schema is None:
        dataset, encode = recoded(codecs, dataset)
        return dataset, None, encode
    own = dataset.schema if isinstance(dataset, DataRef) else None
    have = {} if own is None else {column.name: column.meaning.codec for column in own.columns}
    encoders = dict(codecs)
    for column in schema.columns:
        codec = column.meaning.codec
        if codec is None or column.name in encoders or have.get(column.name) == codec:
            continue
        encoders[column.name] = encoder_of(codec)
        if encoders[column.name] is None:
            raise SchemaError(f"column {column.name!r} is encoded as {codec.name!r}, which is unknown here")
    dataset, encode = recoded(encoders, dataset)
    named = {name: found for name, found in encoders.items() if found is not None}
    return dataset, encoded_schema(schema, named), encode
