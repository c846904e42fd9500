"""`tf.train.Example` and `SequenceExample` as classes of protobuf's own, without TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KINDS = descriptor_pb2.FieldDescriptorProto
_FIELDS: dict[str, dict[str, Any]] = {
    "BytesList": {"value": (_KINDS.TYPE_BYTES, "")},
    "FloatList": {"value": (_KINDS.TYPE_FLOAT, "")},
    "Int64List": {"value": (_KINDS.TYPE_INT64, "")},
    "Feature": {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"},
    "FeatureList": {"feature": (_KINDS.TYPE_MESSAGE, "Feature")},
    "Features": {"feature": (_KINDS.TYPE_MESSAGE, "Features.FeatureEntry")},
    "FeatureLists": {"feature_list": (_KINDS.TYPE_MESSAGE, "FeatureLists.FeatureListEntry")},
    "Example": {"features": "Features"},
    "SequenceExample": {"context": "Features", "feature_lists": "FeatureLists"},
}
_MAPS = {"Features": ("FeatureEntry", "Feature"), "FeatureLists": ("FeatureListEntry", "FeatureList")}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="own_example.proto", package="own", syntax="proto3")
    for name, fields in _FIELDS.items():
        made = file.message_type.add(name=name)
        for number, (key, about) in enumerate(fields.items(), 1):
            kind, of = (_KINDS.TYPE_MESSAGE, about) if isinstance(about, str) else about
            label = _KINDS.LABEL_OPTIONAL if isinstance(about, str) else _KINDS.LABEL_REPEATED
            field = made.field.add(name=key, number=number, type=kind, label=label)
            if of:
                field.type_name = f".own.{of}"
            if name == "Feature":
                field.oneof_index = 0
        if name == "Feature":
            made.oneof_decl.add(name="kind")
        if name in _MAPS:
            entry, value = _MAPS[name]
            inner = made.nested_type.add(name=entry)
            inner.options.map_entry = True
            inner.field.add(name="key", number=1, type=_KINDS.TYPE_STRING, label=_KINDS.LABEL_OPTIONAL)
            inner.field.add(
                name="value",
                number=2,
                type=_KINDS.TYPE_MESSAGE,
                label=_KINDS.LABEL_OPTIONAL,
                type_name=f".own.{value}",
            )
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())
Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("own.Example"))
SequenceExample: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("own.SequenceExample"))
