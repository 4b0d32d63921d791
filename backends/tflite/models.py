"""Models of one op as TensorFlow Lite files, and the interpreters that run them; knows no QIR.

Needs `ai_edge_litert`, or `tensorflow` up to 2.21, whichever is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Numbers = float | NDArray[np.float32]
Value = int | float | bool | str | tuple[int, ...]
F = np.float32

RESOLVERS = {
    "ref": "BUILTIN_REF",
    "xnnpack": "AUTO",
    "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
}
_OPERATORS = {
    "add": "ADD",
    "avg_pool2d": "AVERAGE_POOL_2D",
    "concat": "CONCATENATION",
    "conv_transpose2d": "TRANSPOSE_CONV",
    "dequantize": "DEQUANTIZE",
    "hard_swish": "HARD_SWISH",
    "leaky_relu": "LEAKY_RELU",
    "linear": "FULLY_CONNECTED",
    "matmul": "BATCH_MATMUL",
    "max": "MAXIMUM",
    "max_pool2d": "MAX_POOL_2D",
    "min": "MINIMUM",
    "mul": "MUL",
    "pad": "PAD",
    "prelu": "PRELU",
    "quantize": "QUANTIZE",
    "reduce_mean": "MEAN",
    "reduce_sum": "SUM",
    "requantize": "QUANTIZE",
    "resize": "RESIZE_BILINEAR",
    "resize_nearest": "RESIZE_NEAREST_NEIGHBOR",
    "sigmoid": "LOGISTIC",
    "softmax": "SOFTMAX",
    "sub": "SUB",
    "tanh": "TANH",
}
_TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "int16": 7, "int8": 9}
_ACTIVATIONS = {"": 0, "relu": 1, "relu6": 3}


@dataclass(frozen=True, eq=False)
class Operand:
    """Codes with their map, or reals without one."""

    data: Array
    scale: Numbers | None = None
    zero: int = 0
    axis: int = 0

    @property
    def step(self) -> float:
        """The one scale of all codes."""
        assert isinstance(self.scale, float)
        return self.scale


@dataclass(frozen=True, eq=False)
class Case:
    """One op on codes, in QIR's words; `out` holds the result's map and an empty array of codes."""

    op: str
    operands: Mapping[str, Operand]
    out: Operand
    shape: tuple[int, ...]
    attrs: Mapping[str, Value] = field(default_factory=dict)
    fed: tuple[str, ...] = ("x",)
    same: bool = False
    activation: str = ""

    def shaped(self) -> Array:
        """An array of the result's shape and type."""
        return np.zeros(self.shape, self.out.data.dtype)

    def pair(self, name: str) -> tuple[int, int]:
        """An attribute of two whole numbers."""
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
        return state.hexdigest()[:16]


_PACKAGES = {
    "tensorflow": ("tensorflow_cpu", "tensorflow.lite.python"),
    "ai_edge_litert": ("ai-edge-litert", "ai_edge_litert"),
}


def runtime(*packages: str) -> tuple[str, ModuleType, ModuleType]:
    """The name and version of what is installed, its schema and its interpreter.

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


def turned(case: Case, data: Array, *, back: bool = False) -> Array:
    """An image with its channels last, or back as QIR's op has it."""
    if case.op != "conv_transpose2d":
        return data
    return np.ascontiguousarray(data.transpose((0, 3, 1, 2) if back else (0, 2, 3, 1)))


