"""Ops that QIR does not know: kept with all their attributes, and run by TensorFlow in a child."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from qir.errors import PluginError
from qir.inspect.pipe import Plain, pack, receive
from qir.ir.dims import Dim
from qir.ir.dtype import dtype
from qir.ir.node import Node as Made
from qir.ir.node import Value
from qir.ir.types import TensorType
from qir.ledger import Change

from .call import KeepNode
from .elements import CODES
from .graphdef import FRAMES, GraphDefNode

if TYPE_CHECKING:
    from .reader import GraphDefReader

Array = NDArray[np.generic]
_SINGLE = {"i": int, "f": float, "b": bool, "type": int}
_PRIMES = (7919, 6007)
"""Sizes that stand for open ones where the sizes of results are asked for, twice."""
TAKES = "_takes"
"""The attribute that holds the element types that an op takes, where some are quantized."""
_SMALL = 1 << 20
"""Elements of a constant that may decide the sizes of results."""
_LOCK = threading.Lock()
_CHILDREN: list[subprocess.Popen[bytes]] = []


def keep(
    reader: GraphDefReader, node: GraphDefNode, operands: Sequence[Value], why: str = ""
) -> Sequence[Value]:
    """Adds a node as a foreign op; Keep where TensorFlow is missing or cannot run it alone.

    Quantized values go in and come out as their integers; `why` says what kept it from being read.
    """
    if find_spec("tensorflow") is None:
        raise KeepNode("TensorFlow, which would run it as it is, is missing")
    if node.op in FRAMES:
        raise KeepNode("it is control flow of TensorFlow 1 that is no loop")
    own = sorted(name for name in node.attrs if not name.startswith("_"))
    attrs: Any = tuple((name, _plain(name, node.attrs[name])) for name in own)
    types, taken = _types(node.op, attrs, operands)
    attrs += ((TAKES, ("list.type", taken)),) if set(taken) & CODES.keys() else ()
    made = reader.graph.add(
        "foreign",
        {f"xs.{i}": value for i, value in enumerate(operands)},
        {"framework": "tensorflow", "op": node.op, "attrs": attrs},
        types=types,
        name=reader.names(node, node.op),
        origins=[reader.origin(node)],
    )
    reader.unnamed.update(made.results)
    said = f"kept as TensorFlow's {node.op}; TensorFlow runs it" + (why and f" ({why})")
    reader.ledger.add(Change.EXACT, "read tensorflow", node.name, said)
    return made.results


def run(node: Made, operands: Mapping[str, Array]) -> tuple[Array, ...]:
    """Computes a kept op; raises PluginError for one that TensorFlow lacks or that fails."""
    given: list[Plain] = [np.asarray(operands[f"xs.{i}"], order="C") for i in range(len(operands))]
    held: list[Plain] = [
        node.operands[f"xs.{i}"].constant is not None for i in range(len(operands))
    ]
    attrs: Any = node.attrs["attrs"]
    op = str(node.attrs["op"])
    try:
        found = _ask(("run", op, attrs, given, [], held))
    except KeepNode as why:
        raise PluginError(f"{node.name}: TensorFlow does not run {op}: {why}") from why
    assert isinstance(found, list)
    return tuple(np.asarray(each) for each in found)


def _plain(name: str, held: Any) -> Plain:
    """Returns an attribute as its field in AttrValue and its value."""
    field = held.WhichOneof("value")
    if field in _SINGLE:
        return field, _SINGLE[field](getattr(held, field))
    if field == "s":
        return field, held.s.decode("utf-8", "surrogateescape")
    if field == "shape" and not held.shape.unknown_rank:
        return field, tuple(int(dim.size) for dim in held.shape.dim)
    if field == "list":
        for part in _SINGLE:
            if rows := getattr(held.list, part):
                return f"list.{part}", tuple(_SINGLE[part](row) for row in rows)
        if held.list.s:
            return "list.s", tuple(row.decode("utf-8", "surrogateescape") for row in held.list.s)
        if not held.list.ListFields():
            return "list.i", ()
    raise KeepNode(f"its attribute {name} has no form that is kept")


def _types(
    op: str, attrs: Plain, operands: Sequence[Value]
) -> tuple[list[TensorType], tuple[int, ...]]:
    """Returns the types of the results, as TensorFlow infers them, and those that it takes."""
    (one, taken), (two, _) = (_inferred(op, attrs, operands, stands) for stands in _PRIMES)
    symbols = {_PRIMES[0] + i: size for i, size in enumerate(_open(operands)) if size is not None}
    types = []
    for (name, first), (_, second) in zip(one, two, strict=True):
        shape = tuple(_size(a, b, symbols) for a, b in zip(first, second, strict=True))
        types.append(TensorType(shape, dtype(name)))
    return types, taken


def _open(operands: Sequence[Value]) -> list[Dim]:
    """Returns the open sizes of operands, each once."""
    sizes = [size for value in operands for size in value.type.shape]
    return list(dict.fromkeys(size for size in sizes if not isinstance(size, int)))


def _size(a: int, b: int, symbols: Mapping[int, Dim]) -> Dim:
    """Returns a size that was inferred twice: an open one, a number, or None where neither."""
    if a in symbols and a - _PRIMES[0] == b - _PRIMES[1]:
        return symbols[a]
    return a if a == b and a >= 0 else None


def _inferred(
    op: str, attrs: Plain, operands: Sequence[Value], stands: int
) -> tuple[list[tuple[str, tuple[int, ...]]], tuple[int, ...]]:
    numbers: dict[Any, Any] = {size: stands + i for i, size in enumerate(_open(operands))}
    given: list[Plain] = []
    for value in operands:
        held = value.constant
        shape = [-1 if s is None else numbers.get(s, s) for s in value.type.shape]
        known = held is not None and held.contents.size <= _SMALL
        given.append(np.asarray(held.data) if held is not None and known else tuple(shape))
    kinds: list[Plain] = [str(value.type.dtype) for value in operands]
    found, taken = cast("Any", _ask(("types", op, attrs, given, kinds, [])))
    types = [(str(name), tuple(shape)) for name, shape in found]
    return types, tuple(taken)


# -- the child ------------------------------------------------------------------------------------


def _ask(question: Plain) -> Plain:
    """Returns what the child answers; Keep with what TensorFlow says where it refuses."""
    with _LOCK:
        child = _child()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(pack(question))
            child.stdin.flush()
            answer = receive(child.stdout)
        except (EOFError, BrokenPipeError):
            status = child.wait()
            _CHILDREN.clear()
            raise KeepNode(f"TensorFlow ended with status {status}") from None
    if isinstance(answer, str):
        raise KeepNode(answer)
    return answer


def _child() -> subprocess.Popen[bytes]:
    """Returns the process in which TensorFlow runs kept ops, started where there is none."""
    if _CHILDREN and _CHILDREN[0].poll() is None:
        return _CHILDREN[0]
    _CHILDREN[:] = [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.foreign_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
    ]
    atexit.register(close)
    return _CHILDREN[0]


def close() -> None:
    """Ends the process in which TensorFlow runs kept ops."""
    with _LOCK:
        for child in _CHILDREN:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(60)
        _CHILDREN.clear()
