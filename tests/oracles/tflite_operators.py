"""Records which builtin operators of LiteRT's interpreter run on integers of 8 and 16 bits.

`python -m tests.oracles.tflite_operators` writes `vectors/litert/operators.json`: each operator of
the schema, and the kinds of integers with which a model of it ran. Operands are tried by form;
where an operator wants more than a tensor or two, `FORMS` says what.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.tflite.models import runtime

FILE = Path(__file__).parents[1] / "differential" / "vectors" / "litert" / "operators.json"
KINDS = {"int8": 9, "uint8": 3, "int16": 7}
_TYPES = {**KINDS, "int32": 2, "bool": 6}
Array = NDArray[np.generic]


def _whole(*values: int) -> Array:
    return np.array(values, np.int32)


PARTS: dict[str, Array] = {
    "zero": np.array(0, np.int32),
    "one": _whole(1),
    "two": _whole(1, 1),
    "pads": np.zeros((4, 2), np.int32),
    "crops": np.zeros((2, 2), np.int32),
    "sizes": _whole(1, 2, 2, 4),
    "starts": _whole(0, 0, 0, 0),
    "steps": _whole(1, 1, 1, 1),
    "places": np.zeros((1, 1), np.int32),
    "many": np.array(2, np.int32),
}
"""Operands of whole numbers; `q` is a tensor of integers, `s` one code, `b` one of truth values."""
PLAIN: tuple[str, ...] = (
    *("q", "q q", "q one", "q zero", "zero q", "q two", "q two crops", "two q", "q q q", "b q q"),
    *("q sizes", "q pads", "q q one", "q one q", "q crops"),
)
FORMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "DYNAMIC_UPDATE_SLICE": ("q q starts", 1, {}),
    "FILL": ("sizes s", 1, {}),
    "L2_POOL_2D": ("q", 1, {"strideH": 1, "strideW": 1, "filterHeight": 1, "filterWidth": 1}),
    "LOCAL_RESPONSE_NORMALIZATION": ("q", 1, {}),
    "MIRROR_PAD": ("q pads", 1, {}),
    "ONE_HOT": ("one many s s", 1, {}),
    "PACK": ("q q", 1, {"valuesCount": 2, "axis": 0}),
    "PADV2": ("q pads s", 1, {}),
    "SCATTER_ND": ("places q sizes", 1, {}),
    "SPARSE_TO_DENSE": ("places sizes s s", 1, {}),
    "SPLIT": ("one q", 2, {"numSplits": 2}),
    "SPLIT_V": ("q two one", 2, {"numSplits": 2}),
    "STRIDED_SLICE": ("q starts sizes steps", 1, {}),
    "TOPK_V2": ("q many", 2, {}),
    "UNIQUE": ("q", 2, {}),
    "UNPACK": ("q", 2, {"num": 2, "axis": 1}),
}
"""Operands, how many results, and options."""


class Model:
    """A file of one operator on integers."""

    def __init__(self, schema: Any, kind: str) -> None:
        self.schema, self.kind = schema, kind
        self.buffers: list[Any] = [schema.BufferT()]
        self.tensors: list[Any] = []

    def tensor(self, dtype: str, shape: Sequence[int], data: Array | None = None) -> int:
        made, buffer = self.schema.TensorT(), self.schema.BufferT()
        made.shape, made.type, made.name = list(shape), _TYPES[dtype], "t"
        if data is not None:
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self.buffers.append(buffer)
        made.buffer = len(self.buffers) - 1
        if dtype in KINDS:
            made.quantization = self.schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = [0.1], [int(dtype != "int16")]
        self.tensors.append(made)
        return len(self.tensors) - 1

    def operand(self, part: str) -> tuple[int, bool]:
        """Its number, and whether it is fed."""
        if part in PARTS:
            return self.tensor("int32", PARTS[part].shape, PARTS[part]), False
        if part == "s":
            return self.tensor(self.kind, (), np.array(1, self.kind)), False
        return self.tensor("bool" if part == "b" else self.kind, (1, 2, 2, 4)), True

    def file(self, name: str, form: str, results: int, options: dict[str, Any]) -> bytes:
        s = self.schema
        parts = [self.operand(part) for part in form.split()]
        out = [self.tensor(self.kind, (1, 2, 2, 4)) for _ in range(results)]
        code, op, graph, model = s.OperatorCodeT(), s.OperatorT(), s.SubGraphT(), s.ModelT()
        code.builtinCode = getattr(s.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = 1
        op.inputs, op.outputs = [number for number, _ in parts], out
        titles = {k.upper(): k for k in vars(s.BuiltinOptions)}
        title = titles.get(f"{name.replace('_', '')}OPTIONS")
        if title is not None:
            op.builtinOptions = getattr(s, f"{title}T")()
            op.builtinOptionsType = getattr(s.BuiltinOptions, title)
            for key, value in options.items():
                setattr(op.builtinOptions, key, value)
        graph.tensors, graph.operators, graph.outputs = self.tensors, [op], out
        graph.inputs, graph.name = [number for number, fed in parts if fed], "main"
        model.version, model.operatorCodes, model.subgraphs = 3, [code], [graph]
        model.buffers, model.description = self.buffers, "one op"
        builder = importlib.import_module("flatbuffers").Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def attempt(make: Callable[[], bytes], interpreter: Any, answer: Any) -> None:
    """Runs a model, in a process of its own; what it ends in is no matter of ours."""
    made = interpreter.Interpreter(
        model_content=make(),
        experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        num_threads=1,
    )
    made.allocate_tensors()
    for detail in made.get_input_details():
        made.set_tensor(detail["index"], np.ones(detail["shape"], detail["dtype"]))
    made.invoke()
    answer.value = 1


def runs(name: str, kind: str, schema: Any, interpreter: Any) -> bool:
    """Whether any form of an operator runs."""
    context = multiprocessing.get_context("fork")
    asked = [FORMS[name]] if name in FORMS else [(form, 1, {}) for form in PLAIN]
    for form in asked:
        answer = context.Value("i", 0)

        def make(form: tuple[str, int, dict[str, Any]] = form) -> bytes:
            return Model(schema, kind).file(name, *form)

        child = context.Process(target=attempt, args=(make, interpreter, answer))
        child.start()
        child.join(20)
        if child.is_alive():
            child.kill()
        if answer.value:
            return True
    return False


def main() -> None:
    version, schema, interpreter = runtime("ai_edge_litert")
    names = [k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)]
    found = {n: [k for k in KINDS if runs(n, k, schema, interpreter)] for n in sorted(names)}
    lines = [f'  "{name}": {json.dumps(kinds)}' for name, kinds in found.items()]
    told = ",\n".join([f'  "runtime": "{version}"', *lines])
    FILE.write_text("{\n" + told + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
