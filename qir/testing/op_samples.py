"""Feeding any op of the table: operands and attributes are guessed, and the op's rule judges them.

What an operand or attribute is called says what it may be; nothing here knows an op, apart from
the few whose parts must fit one another so well that no guess would find them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qir.errors import QirError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import OpSpec, Slot, spec
from qir.ir.ops.spec import AttrSpec
from qir.ir.types import Array, Element, TensorType
from qir.testing.integer_networks import random_map
from qir.testing.random_source import Pick

TRIES = 40
MAX_ELEMENTS = 4096  # elements of a result
APART = frozenset({"input", "constant", "output", "fused", "foreign", "if", "loop", "scan"})
"""Ops that are not fed: inputs and outputs, and those that hold bodies."""

Shape = tuple[int, ...]
_SHAPES: tuple[Shape, ...] = (
    (),
    (3,),
    (2, 3),
    (2, 2),
    (3, 2, 4),
    (1, 4, 4),
    (2, 2, 3),
    (1, 2, 4, 4),
    (1, 4, 2, 3),
    (1, 1, 3, 3, 3),
)
_KINDS = (F32, F32, F32, F64, F16, I64, I32, U8, BOOL)
_TAKES_QUANTIZED = frozenset({"dequantize", "requantize", "recode", "qparams"})
_STATED_RESULT = frozenset({"quantize", "requantize"})
"""Ops whose result is of a quantized type that is stated."""
_INTEGER_SLOTS = (
    "indices",
    "places",
    "lengths",
    "offsets",
    "positions",
    "shape",
    "size",
    "sizes",
    "count",
)
_CHANNEL_SLOTS = ("gamma", "beta", "mean", "var")  # mostly alike
_BOOL_SLOTS = ("condition", "cond", "mask")
_TEXT_CHOICES: dict[str, tuple[str, ...]] = {
    "approximate": ("none", "tanh"),
    "coordinates": ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"),
    "direction": ("left", "right", "forward", "reverse", "bidirectional"),
    "equation": ("ij,jk->ik", "ij->ji", "...i->...", "ii->i", "i,j->ij", "abc,abd->acd", "ij,ij"),
    "layout": ("NCHW", "NHWC"),
    "mode": (
        *("constant", "reflect", "edge", "wrap", "symmetric"),
        *("DCR", "CRD", "linear", "cubic", "sum", "max"),
    ),
    "policy": ("stretch", "not_larger"),
    "reduction": ("none", "add", "mul", "max", "min"),
    "rounding": ("floor", "ceil", "round_prefer_ceil"),
    "round": ("", "even", "away", "floor"),
    "rule": ("onnx.dynamic", "torch.dynamic", "profile"),
    "outside": ("zeros", "border", "reflection"),
    "counted": ("tensor", "plane"),
    "give": ("numbers", "range"),
}


def feed(pick: Pick, graph: Graph, op: str, values: Sequence[Value]) -> Node | None:
    """Adds one op on values that are there, and on new constants; None where no guess fits."""
    for _ in range(TRIES):
        guess = _Guess(pick, graph, spec(op), values)
        if (node := guess.add()) is not None:
            return node
    return None


class _Guess:
    """One try."""

    def __init__(self, pick: Pick, graph: Graph, row: OpSpec, values: Sequence[Value]) -> None:
        self.pick = pick
        self.graph = graph
        self.row = row
        self.values = values
        self.made: list[Node] = []
        self.place = pick(9)
        self.wide, self.count = 1 + pick(3), 1 + pick(2)
        self.gates = (1, 3, 4)[pick(3)]
        self.x: TensorType | None = None

    def one(self, *options: Attr) -> Attr:
        return options[self.pick(len(options))]

    def add(self) -> Node | None:
        """Returns the node; None, and nothing left after, where the guess does not fit."""
        operands = self.hard() or self.operands()
        attrs: Mapping[str, Attr] = {
            a.name: self.attr(a) for a in self.row.attrs if a.required or not self.pick(3)
        }
        if self.row.name in _FIXED_GUESSES:
            attrs = (
                {**attrs, **_FIXED_GUESSES[self.row.name][1]}
                if self.pick(2)
                else _FIXED_GUESSES[self.row.name][1]
            )
        op = self.row.name
        try:
            types = self.types()
            # The graph trusts a stated type, so the rule is asked here before it is added.
            if types is not None:
                infer_result_types(op, operands, self.row.complete_attrs(attrs))
            node = self.graph.add(op, operands, attrs, types=types, inner=self.inner())
        except QirError:
            self.undo()
            return None
        # Chains of ops would else grow tensors until a test takes minutes.
        if not all(_small(value.type) for value in node.results):
            self.graph.remove(node)
            self.undo()
            return None
        return node

    def undo(self) -> None:
        for node in reversed(self.made):
            self.graph.remove(node)

    def types(self) -> list[TensorType] | None:
        if self.row.name not in _STATED_RESULT or self.x is None:
            return None
        stated = random_map(self.pick, (U8, I8)[self.pick(2)])
        return [self.x.with_element(replace(stated, express=self.x.express))]

    def inner(self) -> dict[str, Element]:
        kinds: tuple[Element, ...] = (F16, random_map(self.pick, U8), random_map(self.pick, I8))
        needs_type = self.row.name == "fake_quantize"
        names = [name for name in self.row.inner if needs_type or self.pick(3) == 0]
        return {name: kinds[1 if needs_type else self.pick(3)] for name in names}

    # -- operands -----------------------------------------------------------------------------

    def hard(self) -> dict[str, Value]:
        """Returns the operands of an op that no guess would find."""
        shapes = _FIXED_GUESSES[self.row.name][0] if self.row.name in _FIXED_GUESSES else {}
        optional = {slot.name for slot in self.row.operands if slot.optional}
        return {
            slot: self.alike(slot, shape)
            for slot, shape in shapes.items()
            if slot not in optional or self.pick(2)
        }

    def alike(self, slot: str, shape: Shape) -> Value:
        """Returns a value of that shape that is there, or a constant."""
        kind = I64 if slot in _INTEGER_SLOTS else U8 if self.row.name.endswith("_integer") else F32
        alike = [v for v in self.values if v.type == TensorType(shape, kind)]
        if alike and self.pick(4):
            return alike[self.pick(len(alike))]
        return self.store(self.elements(shape, kind))

    def operands(self) -> dict[str, Value]:
        out: dict[str, Value] = {}
        for slot in self.row.operands:
            if slot.variadic:
                out |= {f"{slot.name}.{i}": self.operand(slot) for i in range(1 + self.pick(3))}
            elif not slot.optional or self.pick(3) == 0:
                out[slot.name] = self.operand(slot)
        return out

    def operand(self, slot: Slot) -> Value:
        if self.x is None:
            first_value = self.first()
            self.x = first_value.type
            return first_value
        alike = [v for v in self.values if v.type == self.x]
        if alike and self.pick(3) == 0:
            return alike[self.pick(len(alike))]
        return self.constant(slot.name)

    def first(self) -> Value:
        coded = self.row.name in _TAKES_QUANTIZED or (
            self.row.move is not None and self.pick(3) == 0
        )
        candidates = [v for v in self.values if (v.type.quant is not None) == coded]
        if candidates and (coded or self.pick(3)):
            return candidates[self.pick(len(candidates))]
        shape, kind = _SHAPES[self.pick(len(_SHAPES))], _KINDS[self.pick(len(_KINDS))]
        return self.store(self.elements(shape, kind))

    def constant(self, slot: str) -> Value:
        """Returns a constant for a slot, of a shape that its name and the first operand suggest."""
        base = self.x.express if self.x is not None else F32
        # Mostly the first operand's own type: few ops mix types, so other guesses rarely fit.
        kind = base if slot in _CHANNEL_SLOTS else (base, base, base, I64, BOOL)[self.pick(5)]
        if slot in _BOOL_SLOTS and self.pick(4):
            kind = BOOL
        if slot in _INTEGER_SLOTS and self.pick(8):
            kind = I64
            if slot in ("shape", "sizes", "size") and self.x is not None and self.pick(4):
                return self.store(np.array(self.sizes(slot), np.int64))
        shapes = self.shapes(slot)
        # Per-channel operands share one shape nearly always, as their rule wants it.
        place = self.place if slot in _CHANNEL_SLOTS and self.pick(20) else self.pick(len(shapes))
        return self.store(self.elements(shapes[place % len(shapes)], kind))

    def store(self, data: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Value:
        value = self.graph.constant(Array.of(data), name="k")
        self.made.append(value.node)
        return value

    def elements(self, shape: Shape, kind: DType) -> np.ndarray[Shape, np.dtype[np.generic]]:
        rng = np.random.default_rng(self.pick(1 << 16))
        if kind is BOOL:
            return rng.integers(0, 2, shape).astype(np.bool_)
        if kind.is_float:
            return rng.normal(0, 1, shape).astype(kind.carrier)
        return rng.integers(0, 2, shape).astype(kind.carrier)

    def known(self) -> Shape:
        """Returns the first operand's sizes; those that nobody knows stand as 2."""
        shape = self.x.shape if self.x is not None else ()
        return tuple(d if isinstance(d, int) else 2 for d in shape)

    def sizes(self, slot: str) -> Shape:
        """Numbers that may be a shape of the first operand."""
        x = self.known()
        if slot == "size":
            return (*x[:1], self.wide, 2, 2)
        if slot == "sizes":
            return tuple(d + self.pick(2) for d in x)
        choices = (x, x[::-1], (-1,), (math.prod(x),), (1, *x), (*x[:1], -1))
        return choices[self.pick(len(choices))]

    def shapes(self, slot: str) -> Sequence[Shape]:
        # The letters of the formulas: output channels, hidden size and gates.
        x, o, h, g = self.known(), self.wide, self.count, self.gates
        if slot in ("w", "r", "proj") and len(x) == 3:
            recurrent = [(1, g * h, x[-1]), (1, g * h, h), (o, x[1], 2), (x[1], o, 1)]
            return recurrent[:1] if slot == "w" and self.pick(2) else recurrent
        if slot in ("w", "weight") and len(x) > 1:
            k = tuple(1 + self.pick(2) for _ in x[2:])
            return [(o, x[1], *k), (x[1], o, *k), (o * x[1], 1, *k), (o, x[-1]), (x[-1], o)]
        if slot in ("bias", "b") and self.row.traits.weight is not None and self.pick(2):
            return [(o,), (x[1],) if len(x) > 1 else (), (1, 2 * g * h)]
        out: list[Shape] = [x, (), (1,), (o,), x[-1:], x[:1], x[1:2], x[1:], x[:-1]]
        return [*out, tuple(1 for _ in x), (*x[:-1], 1), (x[-1] if x else 1, o), (1, 2, h)]

    # -- attributes ---------------------------------------------------------------------------

    def attr(self, row: AttrSpec) -> Attr:
        x = self.known()
        rank = max(1, len(x))
        match row.kind:
            case "bool":
                return bool(self.pick(2))
            case "int" if row.name in ("axis", "batch", "time"):
                return self.pick(rank)
            case "int":
                return self.one(1, 2, self.wide, 2, x[1] if len(x) > 1 else 1)
            case "float":
                return self.one(0.5, 1.0, 2.0)
            case "floats":
                return tuple(1.0 + self.pick(2) for _ in x)
            case "text":
                return (
                    self.one(*_TEXT_CHOICES[row.name])
                    if row.name in _TEXT_CHOICES
                    else row.default or "a"
                )
            case "dtype":
                return (U8, I8)[self.pick(2)] if row.name == "storage" else self.kind(row)
            case "array":
                return Array.of(self.elements((1,), _KINDS[self.pick(len(_KINDS))]))
            case "ints":
                return self.wholes(row.name, x)
        return row.default

    def kind(self, row: AttrSpec) -> DType:
        if row.name.endswith("_type"):
            return F32 if "scale" in row.name else I32
        return _KINDS[self.pick(len(_KINDS))]

    def wholes(self, name: str, x: Shape) -> tuple[int, ...]:
        """Whole numbers, as many as the name asks for."""
        rank, space = len(x), max(1, len(x) - 2)
        makers: dict[str, Callable[[], tuple[int, ...]]] = {
            "perm": lambda: self.shuffled(rank),
            "kernel": lambda: tuple(1 + self.pick(2) for _ in range(space)),
            "stride": lambda: tuple(1 + self.pick(2) for _ in range(space)),
            "dilation": lambda: (1,) * space,
            "pad": lambda: tuple(self.pick(2) for _ in range(2 * space)),
            "output_pad": lambda: (0,) * space,
            "pads": lambda: tuple(self.pick(2) for _ in range(2 * rank)),
            "repeats": lambda: tuple(1 + self.pick(2) for _ in range(rank)),
            "size": lambda: tuple(1 + self.pick(3) for _ in range(space)),
            "keep": lambda: tuple(range(self.pick(rank + 1))),
            "bounds": lambda: (0, 100),
            "sizes": lambda: _parts(x[self.pick(rank)] if rank else 1),
        }
        if name in makers:
            return makers[name]()
        if name in ("axes", "starts", "ends", "steps"):
            count = min(self.count, max(1, rank))
            one = {"axes": 0, "starts": 0, "ends": 1 + self.pick(2), "steps": 1}[name]
            return tuple(range(count)) if name == "axes" else (one,) * count
        return ()

    def shuffled(self, count: int) -> tuple[int, ...]:
        remaining = list(range(count))
        return tuple(remaining.pop(self.pick(len(remaining))) for _ in range(count))


