"""Onnxruntime's operators on integers: every form of their numbers, all sizes odd, equal to the
byte.

Scale and zero point are constants, what Constant nodes give, inputs of the model, or computed.
Scales are powers of two, or nearly, and sums small: so many results lie between two integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx.forms.formats import converted
from qir.backends.onnx.writer.graph import to_model
from qir.ledger import Ledger
from qir.reference.interpreter import run as interpreted
from tests.differential import runtime

from .contrib import MS, Case, F, case, equal, loaded

U8, I8, FLOAT = TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT
CODE = {"u8": (np.uint8, U8), "i8": (np.int8, I8)}
FORMS = ("constants", "nodes", "inputs", "computed")


class Maker:
    """One operator with numbers in one of the forms."""

    def __init__(self, seed: int, kind: str, form: str) -> None:
        print(f"seed {seed}")
        self.rng = np.random.default_rng(seed)
        self.kind, self.form = kind, form
        self.feeds: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.before: list[Any] = []

    def integers(self, name: str, *shape: int, kind: str = "", fed: bool = True) -> str:
        """A tensor of integers of which a fifth lie at the ends."""
        code = CODE[kind or self.kind][0]
        info = np.iinfo(code)
        data = self.rng.integers(info.min, info.max + 1, shape)
        ends = self.rng.choice([info.min, info.max], shape)
        data = np.where(self.rng.random(shape) < 0.2, ends, data).astype(code)
        (self.feeds if fed else self.constants)[name] = data
        return name

    def number(self, name: str, data: Any) -> str:
        data = np.asarray(data)
        if self.form == "constants":
            self.constants[name] = data
        elif self.form == "nodes":
            value = numpy_helper.from_array(data)
            self.before.append(helper.make_node("Constant", [], [name], name, value=value))
        elif self.form == "inputs":
            self.feeds[name] = data
        else:
            self.feeds[f"{name}_in"] = data
            kind = (
                TensorProto.FLOAT
                if data.dtype == F
                else CODE["u8" if data.dtype == np.uint8 else "i8"][1]
            )
            wide = helper.make_node("Cast", [f"{name}_in"], [f"{name}_f"], f"{name}_f", to=11)
            self.before += [wide, helper.make_node("Cast", [wide.output[0]], [name], name, to=kind)]
        return name

    def pair(self, name: str, *count: int, power: int = -4, kind: str = "") -> list[str]:
        """Scale and zero point: powers of two and a little off, zero points mostly odd."""
        info = np.iinfo(CODE[kind or self.kind][0])
        scale = 2.0 ** (power + self.rng.integers(-1, 2, count))
        if self.rng.random() < 0.3:
            scale = scale * self.rng.uniform(0.9, 1.1)
        middle = (int(info.max) + int(info.min) + 1) // 2
        zero = middle + self.rng.integers(-15, 15) * 2 + 1
        zeros = np.full(count, zero).astype(info.dtype)
        return [
            self.number(f"{name}_scale", np.asarray(scale, F)),
            self.number(f"{name}_zero", zeros),
        ]

    def made(
        self, op: str, inputs: Sequence[str], domain: str = MS, result: int = 0, **attrs: Any
    ) -> Case:
        node = helper.make_node(op, list(inputs), ["y"], "it", domain=domain, **attrs)
        out = result or CODE[self.kind][1]
        return case([*self.before, node], self.feeds, self.constants, {"y": out})


def check(made: Case, *, ties: bool = True) -> None:
    """Equal, and rich: results reach both ends or are many."""
    equal(made)
    if ties:
        (data,) = made.judged().values()
        assert len(np.unique(data)) > 7, "too few different results"


def repeated(test: Any) -> Any:
    test = pytest.mark.parametrize("form", FORMS)(test)
    return pytest.mark.parametrize("kind", ["u8", "i8"])(test)


@repeated
def test_sums_and_products_of_codes(kind: str, form: str) -> None:
    for seed, op in enumerate(("QLinearAdd", "QLinearMul") * 2):
        m = Maker(seed, kind, form)
        shape = (3, 5, 7) if seed % 2 else (7,)
        a = [m.integers("a", 3, 5, 7), *m.pair("as")]
        b = [m.integers("b", *shape), *m.pair("bs")]
        out = m.pair("ys", power=-3 if op == "QLinearAdd" else -1)
        check(m.made(op, [*a, *b, *out]))


@repeated
def test_a_choice_between_codes_of_two_maps(kind: str, form: str) -> None:
    for seed in range(4):
        m = Maker(seed, kind, form)
        m.feeds["c"] = m.rng.integers(0, 2, (3, 1, 7) if seed % 2 else (3, 5, 7)).astype(np.bool_)
        a = [m.integers("a", 3, 5, 7), *m.pair("as")]
        b = [m.integers("b", *((5, 7) if seed % 3 else (1,))), *m.pair("bs")]
        check(m.made("QLinearWhere", ["c", *a, *b, *m.pair("ys")]))


@repeated
@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"])
def test_functions_of_codes(kind: str, form: str, op: str) -> None:
    for seed in range(3):
        m = Maker(seed, kind, form)
        shape = (3, 5, 7) if op == "QLinearSoftmax" else (1, 300)
        parts = [m.integers("x", *shape), *m.pair("xs", power=-5)]
        out = m.pair("ys", power=-5 if op == "QLinearLeakyRelu" else -8)
        choices: dict[str, dict[str, Any]] = {
            "QLinearSigmoid": {},
            "QLinearLeakyRelu": {"alpha": 0.3},
            "QLinearSoftmax": {"axis": (2, 1, 0)[seed], "opset": 13},
        }
        check(m.made(op, [*parts, *out], **choices[op]))


@repeated
def test_a_softmax_that_flattens_is_one_of_rows(kind: str, form: str) -> None:
    """Read as rows laid out and back, where the axes behind its own are not all 1."""
    for seed, (shape, axis, laid) in enumerate(
        (((3, 5, 7), 2, 0), ((3, 7, 1, 1), 1, 0), ((3, 5, 7), 1, 1), ((2, 3, 5), -2, 1))
    ):
        m = Maker(seed, kind, form)
        parts = [m.integers("x", *shape), *m.pair("xs", power=-5), *m.pair("ys", power=-8)]
        made = m.made("QLinearSoftmax", parts, axis=axis, opset=12)
        graph = loaded(made.proto)
        ops = [n.op for n in graph]
        assert (ops.count("softmax"), ops.count("flatten"), ops.count("foreign")) == (1, laid, 0)
        wanted = made.judged()["y"]
        assert np.array_equal(interpreted(graph, made.feeds)["y"], wanted)
        for asked, standard in (("qoperator", False), (None, True)):
            written = to_model(converted(graph, asked, Ledger(), standard=standard), Ledger())
            assert ("QLinearSoftmax" in {n.op_type for n in written.graph.node}) != standard
            found = runtime.run(written, made.feeds, optimize=False)["y"]
            assert np.abs(found.astype(int) - wanted).max() <= (1 if standard else 0)


@repeated
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions_of_codes(kind: str, form: str, axes: int) -> None:
    for seed in range(3):
        m = Maker(seed, kind, form)
        groups = (1, 2, 4)[seed]
        out = 6 if groups < 4 else 4
        right = "i8" if kind == "i8" or seed % 2 else "u8"
        many = (out,) if seed else ()
        x = [m.integers("x", 2, 4, *(7, 6, 5)[:axes]), *m.pair("xs", power=-4)]
        w = [m.integers("w", out, 4 // groups, *(3, 2, 3)[:axes], kind=right, fed=False)]
        w += m.pair("ws", *many, power=-6, kind=right)
        parts = [*x, *w, *m.pair("ys", power=axes - 1)]
        if seed != 1:
            m.constants["b"] = m.rng.integers(-500 * axes, 500 * axes, out).astype(np.int32)
            parts.append("b")
        pads = [1, 0, 1, 0, 1, 1][: 2 * axes]
        attrs: dict[str, Any] = {"pads": pads, "group": groups, "strides": [2, 1, 1][:axes]}
        check(m.made("QLinearConv", parts, MS if (seed + axes) % 2 else "", **attrs))


@repeated
def test_convolutions_of_codes_with_channels_last(kind: str, form: str) -> None:
    m = Maker(5, kind, form)
    x = [m.integers("x", 2, 7, 6, 3), *m.pair("xs")]
    w = [m.integers("w", 5, 3, 3, 2, kind="i8", fed=False), *m.pair("ws", power=-6, kind="i8")]
    check(m.made("QLinearConv", [*x, *w, *m.pair("ys", power=2)], channels_last=1))


@repeated
@pytest.mark.parametrize("columns", [False, True])
def test_products_of_matrices_of_codes(kind: str, form: str, columns: bool) -> None:
    for seed in range(3):
        m = Maker(seed, kind, form)
        right = "i8" if kind == "i8" or seed % 2 else "u8"
        a = [m.integers("a", 2, 3, 9), *m.pair("as")]
        b = [m.integers("b", 9, 5, kind=right, fed=seed == 2)]
        b += m.pair("bs", *((5,) if columns else ()), power=-5, kind=right)
        check(m.made("QLinearMatMul", [*a, *b, *m.pair("ys", power=1)], ""))


@repeated
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("turned", [0, 1])
def test_general_products_of_codes(kind: str, form: str, real: bool, turned: int) -> None:
    for seed in range(2):
        m = Maker(seed, kind, form)
        right = "i8" if kind == "i8" or seed % 2 else "u8"
        a = [m.integers("a", 3, 9), *m.pair("as")]
        shape = (5, 9) if turned else (9, 5)
        b = [m.integers("b", *shape, kind=right, fed=False), *m.pair("bs", power=-5, kind=right)]
        m.constants["c"] = m.rng.integers(-900, 900, 5).astype(np.int32)
        out = [] if real else m.pair("ys", power=1)
        alpha: dict[str, Any] = {} if seed else {"alpha": 0.5}
        result = FLOAT if real else 0
        check(m.made("QGemm", [*a, *b, "c", *out], result=result, transB=turned, **alpha))


@repeated
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_means_of_windows_of_codes(kind: str, form: str, axes: int) -> None:
    for seed in range(3):
        m = Maker(seed, kind, form)
        x = [m.integers("x", 2, 3, *(9, 8, 7)[:axes]), *m.pair("xs")]
        attrs: dict[str, Any] = {
            "kernel_shape": [3, 2, 2][:axes],
            "strides": [2, 1, 1][:axes],
            "pads": [1, 0, 0, 1, 1, 0][: 2 * axes] if axes > 1 else [1, 1],
            "count_include_pad": seed % 2,
            "ceil_mode": int(seed == 2),
        }
        check(m.made("QLinearAveragePool", [*x, *m.pair("ys")], **attrs))
        m = Maker(seed, kind, form)
        x = [m.integers("x", 5, 9, *(9, 8, 7)[:axes]), *m.pair("xs")]
        check(m.made("QLinearGlobalAveragePool", [*x, *m.pair("ys", power=-6)], channels_last=0))


@repeated
def test_means_of_windows_with_channels_last(kind: str, form: str) -> None:
    m = Maker(3, kind, form)
    x = [m.integers("x", 2, 9, 8, 3), *m.pair("xs")]
    attrs: dict[str, Any] = {"kernel_shape": [3, 2], "channels_last": 1}
    check(m.made("QLinearAveragePool", [*x, *m.pair("ys")], **attrs))
    m = Maker(4, kind, form)
    x = [m.integers("x", 5, 9, 8, 9), *m.pair("xs")]
    check(m.made("QLinearGlobalAveragePool", [*x, *m.pair("ys", power=-6)], channels_last=1))


@repeated
def test_tensors_of_several_maps_are_joined(kind: str, form: str) -> None:
    for seed in range(3):
        m = Maker(seed, kind, form)
        parts = m.pair("ys")
        for name, size in zip("abc", (3, 1, 4), strict=True):
            parts += [m.integers(name, 2, size, 5), *m.pair(f"{name}s")]
        check(m.made("QLinearConcat", parts, axis=1))


@pytest.mark.parametrize("form", ["constants", "inputs"])
def test_a_gain_reaches_the_bias_between_codes_as_well(form: str) -> None:
    """A QGemm in QDQ form: its bias counts in units of the sums times alpha."""
    m = Maker(1, "u8", form)
    a = [m.integers("a", 3, 9), *m.pair("as")]
    b = [m.integers("b", 9, 5, kind="i8", fed=False), *m.pair("bs", power=-5, kind="i8")]
    m.constants["c"] = m.rng.integers(-9000, 9000, 5).astype(np.int32)
    made = m.made("QGemm", [*a, *b, "c", *m.pair("ys", power=2)], alpha=0.5)
    floats = to_model(converted(loaded(made.proto), "qdq", Ledger(), standard=False), Ledger())
    assert "Gemm" in {n.op_type for n in floats.graph.node}
    found = runtime.run(floats, made.feeds, optimize=False)["y"]
    assert np.array_equal(found, made.judged()["y"])
