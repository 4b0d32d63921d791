"""The `onnx` package's node tests: read, run, written back; the page that says how each goes.

`python -m tests.frontends.onnx.conformance` writes docs/reference/onnx.md.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx import OnnxRuntimeTarget
from qir.errors import QirError
from qir.frontends.onnx import OnnxFrontend
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.reference.interpreter import run

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "onnx.md"
OPSET, IR_VERSION = 26, 13
"""The newest that onnxruntime 1.31 takes."""
SAME = "same"
KEPT = "kept"
_PLAIN = frozenset(
    {
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
        TensorProto.STRING,
    }
)
"""Element types that onnxruntime takes from NumPy and gives to it."""
_CARRIERS = {"int2": np.int8, "int4": np.int8, "uint2": np.uint8, "uint4": np.uint8}


@dataclass(frozen=True, slots=True)
class Case:
    """A model with what goes in and what has to come out."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators of the model, each once."""
        nodes = self.model.graph.node
        names = (f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in nodes)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case goes in onnxruntime as it is, in the interpreter, and in onnxruntime rewritten."""

    case: str
    ops: tuple[str, ...]
    runtime: str
    interpreter: str
    written: str
    read: bool
    foreign: bool

    @property
    def both(self) -> bool:
        """Whether both ways give what the case expects."""
        return self.interpreter == self.written == SAME


def cases() -> list[Case]:
    """Returns every node test of the package, sorted by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node_tests = collect_testcases(None)
    result = []
    for node_test in node_tests:
        assert node_test.data_sets is not None
        assert node_test.model is not None
        ((inputs, outputs),) = node_test.data_sets
        result.append(
            Case(node_test.name, node_test.model, inputs, outputs, node_test.rtol, node_test.atol)
        )
    return sorted(result, key=lambda case: case.name)


def with_constants(case: Case) -> Case | None:
    """The same case with constants for every input but the first; None where some cannot be one.

    A model holds scales, zero points, axes and sizes as constants, and frontends read those by
    other code than what is computed.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = [info.name for info in case.model.graph.input]
    to_hold = list(zip(names, case.inputs, strict=False))[1:]
    kinds = {info.name: info.type for info in case.model.graph.input}
    if not to_hold or not all(_is_tensor(kinds[name], data) for name, data in to_hold):
        return None
    for name, data in to_hold:
        _hold(model, name, data)
    return replace(case, model=model, inputs=case.inputs[:1])


def _is_tensor(kind: onnx.TypeProto, data: Any) -> bool:
    return kind.HasField("tensor_type") and data is not None and not isinstance(data, list)


# -- the three ways -------------------------------------------------------------------------------


def outcome(case: Case, folder: Path) -> Outcome:
    """Returns how a case goes."""
    direct = _said(lambda: _in_runtime(case, _capped(case.model)))
    path = folder / "case.onnx"
    path.write_bytes(case.model.SerializeToString())
    try:
        graph = OnnxFrontend().load(path, Ledger())
    except QirError as error:
        reason = f"refused: {_plain(error, folder)}"
        return Outcome(case.name, case.ops, direct, reason, reason, read=False, foreign=False)
    foreign = any(node.op == "foreign" for _, nodes in graph.walk() for node in nodes)
    interpreted = _said(lambda: _in_interpreter(case, graph))
    back = folder / "back.onnx"
    written_back = _said(lambda: _written(case, graph, back))
    return Outcome(
        case.name, case.ops, direct, interpreted, written_back, read=True, foreign=foreign
    )


def in_interpreter(case: Case, folder: Path) -> str:
    """How a case goes in the interpreter alone; KEPT where an op is not QIR's."""
    path = folder / "case.onnx"
    path.write_bytes(case.model.SerializeToString())
    try:
        graph = OnnxFrontend().load(path, Ledger())
    except QirError as error:
        return f"refused: {_plain(error, folder)}"
    if any(node.op == "foreign" for _, nodes in graph.walk() for node in nodes):
        return KEPT
    return _said(lambda: _in_interpreter(case, graph))


