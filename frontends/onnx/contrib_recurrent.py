"""DynamicQuantizeLSTM: input and state are quantized as the layer runs, each by its own range."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, U8
from qir.ir.node import Value

from .contrib_body import Body, group
from .contrib_codes import ranged
from .contrib_names import OPERANDS
from .op import MICROSOFT, Keep, Op
from .reader import Reader

_OWN = (
    "activation_alpha activation_beta activations clip direction hidden_size input_forget".split()
)
_USUAL = ("sigmoid", "tanh", "tanh")
_SIDES = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

_MOST_ZEROS = 1 << 20
"""Of a state at the start; more of them are made when the model runs."""


def _lstm(reader: Reader, op: Op) -> None:
    """The layer as a scan over steps whose products are sums of codes."""
    op.only(*_OWN)
    formal = OPERANDS[op.type].split()
    operands = {
        slot: reader.value(op, name) for slot, name in zip(formal, op.inputs, strict=False) if name
    }
    found = op.attribute("activations")
    names = [s.decode("utf-8", "replace").lower() for s in found.strings] if found else []
    sides = _SIDES.get(op.text("direction", "forward").lower())
    if sides is None:
        raise op.fail(f"direction {op.text('direction', '')!r} is none that ONNX has")
    if any(n != _USUAL[i % 3] for i, n in enumerate(names)) or "sequence_lens" in operands:
        raise Keep("other activations, or sequences of several lengths")
    if any(op.attribute(n) for n in ("activation_alpha", "activation_beta")):
        raise Keep("activations with numbers of their own")
    hidden = op.integer("hidden_size", 0)
    if hidden < 1 or operands["R"].type.shape != (len(sides), hidden, 4 * hidden):
        raise Keep(f"{hidden} hidden numbers, with weights of {operands['R'].type}")
    kinds = {s: operands[s].type for s in ("W", "R")}
    if any(k.quant or k.dtype.name not in ("u8", "i8") for k in kinds.values()):
        raise Keep("its weights are no codes of eight bits")
    layer = _Layer(hidden, op.real("clip", 0.0), op.integer("input_forget", 0) != 0)

    def build(body: Body) -> list[Value]:
        made = [layer.side(body, i, back) for i, back in enumerate(sides)]
        rows = [
            body.op("concat", *(one[i] for one in made), axis=axis) if len(made) > 1 else made[0][i]
            for i, axis in enumerate((1, 0, 0))
        ]
        return rows

    group(reader, op, operands, build)


class _Layer:
    """One layer's numbers; what it computes along one direction."""

    def __init__(self, hidden: int, clip: float, forget: bool) -> None:
        self.hidden = hidden
        self.clip = clip
        self.forget = forget

    def side(self, body: Body, index: int, back: bool) -> list[Value]:
        """y, h and c of one direction, each with an axis for it."""
        x = body.op("flip", body["X"], axes=(0,)) if back else body["X"]
        codes, scale, zero = _ranged(body, x)
        gates = _product(body, codes, scale, zero, _Weights(body, "W", index))
        if "B" in body:
            both = body.reshaped(_part(body, body["B"], index), 2, 4 * self.hidden)
            gates = body.op("add", gates, body.op("reduce_sum", both, axes=(0,), keep=False))
        start = [self._start(body, s, index, x) for s in ("initial_h", "initial_c")]
        weights = _Weights(body, "R", index)
        taken = {"vs.0": start[0], "vs.1": start[1], "ss.0": gates}
        taken |= {"xs.0": weights.codes, "xs.1": weights.scale, "xs.2": weights.zero}
        if "P" in body:
            taken["xs.3"] = body.reshaped(_part(body, body["P"], index), 3, self.hidden)
        inner = self._step(taken)
        h, c, y = body.many("scan", taken, {}, bodies={"body": inner.graph})
        y = body.op("flip", y, axes=(0,)) if back else y
        return [
            body.op("unsqueeze", y, axes=(1,)),
            *(body.op("unsqueeze", v, axes=(0,)) for v in (h, c)),
        ]

    def _start(self, body: Body, slot: str, index: int, x: Value) -> Value:
        if slot in body:
            return body.op("squeeze", _part(body, body[slot], index), axes=(0,))
        batch = x.type.shape[1]
        if isinstance(batch, int) and batch * self.hidden <= _MOST_ZEROS:
            return body.constant(np.zeros((batch, self.hidden), np.float32))
        wide = body.constant(np.zeros((1, self.hidden), np.float32))
        rows = body.op("shape", x, start=1, end=2)
        shape = body.op("concat", rows, body.constant([self.hidden]), axis=0)
        return body.op("expand", wide, shape)

    def _step(self, taken: Mapping[str, Value]) -> Body:
        """One step: the gates, and the state behind them."""
        first = taken["ss.0"].type
        one = Body({})
        kinds = {s: v.type for s, v in taken.items()}
        kinds["ss.0"] = first.with_shape(first.shape[1:])
        order = [s for p in ("vs", "ss", "xs") for s in kinds if s.startswith(p)]
        values = {s: one.graph.add("input", types=[kinds[s]]).result for s in order}
        h, c = values["vs.0"], values["vs.1"]
        codes, scale, zero = _ranged(one, h)
        weights = _Weights(one, "R", 0, (values["xs.0"], values["xs.1"], values["xs.2"]))
        gates = one.op("add", values["ss.0"], _product(one, codes, scale, zero, weights))
        parts = one.many("split", {"x": gates}, {"sizes": (self.hidden,) * 4, "axis": 1})
        i, o, f, g = parts
        peeps: list[Value] = []
        if "xs.3" in values:
            peeps = [
                one.op("gather", values["xs.3"], one.constant(np.array(k)), axis=0)
                for k in range(3)
            ]
            i = one.op("add", i, one.op("mul", peeps[0], c))
            f = one.op("add", f, one.op("mul", peeps[2], c))
        i = one.op("sigmoid", self._kept(one, i))
        f = (
            one.op("sub", one.constant(1.0), i)
            if self.forget
            else one.op("sigmoid", self._kept(one, f))
        )
        g = one.op("tanh", self._kept(one, g))
        new = one.op("add", one.op("mul", f, c), one.op("mul", i, g))
        if peeps:
            o = one.op("add", o, one.op("mul", peeps[1], new))
        o = one.op("sigmoid", self._kept(one, o))
        out = one.op("mul", o, one.op("tanh", new))
        one.graph.add("output", {"h": out, "c": new, "y": out})
        return one

    def _kept(self, body: Body, x: Value) -> Value:
        return body.op("clip", x, min=-self.clip, max=self.clip) if self.clip > 0 else x


