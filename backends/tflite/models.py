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
        identity = (self.op, sorted(self.attrs.items()), self.shape, self.activation, self.same)
        state = hashlib.sha256(repr((*identity, self.out.scale, self.out.zero)).encode())
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


def to_file_layout(case: OpCase, data: Array, *, back: bool = False) -> Array:
    """Returns an image with its channels last, or back as QIR's op has it."""
    if case.op != "conv_transpose2d":
        return data
    return np.ascontiguousarray(data.transpose((0, 3, 1, 2) if back else (0, 2, 3, 1)))


def _pack_4_bits(integers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Quantized values of four bits two a byte, the first of each in the lower half."""
    padded = np.append(integers, np.uint8(0))[: integers.size + integers.size % 2] & 15
    return np.asarray(padded[::2] | (padded[1::2] << 4), np.uint8)


class Runner:
    """Runs cases under one resolver."""

    def __init__(self, schema: ModuleType, interpreter: ModuleType) -> None:
        self.schema, self.interpreter = schema, interpreter

    def run(self, case: OpCase, resolver: str, *, twice: bool = False) -> Array:
        """Returns the quantized values, or float values, that a case gives."""
        resolvers = self.interpreter.OpResolverType
        interpreter = self.interpreter.Interpreter(
            model_content=OpFileWriter(self.schema, case).model(),
            experimental_op_resolver_type=getattr(resolvers, RESOLVERS[resolver]),
            num_threads=1,
        )
        interpreter.allocate_tensors()
        details = interpreter.get_input_details()
        for detail, slot in zip(details, case.fed, strict=True):
            interpreter.set_tensor(detail["index"], to_file_layout(case, case.operands[slot].data))
        interpreter.invoke()
        result: Array = interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).copy()
        return to_file_layout(case, result, back=True)


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
        extra_tensors = [self.extra(data) for data in self.extras()]
        # TRANSPOSE_CONV lists the result's sizes, weights, data and bias.
        if case.op == "conv_transpose2d":  # the result's sizes, weights, data, bias
            x, w, *bias = inputs
            inputs = [*extra_tensors, w, x, *bias]
        else:
            inputs += extra_tensors
        result_array = to_file_layout(case, case.shaped())
        result = self.tensor(CaseOperand(result_array, case.out.scale, case.out.zero), "", fed=True)
        kind, operator_options = options(s, case, self.many())
        return self.file(inputs, fed, result, kind, operator_options)

    def recurrent(self) -> bytes:
        """Returns the file of a layer that keeps a state."""
        s, case = self.schema, self.case

        def add(
            data: Array, scale: float, zero: int, *, fed: bool = False, kept: bool = False
        ) -> int:
            result_operand = self.tensor(CaseOperand(data, scale, zero), "part", fed=fed or kept)
            self.tensors[result_operand].isVariable = kept and data.size > 0
            return result_operand

        cell = case.attrs["cell"]
        assert isinstance(cell, int)
        inputs, intermediates = layer(s, case.operands, case.out, cell, add)
        result_operand = CaseOperand(np.zeros(case.shape, np.int8), case.out.scale, case.out.zero)
        result = self.tensor(result_operand, "", fed=True)
        kind, operator_options = recurrent_options(s)
        return self.file(inputs, [inputs[0]], result, kind, operator_options, intermediates)

    def file(
        self,
        inputs: list[int],
        fed: list[int],
        result: int,
        kind: str,
        operator_options: Any,
        intermediates: Sequence[int] = (),
    ) -> bytes:
        """Returns a model of one operator on tensors that are there."""
        s = self.schema
        code = s.OperatorCodeT()
        name = self.operator()
        code.builtinCode = getattr(s.BuiltinOperator, name)
        # The old field holds codes up to 127; larger ones are a placeholder there.
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = VERSIONS.get(name, 2)
        op = s.OperatorT()
        op.opcodeIndex, op.inputs, op.outputs = 0, inputs, [result]
        if intermediates:
            op.intermediates = list(intermediates)
        if operator_options is not None:
            op.builtinOptionsType = getattr(s.BuiltinOptions, kind)
            op.builtinOptions = operator_options
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
        buffer = self.schema.BufferT()
        if data is not None:
            stored_bytes = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            buffer.data = stored_bytes if bits == 8 else _pack_4_bits(stored_bytes)
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def extra(self, data: Array) -> int:
        return self.tensor(CaseOperand(data, None, 0), "extra")

    def tensor(self, operand: CaseOperand, slot: str, *, fed: bool = False) -> int:
        s, data, axis = self.schema, operand.data, operand.axis
        if slot == "w" and self.case.op == "conv2d":
            # CONV_2D has [out, h, w, in], DEPTHWISE_CONV_2D [1, h, w, out].
            perm = (1, 2, 3, 0) if self.many() else (0, 2, 3, 1)
            if self.many():  # (groups * many) x 1 x h x w to 1 x h x w x (groups * many)
                data = data.transpose(perm)
                axis = 3
            else:
                data = data.transpose(perm)
        if slot == "w" and self.case.op == "conv_transpose2d":
            data, axis = data.transpose(1, 2, 3, 0), 0
        elif slot == "x":
            data = to_file_layout(self.case, data)
        tensor = s.TensorT()
        tensor.shape = list(data.shape)
        tensor.type = _TYPES[str(data.dtype)] if operand.bits == 8 else _INT4
        tensor.name = slot or "result"
        tensor.buffer = self.buffer(None if fed or slot in self.case.fed else data, operand.bits)
        if operand.scale is not None:
            quantization = s.QuantizationParametersT()
            quantization.scale = [float(v) for v in np.ravel(operand.scale)]
            quantization.zeroPoint = [
                int(v) for v in np.broadcast_to(operand.zero, np.shape(np.ravel(operand.scale)))
            ]
            quantization.quantizedDimension = axis
            tensor.quantization = (
                self.blocks(operand) if np.ndim(operand.scale) == 2 else quantization
            )
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def blocks(self, operand: CaseOperand) -> Any:
        """Scales in blocks of terms: a tensor of float16."""
        s, scale = self.schema, np.asarray(operand.scale, np.float16)
        scale_tensor = s.TensorT()
        scale_tensor.shape, scale_tensor.type, scale_tensor.name = (
            list(scale.shape),
            s.TensorType.FLOAT16,
            "scales",
        )
        scale_tensor.buffer = self.buffer(scale, 8)
        self.tensors.append(scale_tensor)
        blockwise = s.BlockwiseQuantizationT()
        blockwise.scales, blockwise.zeroPoints = len(self.tensors) - 1, -1
        blockwise.blockSize = operand.data.shape[1] // scale.shape[1]
        q = s.QuantizationParametersT()
        q.detailsType, q.details = s.QuantizationDetails.BlockwiseQuantization, blockwise
        return q

    def extras(self) -> list[Array]:
        """Operands that QIR holds as attributes."""
        case = self.case
        if case.op == "conv_transpose2d":
            return [np.array(to_file_layout(case, case.shaped()).shape, np.int32)]
        return attribute_operands(case, next(iter(case.operands.values())).data.ndim)