def _said(way: Callable[[], str]) -> str:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return way()
    except QirError as error:
        return f"refused: {_plain(error)}"


def _plain(error: Exception, folder: Path | None = None) -> str:
    """What an error says, without what differs from run to run."""
    text = " ".join(str(error).split())
    text = re.sub(r"\S*/(case|back)\.onnx: ?", "", text)
    return text[:110].replace("|", "\\|").strip()


def _in_interpreter(case: Case, graph: Graph) -> str:
    names = [i.name for i in case.model.graph.input]
    case_inputs = {n: _array(x) for n, x in zip(names, case.inputs, strict=False)}
    kinds = {v.name: v.type.dtype for v in graph.inputs}
    graph_inputs = {
        n: case_inputs[n] if kind.is_opaque else case_inputs[n].astype(kind.carrier)
        for n, kind in kinds.items()
        if n in case_inputs
    }
    results = run(graph, graph_inputs)
    output_types = {name: value.type.dtype for name, value in graph.outputs.items()}
    opaque = {name for name, kind in output_types.items() if kind.is_opaque and not kind.is_loose}
    names = [o.name for o in case.model.graph.output]
    return _compared(case, [results[n].item() if n in opaque else results[n] for n in names])


def _written(case: Case, graph: Graph, path: Path) -> str:
    path.unlink(missing_ok=True)
    OnnxRuntimeTarget().emit(graph, path, Ledger(), lossy=True)
    return _in_runtime(case, onnx.load(path))


def _in_runtime(case: Case, model: onnx.ModelProto) -> str:
    import onnxruntime

    names = [i.name for i in case.model.graph.input]
    case_inputs = dict(zip(names, case.inputs, strict=False))
    kinds = {i.name: i.type for i in model.graph.input}
    runnable = onnx.ModelProto()
    runnable.CopyFrom(model)
    feed: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name not in case_inputs:
            continue
        # onnxruntime takes such elements from a constant, but not from NumPy.
        if _exotic(kind):
            _hold(runnable, name, case_inputs[name])
        else:
            feed[name] = _fed(case_inputs[name])
    outputs = _readable(runnable)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(runnable.SerializeToString(), options)
        results = session.run(outputs, feed)
    except Exception as error:  # its errors share no base of their own
        return f"onnxruntime: {_plain(error).rpartition(' : ')[2].strip()}"
    return _compared(case, results)


def _capped(model: onnx.ModelProto) -> onnx.ModelProto:
    capped = onnx.ModelProto()
    capped.CopyFrom(model)
    capped.ir_version = min(capped.ir_version, IR_VERSION)
    for entry in capped.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = min(entry.version, OPSET)
    return capped


def _exotic(kind: onnx.TypeProto) -> bool:
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type not in _PLAIN


def _hold(model: onnx.ModelProto, name: str, data: Any) -> None:
    """Makes an input a constant, which may have elements of any type."""
    (info,) = (i for i in model.graph.input if i.name == name)
    kind = info.type.tensor_type.elem_type
    if not isinstance(data, TensorProto) and not _exotic(info.type):
        data = numpy_helper.from_array(np.asarray(data))
    elif not isinstance(data, TensorProto):
        data = helper.make_tensor(name, kind, np.shape(data), np.ravel(data).astype(np.float64))
    constant = onnx.TensorProto()
    constant.CopyFrom(data)
    constant.name = name
    model.graph.initializer.append(constant)
    model.graph.input.remove(info)


def _readable(model: onnx.ModelProto) -> list[str]:
    """Names of the outputs; those of types that NumPy lacks are cast to float32."""
    names = []
    for info in list(model.graph.output):
        name = info.name
        if _exotic(info.type):
            name = f"{name}_as_float"
            model.graph.node.append(helper.make_node("Cast", [info.name], [name], to=1))
            if not any(o.domain in ("", "ai.onnx") for o in model.opset_import):
                model.opset_import.append(helper.make_opsetid("", OPSET))
            shape = helper.make_tensor_value_info(name, 1, None)
            model.graph.output.append(shape)
        names.append(name)
    return names