class _Weights:
    """The codes of one direction as plain numbers, and what they count in."""

    def __init__(
        self, body: Body, slot: str, index: int, given: tuple[Value, Value, Value] | None = None
    ) -> None:
        if given is not None:
            self.codes, self.scale, self.zero = given
            return
        self.codes = body.op("squeeze", _part(body, body[slot], index), axes=(0,))
        scale, zero = body[f"{slot}_scale"], body[f"{slot}_zero_point"]
        self.scale = _flat(body, _part(body, scale, index))
        self.zero = _flat(body, _part(body, zero, index))


def _flat(body: Body, x: Value) -> Value:
    """Numbers in a row; one alone as a number."""
    shape = x.type.shape
    if all(d == 1 for d in shape):
        return body.reshaped(x)
    return body.reshaped(x, -1)


def _part(body: Body, x: Value, index: int) -> Value:
    if x.type.rank == 0 or x.type.shape[0] == 1:
        return x
    cut: dict[str, Attr] = {"starts": (index,), "ends": (index + 1,), "axes": (0,), "steps": (1,)}
    return body.op("slice", x, **cut)


def _ranged(body: Body, x: Value) -> tuple[Value, Value, Value]:
    """Plain codes of a whole tensor by its own range, and their scale and zero point."""
    codes, scale, zero = ranged(body, x)
    return body.recoded(codes, U8), scale, zero


def _product(body: Body, codes: Value, scale: Value, zero: Value, weights: _Weights) -> Value:
    """The sums of codes times both scales."""
    operands = {"a": codes, "b": weights.codes, "a.zero": zero, "b.zero": weights.zero}
    sums = body.many("matmul_integer", operands)[0]
    return body.op("mul", body.cast(sums, F32), body.op("mul", scale, weights.scale))


OPS = {(MICROSOFT, "DynamicQuantizeLSTM"): _lstm}
