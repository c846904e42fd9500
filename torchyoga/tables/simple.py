"""TEMPORARY: Arrow -> Block for a few types."""
from __future__ import annotations
import numpy as np
import pyarrow as pa
from ..rows.block import Block
from ..rows.data import Data
from ..rows.column import Column
from ..rows.node import Node, path_name
from ..rows.schema import Schema


class Conversion:
    def __init__(self, schema: pa.Schema, **_: object) -> None:
        columns = []
        for f in schema:
            t, name = f.type, path_name((f.name,))
            if pa.types.is_dictionary(t):
                t = t.value_type
            if pa.types.is_string(t) or pa.types.is_large_string(t):
                columns.append(Column(name, "str", "|u1", None, 1))
            elif pa.types.is_binary(t):
                columns.append(Column(name, "bytes", "|u1", None, 1))
            elif pa.types.is_fixed_size_list(t):
                columns.append(Column(name, "ndarray", np.dtype(t.value_type.to_pandas_dtype()).str, (t.list_size,), 1))
            elif pa.types.is_list(t):
                columns.append(Column(name, "ndarray", np.dtype(t.value_type.to_pandas_dtype()).str, None, 1))
            else:
                columns.append(Column(name, "scalar", np.dtype(t.to_pandas_dtype()).str, (), 0))
        self.arrow = schema
        self.schema = Schema(Node("dict", tuple(schema.names), (Node("leaf"),) * len(schema)), tuple(columns))

    def block(self, table: pa.Table, where: str = "") -> Block:
        data = []
        for c, f in zip(self.schema.columns, self.arrow):
            a = table.column(f.name).combine_chunks()
            if isinstance(a, pa.ChunkedArray):
                a = a.chunk(0) if a.num_chunks else pa.array([], f.type)
            if pa.types.is_dictionary(a.type):
                a = a.dictionary_decode()
            if c.kind in ("str", "bytes"):
                off = np.frombuffer(a.buffers()[1], np.int32)[a.offset:a.offset+len(a)+1].astype(np.int64)
                buf = a.buffers()[2]
                v = np.frombuffer(buf, np.uint8) if buf is not None else np.empty(0, np.uint8)
                data.append(Data(v[off[0]:off[-1]], off-off[0]))
            elif c.shape is None:
                off = np.asarray(a.offsets).astype(np.int64)
                data.append(Data(np.asarray(a.flatten()), off-off[0]))
            elif c.ndim:
                data.append(Data(np.asarray(a.flatten()).reshape(len(a), -1)))
            else:
                data.append(Data(np.ascontiguousarray(a.to_numpy(zero_copy_only=False))))
        return Block(self.schema, len(table), tuple(data))