def _fed(data: Any) -> Any:
    if isinstance(data, TensorProto):
        return numpy_helper.to_array(data)
    if isinstance(data, list):
        return [_fed(item) for item in data]
    return data if data is None else np.asarray(data)


# -- what has to come out -------------------------------------------------------------------------


def _array(data: Any) -> Any:
    array = _fed(data)
    return array if isinstance(array, list) or array is None else np.asarray(array)


_DRAWN = frozenset({"Bernoulli", "RandomUniformLike", "RandomNormalLike", "Multinomial"})
"""Operators whose results are drawn anew each time; now and then they are the case's."""


def _compared(case: Case, results: Sequence[Any]) -> str:
    if not _DRAWN.isdisjoint(case.ops):
        return "differs: numbers are drawn at random"
    for info, expected, actual in zip(case.model.graph.output, case.outputs, results, strict=True):
        text = _differs(_array(expected), actual, case)
        if text:
            return f"differs: {info.name} {text}"
    return SAME


def _differs(expected: Any, actual: Any, case: Case) -> str:
    if expected is None or actual is None:
        return "" if expected is actual else "is absent on one side"
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return "is no list of that length"
        return next(
            (d for w, g in zip(expected, actual, strict=True) if (d := _differs(w, g, case))), ""
        )
    expected_array, actual_array = np.asarray(expected), np.asarray(actual)
    if expected_array.shape != actual_array.shape:
        return f"has shape {list(actual_array.shape)}, not {list(expected_array.shape)}"
    if expected_array.dtype.kind in "OSUT":
        return "" if _words(expected_array) == _words(actual_array) else "holds other text"
    if actual_array.dtype not in (
        expected_array.dtype,
        _CARRIERS.get(expected_array.dtype.name, expected_array.dtype),
        np.float32,
    ):
        return f"is {actual_array.dtype}, not {expected_array.dtype}"
    x, y = _real(expected_array), _real(actual_array)
    if expected_array.dtype.kind == "b" or expected_array.dtype.kind in "iu":
        same = x == y
    else:
        same = np.isclose(y, x, rtol=case.rtol, atol=case.atol, equal_nan=True)
    if np.all(same):
        return ""
    far = _steps(expected_array, actual_array)
    return (
        "holds other numbers"
        if far is None
        else f"is {far} of {expected_array.dtype}'s steps away at most"
    )


def _steps(a: NDArray[Any], b: NDArray[Any]) -> int | None:
    """How many numbers of a type of 16 bits lie between two tensors, where that is few."""
    if a.dtype != b.dtype or a.dtype.name not in ("float16", "bfloat16"):
        return None
    bits = [x.view(np.int16).astype(np.int32) for x in (a, b)]
    # Floats as sign and magnitude become integers in the order of their values.
    x, y = (np.where(ints < 0, -(ints & 0x7FFF), ints) for ints in bits)
    distance = int(np.abs(x - y).max())
    return distance if distance < 9 else None


def _words(data: NDArray[Any]) -> list[str]:
    return [w.decode() if isinstance(w, bytes) else str(w) for w in data.reshape(-1).tolist()]


def _real(data: NDArray[Any]) -> NDArray[Any]:
    return data if data.dtype.kind in "biuc" else data.astype(np.float64)


# -- the page -------------------------------------------------------------------------------------

_HEAD = """# ONNX, case by case

The node tests that the `onnx` package ships ({onnx}), made by
`python -m tests.frontends.onnx.conformance`: each is read and run by QIR's interpreter, and read,
written back and run by onnxruntime {runtime} (which takes operator sets up to {opset}). Its own
column says how many onnxruntime passes as they are. A kept op is one that QIR does not know or
whose form it does not: it is run by ONNX's own evaluator, or by onnxruntime where its form is older
than what the evaluator has, and written back as it was.

| | cases |
|---|---|
| all | {all} |
| passed by onnxruntime as they are | {direct} |
| of those, right in the interpreter and right when written back | {both} |
| right in the interpreter | {interpreter} |
| right when written back | {written} |
| read without any kept op | {known} |
| of those, right in the interpreter | {alone} |

Numbers that are drawn at random are compared with nothing. onnxruntime lacks kernels for what its
messages name. Numbers of 16 bits that are a few steps away: QIR computes an op in reals and rounds
once; those cases were computed with a rounding after each step of an op, and their tolerance,
0.001, is less than a step of bfloat16 (1/128) and about one of float16 (1/1024).
"""
COMPOSED = "(several operators)"