def _parts(size: int) -> tuple[int, ...]:
    return (size // 2, size - size // 2)


def _small(kind: TensorType) -> bool:
    sizes = dims.known_shape(kind.shape)
    return kind.rank <= 6 and (sizes is None or math.prod(sizes) <= MAX_ELEMENTS)


_SQUARE: dict[str, Attr] = {"kernel": (2, 2), "stride": (1, 1), "pad": (0,) * 4, "dilation": (1, 1)}
_TIME: Shape = (3, 2, 4)  # steps, batch, width
_FIXED_GUESSES: dict[str, tuple[dict[str, Shape], dict[str, Attr]]] = {
    "attention": ({slot: (1, 2, 3, 4) for slot in ("q", "k", "v")}, {}),
    "conv_integer": ({"x": (1, 2, 4, 4), "w": (3, 2, 2, 2)}, {}),
    "fold": ({"x": (1, 4, 4)}, {**_SQUARE, "size": (3, 3)}),
    "grid_sample": ({"x": (1, 2, 3, 3), "grid": (1, 2, 2, 2)}, {"mode": "linear"}),
    "group_norm": ({"x": (1, 4, 3), "gamma": (4,), "beta": (4,)}, {"groups": 2}),
    "det": ({"x": (2, 3, 3)}, {}),
    "inverse": ({"x": (2, 3, 3)}, {}),
    "gru": ({"x": _TIME, "w": (1, 6, 4), "r": (1, 6, 2), "bias": (1, 12), "h0": (1, 2, 2)}, {}),
    "lstm": (
        {
            **{"x": _TIME, "w": (1, 8, 4), "r": (1, 8, 2), "bias": (1, 16), "h0": (1, 2, 2)},
            **{"c0": (1, 2, 2), "peephole": (1, 6), "lengths": (2,)},
        },
        {},
    ),
    "matmul_integer": ({"a": (2, 3), "b": (3, 2)}, {}),
    "rotary": ({"x": (1, 2, 3, 4), "cos": (1, 3, 2), "sin": (1, 3, 2)}, {}),
    "rnn": ({"x": _TIME, "w": (1, 2, 4), "r": (1, 2, 2), "bias": (1, 4), "h0": (1, 2, 2)}, {}),
    "max_unpool": ({"x": (1, 1, 2, 2), "places": (1, 1, 2, 2)}, {"size": (4, 4)}),
}
"""Ops whose parts must fit one another: the shapes of their operands, and attributes."""

__all__ = ["APART", "feed"]
