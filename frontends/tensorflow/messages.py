"""Protobuf messages of TensorFlow's graphs, defined at run time by their published field numbers.

They are in a descriptor pool of their own, so that TensorFlow may be imported as well. Unused
fields
are left out; protobuf skips them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

_PACKAGE = "qir_tensorflow"
_MESSAGES = """
GraphDef: node 1 *NodeDef, library 2 FunctionDefLibrary, versions 4 VersionDef
VersionDef: producer 1 int32, min_consumer 2 int32
NodeDef: name 1 string, op 2 string, input 3 *string, device 4 string, attr 5 %AttrValue
AttrValue: list 1 ListValue, s 2 bytes, i 3 int64, f 4 float, b 5 bool, type 6 int32, \
shape 7 TensorShapeProto, tensor 8 TensorProto, placeholder 9 string, func 10 NameAttrList
ListValue: s 2 *bytes, i 3 *int64, f 4 *float, b 5 *bool, type 6 *int32, \
shape 7 *TensorShapeProto, tensor 8 *TensorProto, func 9 *NameAttrList
NameAttrList: name 1 string, attr 2 %AttrValue
TensorShapeProto: dim 2 *Dim, unknown_rank 3 bool
Dim: size 1 int64, name 2 string
TensorProto: dtype 1 int32, tensor_shape 2 TensorShapeProto, tensor_content 4 bytes, \
float_val 5 *float, double_val 6 *double, int_val 7 *int32, string_val 8 *bytes, \
int64_val 10 *int64, bool_val 11 *bool, half_val 13 *int32, uint32_val 16 *uint32, \
uint64_val 17 *uint64
FunctionDefLibrary: function 1 *FunctionDef
FunctionDef: signature 1 OpDef, node_def 3 *NodeDef, ret 4 %string, attr 5 %AttrValue
OpDef: name 1 string, input_arg 2 *ArgDef, output_arg 3 *ArgDef
ArgDef: name 1 string, type 3 int32, type_attr 4 string, number_attr 5 string, \
type_list_attr 6 string
SavedModel: meta_graphs 2 *MetaGraphDef
MetaGraphDef: meta_info_def 1 MetaInfoDef, graph_def 2 GraphDef, collection_def 4 %CollectionDef, \
signature_def 5 %SignatureDef, asset_file_def 6 *AssetFileDef
MetaInfoDef: tags 4 *string
SignatureDef: inputs 1 %TensorInfo, outputs 2 %TensorInfo
TensorInfo: name 1 string, dtype 2 int32
AssetFileDef: filename 2 string
CollectionDef: any_list 5 AnyList
AnyList: value 1 *Any
Any: value 2 bytes
"""
"""Messages and their fields: name, number, type. `*` is repeated, `%` a map from strings."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
}
_ONEOF = "AttrValue"
"""The message whose fields are one oneof."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="qir_tensorflow.proto", package=_PACKAGE, syntax="proto3"
    )
    for line in _MESSAGES.strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        if name == _ONEOF:
            message.oneof_decl.add(name="value")
        for text in fields.split(","):
            field, number, field_type = text.split()
            _add(message, field, int(number), field_type)
    return file


def _add(message: Any, name: str, number: int, field_type: str) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if message.name == _ONEOF:
        field.oneof_index = 0
    if field_type[0] in "*%":
        field.label = _Field.LABEL_REPEATED
    # protobuf's maps are repeated messages of key and value, with an option.
    if field_type[0] == "%":
        entry_name = "".join(word.title() for word in name.split("_"))
        entry = message.nested_type.add(name=f"{entry_name}Entry")
        entry.options.map_entry = True
        _add(entry, "key", 1, "string")
        _add(entry, "value", 2, field_type[1:])
        field_type = f"{message.name}.{entry.name}"
    field_type = field_type.lstrip("*")
    if field_type in _SCALARS:
        field.type = _SCALARS[field_type]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{field_type}"


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())
GraphDefMessage = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{_PACKAGE}.GraphDef")
)
"""The message GraphDef; `FromString` raises DecodeError for damaged bytes."""
SavedModelMessage = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{_PACKAGE}.SavedModel")
)
"""The message in `saved_model.pb`."""
AssetFileMessage = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{_PACKAGE}.AssetFileDef")
)
"""The message AssetFileDef, which TensorFlow 1 packs in a collection."""