def page(outcomes_of_cases: Sequence[Outcome]) -> str:
    """Returns the text of docs/reference/onnx.md."""
    import onnxruntime

    run_directly = [o for o in outcomes_of_cases if o.runtime == SAME]
    without_foreign = [o for o in outcomes_of_cases if o.read and not o.foreign]
    counts = {
        "all": len(outcomes_of_cases),
        "direct": len(run_directly),
        "both": sum(o.both for o in run_directly),
        "interpreter": sum(o.interpreter == SAME for o in outcomes_of_cases),
        "written": sum(o.written == SAME for o in outcomes_of_cases),
        "known": len(without_foreign),
        "alone": sum(o.interpreter == SAME for o in without_foreign),
    }
    head = _HEAD.format(
        **counts, onnx=onnx.__version__, runtime=onnxruntime.__version__, opset=OPSET
    )
    return "\n".join([head, *_failing(outcomes_of_cases), "", *_by_op(outcomes_of_cases)]) + "\n"


def _failing(outcomes_of_cases: Iterable[Outcome]) -> Iterator[str]:
    yield "## What is refused or differs"
    for title, way in (("In the interpreter", "interpreter"), ("Written back", "written")):
        rows: dict[str, list[str]] = {}
        for case_outcome in outcomes_of_cases:
            if (text := getattr(case_outcome, way)) != SAME:
                rows.setdefault(text, []).append(_shown(case_outcome))
        yield from ("", f"### {title}", "", "| what | cases |", "|---|---|")
        yield from (f"| {text} | {' '.join(names)} |" for text, names in sorted(rows.items()))


def _shown(case_outcome: Outcome) -> str:
    """The case's name, marked where onnxruntime fails on it as it is."""
    return case_outcome.case.removeprefix("test_") + ("" if case_outcome.runtime == SAME else "\\*")


def _by_op(outcomes_of_cases: Iterable[Outcome]) -> Iterator[str]:
    rows: dict[str, list[Outcome]] = {}
    for case_outcome in outcomes_of_cases:
        rows.setdefault(case_outcome.ops[0] if len(case_outcome.ops) == 1 else COMPOSED, []).append(
            case_outcome
        )
    yield from ("## Operator by operator", "", f"Cases of one operator; {COMPOSED} are the rest.")
    yield from ("", "| operator | cases | onnxruntime | interpreter | written | kept |")
    yield "|---|---|---|---|---|---|"
    for op, of_op in sorted(rows.items()):
        shares = [sum(getattr(o, w) == SAME for o in of_op) for w in ("runtime", "interpreter")]
        shares += [sum(o.written == SAME for o in of_op), sum(o.foreign for o in of_op)]
        yield f"| {op} | {len(of_op)} | " + " | ".join(map(str, shares)) + " |"


def listed(text: str, way: str) -> dict[str, str]:
    """Returns what the page says of each case that fails one way: `interpreter` or `written`."""
    title = {"interpreter": "### In the interpreter", "written": "### Written back"}[way]
    part = re.split(r"\n##", text.partition(title)[2])[0]
    rows = re.findall(r"^\| (.+?) \| ([^|]+) \|$", part, re.MULTILINE)
    by_case = {}
    for reason, names in rows[1:] if rows and rows[0][0] == "what" else rows:
        for name in names.split():
            by_case["test_" + name.removesuffix("\\*")] = reason
    return by_case


def outcomes(step: int = 1, first: int = 0) -> Iterator[Outcome]:
    """Yields how the cases go, or every `step`-th of them."""
    with tempfile.TemporaryDirectory() as name:
        for case in cases()[first::step]:
            yield outcome(case, Path(name))


if __name__ == "__main__":
    PAGE.write_text(page(list(outcomes())), encoding="utf-8")
