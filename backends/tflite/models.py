"""Models of one op as TensorFlow Lite files, and the interpreters that run them; knows no QIR.

Needs `ai_edge_litert`, or `tensorflow` up to 2.21, whichever is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lstm import layer
from .lstm import options as recurrent_options
from .options import VERSIONS, attribute_operands, operator_name, options
from .options import Value as Value

Array = NDArray[np.generic]
Numbers = float | NDArray[np.float32]
F = np.float32

RESOLVERS = {
    "ref": "BUILTIN_REF",
    "xnnpack": "AUTO",
    "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
}
_TYPES = {
    "float32": 0,
    "int32": 2,
    "uint8": 3,
    "int64": 4,
    "bool": 6,
    "int16": 7,
    "int8": 9,
}
_INT4 = 17


@dataclass(frozen=True, eq=False)
class CaseOperand:
    """Quantized values with their map, or float values without one."""

    data: Array
    scale: Numbers | None = None
    zero: int = 0
    axis: int = 0
    bits: int = 8
    """Of quantized values that bytes hold; two of four share a byte in the file."""

    @property
    def step(self) -> float:
        """The one scale of all quantized values."""
        assert isinstance(self.scale, float)
        return self.scale


@dataclass(frozen=True, eq=False)
class OpCase:
    """One quantized op, in QIR's words; `out` holds the result's quantized type and an empty array
    of integers."""

    op: str
    operands: Mapping[str, CaseOperand]
    out: CaseOperand
    shape: tuple[int, ...]
    attrs: Mapping[str, Value] = field(default_factory=dict)
    fed: tuple[str, ...] = ("x",)
    same: bool = False
    activation: str = ""

    def shaped(self) -> Array:
        """Returns an array of the result's shape and type."""
        return np.zeros(self.shape, self.out.data.dtype)

    def pair(self, name: str) -> tuple[int, int]:
        """Returns an attribute of two whole numbers."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return value[0], value[1]

    def digest(self) -> str:
        """A hash of all it is given."""
        told = (self.op, sorted(self.attrs.items()), self.shape, self.activation, self.same)
        state = hashlib.sha256(repr((*told, self.out.scale, self.out.zero)).encode())
        for slot, operand in self.operands.items():
            state.update(f"{slot} {operand.data.dtype} {operand.zero}".encode())
            state.update(np.ascontiguousarray(operand.data).tobytes())
            state.update(np.asarray(0 if operand.scale is None else operand.scale, F).tobytes())
            state.update(b"" if operand.bits == 8 else bytes([operand.bits]))
        return state.hexdigest()[:16]


_PACKAGES = {
    "tensorflow": ("tensorflow_cpu", "tensorflow.lite.python"),
    "ai_edge_litert": ("ai-edge-litert", "ai_edge_litert"),
}


def runtime(*packages: str) -> tuple[str, ModuleType, ModuleType]:
    """Returns the name and version of what is installed, its schema and its interpreter.

    Raises ImportError where none of the packages is.
    """
    for package in packages or _PACKAGES:
        distribution, place = _PACKAGES[package]
        try:
            schema = importlib.import_module(f"{place}.schema_py_generated")
            interpreter = importlib.import_module(f"{place}.interpreter")
            version = importlib.metadata.version(distribution)
        except ImportError:
            continue
        return f"{package} {version}", schema, interpreter
    raise ImportError("needs ai-edge-litert, or tensorflow-cpu 2.21")


def turned(case: OpCase, data: Array, *, back: bool = False) -> Array:
    """Returns an image with its channels last, or back as QIR's op has it."""
    if case.op != "conv_transpose2d":
        return data
    return np.ascontiguousarray(data.transpose((0, 3, 1, 2) if back else (0, 2, 3, 1)))


