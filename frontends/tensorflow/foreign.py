"""Foreign nodes: ops without a form, kept with their attributes and run by TensorFlow.

TensorFlow runs in a child process (`foreign_child`), so that its import time, messages and aborts
stay out of the caller's.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from qir.errors import PluginError
from qir.inspect.pipe import Plain, pack, receive
from qir.ir.dims import Dim
from qir.ir.dtype import dtype
from qir.ir.node import Node as IrNode
from qir.ir.node import Value
from qir.ir.types import TensorType
from qir.ledger import Change

from .elements import QUANTIZED_STORAGE
from .graphdef import FRAME_OPS, GraphDefNode
from .reader import GraphDefReader, KeepNode

Array = NDArray[np.generic]
_SINGLE = {"i": int, "f": float, "b": bool, "type": int}
_PLACEHOLDER_SIZES = (7919, 6007)
"""Numbers that replace open sizes in two inferences of result shapes.

A result size that is the replacement in both inferences is that open size; one that is equal in
both is a number.
"""
OPERAND_TYPES = "_takes"
"""The attribute with the element types of the operands, if some are quantized."""
_MAX_SHAPE_ELEMENTS = 1 << 20
"""Constants of up to this many elements are given to shape inference."""
_LOCK = threading.Lock()
_CHILDREN: list[subprocess.Popen[bytes]] = []


def keep(
    reader: GraphDefReader, node: GraphDefNode, operands: Sequence[Value], why: str = ""
) -> Sequence[Value]:
    """Adds a node as a foreign op; raises KeepNode if TensorFlow is missing or cannot run it.

    Quantized values are passed as integers. `why` is the reason for not reading the node.
    """
    if find_spec("tensorflow") is None:
        raise KeepNode("TensorFlow, which would run it as it is, is missing")
    if node.op in FRAME_OPS:
        raise KeepNode("it is control flow of TensorFlow 1 that is no loop")
    # Attributes that start with _ are annotations such as _output_shapes, not of the op itself.
    attr_names = sorted(name for name in node.attrs if not name.startswith("_"))
    attrs: Any = tuple((name, _attribute_value(name, node.attrs[name])) for name in attr_names)
    types, operand_types = _infer_types(node.op, attrs, operands)
    attrs += (
        ((OPERAND_TYPES, ("list.type", operand_types)),)
        if set(operand_types) & QUANTIZED_STORAGE.keys()
        else ()
    )
    foreign = reader.graph.add(
        "foreign",
        {f"xs.{i}": value for i, value in enumerate(operands)},
        {"framework": "tensorflow", "op": node.op, "attrs": attrs},
        types=types,
        name=reader.names(node, node.op),
        origins=[reader.origin(node)],
    )
    reader.unnamed.update(foreign.results)
    message = f"kept as TensorFlow's {node.op}; TensorFlow runs it" + (why and f" ({why})")
    reader.ledger.add(Change.EXACT, "read tensorflow", node.name, message)
    return foreign.results


def run(node: IrNode, operands: Mapping[str, Array]) -> tuple[Array, ...]:
    """Computes a foreign node; raises PluginError if TensorFlow lacks the op or fails."""
    arrays: list[Plain] = [np.asarray(operands[f"xs.{i}"], order="C") for i in range(len(operands))]
    is_constant: list[Plain] = [
        node.operands[f"xs.{i}"].constant is not None for i in range(len(operands))
    ]
    attrs: Any = node.attrs["attrs"]
    op = str(node.attrs["op"])
    try:
        results = _ask_child(("run", op, attrs, arrays, [], is_constant))
    except KeepNode as why:
        raise PluginError(f"{node.name}: TensorFlow does not run {op}: {why}") from why
    assert isinstance(results, list)
    return tuple(np.asarray(result) for result in results)


def _attribute_value(name: str, attr_value: Any) -> Plain:
    """Returns an attribute as (field of AttrValue, value)."""
    field = attr_value.WhichOneof("value")
    if field in _SINGLE:
        return field, _SINGLE[field](getattr(attr_value, field))
    # Bytes that are not UTF-8 survive as surrogates.
    if field == "s":
        return field, attr_value.s.decode("utf-8", "surrogateescape")
    if field == "shape" and not attr_value.shape.unknown_rank:
        return field, tuple(int(dim.size) for dim in attr_value.shape.dim)
    if field == "list":
        for part in _SINGLE:
            if items := getattr(attr_value.list, part):
                return f"list.{part}", tuple(_SINGLE[part](item) for item in items)
        if attr_value.list.s:
            return "list.s", tuple(
                item.decode("utf-8", "surrogateescape") for item in attr_value.list.s
            )
        # The type of an empty list is not in the message; any list field is accepted.
        if not attr_value.list.ListFields():
            return "list.i", ()
    raise KeepNode(f"its attribute {name} has no form that is kept")


def _infer_types(
    op: str, attrs: Plain, operands: Sequence[Value]
) -> tuple[list[TensorType], tuple[int, ...]]:
    """Returns the result types that TensorFlow infers, and the element types of the operands."""
    (first_types, operand_types), (second_types, _) = (
        _infer_with_sizes(op, attrs, operands, first_size) for first_size in _PLACEHOLDER_SIZES
    )
    symbols = {
        _PLACEHOLDER_SIZES[0] + i: size
        for i, size in enumerate(_open_sizes(operands))
        if size is not None
    }
    types = []
    for (name, first_shape), (_, second_shape) in zip(first_types, second_types, strict=True):
        shape = tuple(
            _merged_size(a, b, symbols) for a, b in zip(first_shape, second_shape, strict=True)
        )
        types.append(TensorType(shape, dtype(name)))
    return types, operand_types


def _open_sizes(operands: Sequence[Value]) -> list[Dim]:
    """Returns the distinct open sizes of operands."""
    sizes = [size for value in operands for size in value.type.shape]
    return list(dict.fromkeys(size for size in sizes if not isinstance(size, int)))


def _merged_size(a: int, b: int, symbols: Mapping[int, Dim]) -> Dim:
    """Returns a size from two inferences: a symbol, a number, or None if it is neither."""
    if a in symbols and a - _PLACEHOLDER_SIZES[0] == b - _PLACEHOLDER_SIZES[1]:
        return symbols[a]
    return a if a == b and a >= 0 else None


def _infer_with_sizes(
    op: str, attrs: Plain, operands: Sequence[Value], first_size: int
) -> tuple[list[tuple[str, tuple[int, ...]]], tuple[int, ...]]:
    # Distinct open sizes get distinct numbers, so that each is found again in the result.
    replacements: dict[Any, Any] = {
        size: first_size + i for i, size in enumerate(_open_sizes(operands))
    }
    operand_values: list[Plain] = []
    for value in operands:
        constant = value.constant
        shape = [-1 if s is None else replacements.get(s, s) for s in value.type.shape]
        is_small = constant is not None and constant.contents.size <= _MAX_SHAPE_ELEMENTS
        operand_values.append(
            np.asarray(constant.data) if constant is not None and is_small else tuple(shape)
        )
    element_types: list[Plain] = [str(value.type.dtype) for value in operands]
    inferred, operand_types = cast(
        "Any", _ask_child(("types", op, attrs, operand_values, element_types, []))
    )
    types = [(str(name), tuple(shape)) for name, shape in inferred]
    return types, tuple(operand_types)


# -- the child ------------------------------------------------------------------------------------


def _ask_child(question: Plain) -> Plain:
    """Returns the child's answer; raises KeepNode with TensorFlow's message if it refuses."""
    with _LOCK:
        child = _child()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(pack(question))
            child.stdin.flush()
            answer = receive(child.stdout)
        except (EOFError, BrokenPipeError):
            # Some ops abort the process on operands that they do not expect.
            status = child.wait()
            _CHILDREN.clear()
            raise KeepNode(f"TensorFlow ended with status {status}") from None
    if isinstance(answer, str):
        raise KeepNode(answer)
    return answer


def _child() -> subprocess.Popen[bytes]:
    """Returns the child process; starts it if there is none."""
    if _CHILDREN and _CHILDREN[0].poll() is None:
        return _CHILDREN[0]
    _CHILDREN[:] = [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.foreign_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # The child answers on stdout; logs and GPUs are of no use to it.
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
    ]
    atexit.register(close)
    return _CHILDREN[0]


def close() -> None:
    """Ends the child process."""
    with _LOCK:
        for child in _CHILDREN:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(60)
        _CHILDREN.clear()