class Runner:
    """Runs cases under one resolver."""

    def __init__(self, schema: ModuleType, interpreter: ModuleType) -> None:
        self.schema, self.interpreter = schema, interpreter

    def run(self, case: Case, resolver: str, *, twice: bool = False) -> Array:
        """The codes, or reals, that a case gives."""
        kinds = self.interpreter.OpResolverType
        made = self.interpreter.Interpreter(
            model_content=bytes(Writer(self.schema, case).bytes()),
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


class Writer:
    """A file of one op."""

    def __init__(self, schema: ModuleType, case: Case) -> None:
        self.schema, self.case = schema, case
        self.buffers: list[Any] = [schema.BufferT()]
        self.tensors: list[Any] = []

    def bytes(self) -> bytes:
        """The file."""
        s, case = self.schema, self.case
        inputs = [self.tensor(case.operands[slot], slot) for slot in case.operands]
        fed = [i for i, slot in zip(inputs, case.operands, strict=True) if slot in case.fed]
        more = [self.extra(data) for data in self.extras()]
        if case.op == "conv_transpose2d":  # the result's sizes, weights, data, bias
            x, w, *rest = inputs
            inputs = [*more, w, x, *rest]
        else:
            inputs += more
        made = turned(case, case.shaped())
        result = self.tensor(Operand(made, case.out.scale, case.out.zero), "", fed=True)
        code = s.OperatorCodeT()
        name = self.operator()
        code.builtinCode = getattr(s.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = {
            "FULLY_CONNECTED": 4,
            "CONV_2D": 3,
            "DEPTHWISE_CONV_2D": 3,
            "TRANSPOSE_CONV": 3,
            "HARD_SWISH": 1,
            "PRELU": 1,
        }.get(name, 2)
        op = s.OperatorT()
        op.opcodeIndex, op.inputs, op.outputs = 0, inputs, [result]
        kind, options = self.options()
        if options is not None:
            op.builtinOptionsType = getattr(s.BuiltinOptions, kind)
            op.builtinOptions = options
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
            return "DEPTHWISE_CONV_2D" if self.depthwise() else "CONV_2D"
        return _OPERATORS[self.case.op]

    def depthwise(self) -> bool:
        return self.case.attrs.get("groups", 1) != 1

    def buffer(self, data: Array | None) -> int:
        made = self.schema.BufferT()
        if data is not None:
            made.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self.buffers.append(made)
        return len(self.buffers) - 1

    def extra(self, data: Array) -> int:
        return self.tensor(Operand(data, None, 0), "extra")

    def tensor(self, of: Operand, slot: str, *, fed: bool = False) -> int:
        s, data, axis = self.schema, of.data, of.axis
        if slot == "w" and self.case.op == "conv2d":
            turn = (1, 2, 3, 0) if self.depthwise() else (0, 2, 3, 1)
            if self.depthwise():  # (groups * many) x 1 x h x w to 1 x h x w x (groups * many)
                data = data.transpose(turn)
                axis = 3
            else:
                data = data.transpose(turn)
        if slot == "w" and self.case.op == "conv_transpose2d":
            data, axis = data.transpose(1, 2, 3, 0), 0
        elif slot == "x":
            data = turned(self.case, data)
        made = s.TensorT()
        made.shape, made.type = list(data.shape), _TYPES[str(data.dtype)]
        made.name = slot or "result"
        made.buffer = self.buffer(None if fed or slot in self.case.fed else data)
        if of.scale is not None:
            q = s.QuantizationParametersT()
            q.scale = [float(v) for v in np.ravel(of.scale)]
            q.zeroPoint = [int(v) for v in np.broadcast_to(of.zero, np.shape(np.ravel(of.scale)))]
            q.quantizedDimension = axis
            made.quantization = q
        self.tensors.append(made)
        return len(self.tensors) - 1

    def extras(self) -> list[Array]:
        """Operands that QIR holds as attributes."""
        case = self.case
        rank = next(iter(case.operands.values())).data.ndim
        if case.op in ("reduce_mean", "reduce_sum"):
            return [np.array(case.attrs["axes"], np.int32)]
        if case.op == "pad":
            pads = np.array(case.attrs["pads"], np.int32).reshape(2, rank)
            return [np.ascontiguousarray(pads.T)]
        if case.op == "conv_transpose2d":
            return [np.array(turned(case, case.shaped()).shape, np.int32)]
        if case.op in ("resize", "resize_nearest"):
            return [np.array(case.shape[1:3], np.int32)]
        return []

    def options(self) -> tuple[str, Any]:
        s, case, attrs = self.schema, self.case, self.case.attrs
        act = _ACTIVATIONS[case.activation]
        padding = 0 if case.same else 1
        match case.op:
            case "conv2d":
                o = s.DepthwiseConv2DOptionsT() if self.depthwise() else s.Conv2DOptionsT()
                o.padding, o.fusedActivationFunction = padding, act
                o.strideH, o.strideW = case.pair("stride")
                o.dilationHFactor, o.dilationWFactor = case.pair("dilation")
                if self.depthwise():
                    o.depthMultiplier = case.operands["w"].data.shape[0] // attrs["groups"]
                    return "DepthwiseConv2DOptions", o
                return "Conv2DOptions", o
            case "linear":
                o = s.FullyConnectedOptionsT()
                o.fusedActivationFunction = act
                return "FullyConnectedOptions", o
            case "add" | "sub" | "mul":
                title = case.op.capitalize()
                o = getattr(s, f"{title}OptionsT")()
                o.fusedActivationFunction = act
                if case.op != "mul":
                    o.potScaleInt16 = False
                return f"{title}Options", o
            case "avg_pool2d" | "max_pool2d":
                o = s.Pool2DOptionsT()
                o.padding, o.fusedActivationFunction = padding, act
                o.strideH, o.strideW = case.pair("stride")
                o.filterHeight, o.filterWidth = case.pair("kernel")
                return "Pool2DOptions", o
            case "concat":
                o = s.ConcatenationOptionsT()
                o.axis = attrs["axis"]
                return "ConcatenationOptions", o
            case "softmax":
                o = s.SoftmaxOptionsT()
                o.beta = 1.0
                return "SoftmaxOptions", o
            case "leaky_relu":
                o = s.LeakyReluOptionsT()
                o.alpha = attrs["alpha"]
                return "LeakyReluOptions", o
            case "reduce_mean" | "reduce_sum":
                o = s.ReducerOptionsT()
                o.keepDims = attrs["keep"]
                return "ReducerOptions", o
            case "resize" | "resize_nearest":
                title = "ResizeBilinear" if case.op == "resize" else "ResizeNearestNeighbor"
                o = getattr(s, f"{title}OptionsT")()
                how = attrs["coordinates"]
                o.alignCorners = how == "align_corners"
                o.halfPixelCenters = how == "half_pixel"
                return f"{title}Options", o
            case "conv_transpose2d":
                o = s.TransposeConvOptionsT()
                o.padding = padding
                o.strideH, o.strideW = case.pair("stride")
                return "TransposeConvOptions", o
            case "matmul":
                return "BatchMatMulOptions", s.BatchMatMulOptionsT()
            case "max" | "min":
                return "MaximumMinimumOptions", s.MaximumMinimumOptionsT()
            case "pad":
                return "PadOptions", s.PadOptionsT()
            case "hard_swish":
                return "HardSwishOptions", s.HardSwishOptionsT()
            case "quantize" | "requantize":
                return "QuantizeOptions", s.QuantizeOptionsT()
            case "dequantize":
                return "DequantizeOptions", s.DequantizeOptionsT()
        return "", None