def _paired(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Quantized values of four bits two a byte, the first of each in the lower half."""
    even = np.append(codes, np.uint8(0))[: codes.size + codes.size % 2] & 15
    return np.asarray(even[::2] | (even[1::2] << 4), np.uint8)


class Runner:
    """Runs cases under one resolver."""

    def __init__(self, schema: ModuleType, interpreter: ModuleType) -> None:
        self.schema, self.interpreter = schema, interpreter

    def run(self, case: OpCase, resolver: str, *, twice: bool = False) -> Array:
        """Returns the quantized values, or float values, that a case gives."""
        kinds = self.interpreter.OpResolverType
        made = self.interpreter.Interpreter(
            model_content=OpFileWriter(self.schema, case).model(),
            experimental_op_resolver_type=getattr(kinds, RESOLVERS[resolver]),
            num_threads=1,
        )
        made.allocate_tensors()
        details = made.get_input_details()
        for detail, slot in zip(details, case.fed, strict=True):
            made.set_tensor(detail["index"], turned(case, case.operands[slot].data))
        made.invoke()
        result: Array = made.get_tensor(made.get_output_details()[0]["index"]).copy()
        return turned(case, result, back=True)


class OpFileWriter:
    """A file of one op."""

    def __init__(self, schema: ModuleType, case: OpCase) -> None:
        self.schema, self.case = schema, case
        self.buffers: list[Any] = [schema.BufferT()]
        self.tensors: list[Any] = []

    def model(self) -> bytes:
        """Returns the file."""
        s, case = self.schema, self.case
        if case.op == "lstm":
            return self.recurrent()
        inputs = [self.tensor(case.operands[slot], slot) for slot in case.operands]
        fed = [i for i, slot in zip(inputs, case.operands, strict=True) if slot in case.fed]
        more = [self.extra(data) for data in self.extras()]
        if case.op == "conv_transpose2d":  # the result's sizes, weights, data, bias
            x, w, *rest = inputs
            inputs = [*more, w, x, *rest]
        else:
            inputs += more
        made = turned(case, case.shaped())
        result = self.tensor(CaseOperand(made, case.out.scale, case.out.zero), "", fed=True)
        kind, said = options(s, case, self.many())
        return self.file(inputs, fed, result, kind, said)

    def recurrent(self) -> bytes:
        """Returns the file of a layer that keeps a state."""
        s, case = self.schema, self.case

        def add(
            data: Array, scale: float, zero: int, *, fed: bool = False, kept: bool = False
        ) -> int:
            made = self.tensor(CaseOperand(data, scale, zero), "part", fed=fed or kept)
            self.tensors[made].isVariable = kept and data.size > 0
            return made

        cell = case.attrs["cell"]
        assert isinstance(cell, int)
        inputs, inside = layer(s, case.operands, case.out, cell, add)
        made = CaseOperand(np.zeros(case.shape, np.int8), case.out.scale, case.out.zero)
        result = self.tensor(made, "", fed=True)
        kind, said = recurrent_options(s)
        return self.file(inputs, [inputs[0]], result, kind, said, inside)

    def file(
        self,
        inputs: list[int],
        fed: list[int],
        result: int,
        kind: str,
        said: Any,
        inside: Sequence[int] = (),
    ) -> bytes:
        """Returns a model of one operator on tensors that are there."""
        s = self.schema
        code = s.OperatorCodeT()
        name = self.operator()
        code.builtinCode = getattr(s.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = VERSIONS.get(name, 2)
        op = s.OperatorT()
        op.opcodeIndex, op.inputs, op.outputs = 0, inputs, [result]
        if inside:
            op.intermediates = list(inside)
        if said is not None:
            op.builtinOptionsType = getattr(s.BuiltinOptions, kind)
            op.builtinOptions = said
        graph = s.SubGraphT()
        graph.tensors, graph.operators = self.tensors, [op]
        graph.inputs, graph.outputs, graph.name = fed, [result], "main"
        model = s.ModelT()
        model.version, model.operatorCodes, model.subgraphs = 3, [code], [graph]
        model.buffers, model.description = self.buffers, "one op"
        flatbuffers = importlib.import_module("flatbuffers")
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def operator(self) -> str:
        if self.case.op == "conv2d":
            return "DEPTHWISE_CONV_2D" if self.many() else "CONV_2D"
        return operator_name(self.case)

    def many(self) -> int:
        """Returns how many results a depthwise convolution makes of each channel; 0 of all else."""
        groups = self.case.attrs.get("groups", 1)
        assert isinstance(groups, int)
        if groups == 1 or self.case.operands["w"].data.shape[1] != 1:
            return 0
        return int(self.case.operands["w"].data.shape[0]) // groups

    def buffer(self, data: Array | None, bits: int) -> int:
        made = self.schema.BufferT()
        if data is not None:
            whole = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            made.data = whole if bits == 8 else _paired(whole)
        self.buffers.append(made)
        return len(self.buffers) - 1

    def extra(self, data: Array) -> int:
        return self.tensor(CaseOperand(data, None, 0), "extra")

    def tensor(self, of: CaseOperand, slot: str, *, fed: bool = False) -> int:
        s, data, axis = self.schema, of.data, of.axis
        if slot == "w" and self.case.op == "conv2d":
            turn = (1, 2, 3, 0) if self.many() else (0, 2, 3, 1)
            if self.many():  # (groups * many) x 1 x h x w to 1 x h x w x (groups * many)
                data = data.transpose(turn)
                axis = 3
            else:
                data = data.transpose(turn)
        if slot == "w" and self.case.op == "conv_transpose2d":
            data, axis = data.transpose(1, 2, 3, 0), 0
        elif slot == "x":
            data = turned(self.case, data)
        made = s.TensorT()
        made.shape = list(data.shape)
        made.type = _TYPES[str(data.dtype)] if of.bits == 8 else _INT4
        made.name = slot or "result"
        made.buffer = self.buffer(None if fed or slot in self.case.fed else data, of.bits)
        if of.scale is not None:
            q = s.QuantizationParametersT()
            q.scale = [float(v) for v in np.ravel(of.scale)]
            q.zeroPoint = [int(v) for v in np.broadcast_to(of.zero, np.shape(np.ravel(of.scale)))]
            q.quantizedDimension = axis
            made.quantization = self.blocks(of) if np.ndim(of.scale) == 2 else q
        self.tensors.append(made)
        return len(self.tensors) - 1

    def blocks(self, of: CaseOperand) -> Any:
        """Scales in blocks of terms: a tensor of float16."""
        s, scale = self.schema, np.asarray(of.scale, np.float16)
        made = s.TensorT()
        made.shape, made.type, made.name = list(scale.shape), s.TensorType.FLOAT16, "scales"
        made.buffer = self.buffer(scale, 8)
        self.tensors.append(made)
        held = s.BlockwiseQuantizationT()
        held.scales, held.zeroPoints = len(self.tensors) - 1, -1
        held.blockSize = of.data.shape[1] // scale.shape[1]
        q = s.QuantizationParametersT()
        q.detailsType, q.details = s.QuantizationDetails.BlockwiseQuantization, held
        return q

    def extras(self) -> list[Array]:
        """Operands that QIR holds as attributes."""
        case = self.case
        if case.op == "conv_transpose2d":
            return [np.array(turned(case, case.shaped()).shape, np.int32)]
        return attribute_operands(case, next(iter(case.operands.values())).data.ndim)
