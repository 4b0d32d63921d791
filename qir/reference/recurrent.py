"""Recurrent layers, step by step in float64; results are rounded once.

`inner` holds what rounds a value at a place within a step, by the names of the op's inner slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.ops.recurrent import ACTIVATIONS, DEFAULT_ACTIVATIONS, DIRECTIONS, GATE_COUNTS
from qir.reference import activations as by_element
from qir.reference.elementwise import sigmoid
from qir.reference.operands import Array, Float64Array, require_floats, require_rank, round_to_dtype
from qir.reference.product import product

Places: TypeAlias = Mapping[str, Callable[[Float64Array], Float64Array]]
State: TypeAlias = tuple[Float64Array, ...]
Counts: TypeAlias = NDArray[np.int64]
Function: TypeAlias = Callable[[Float64Array], Float64Array]
NOWHERE: Places = {}

_APPLIED: dict[str, Callable[[Float64Array, float, float], Array]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.asarray(np.tanh(x)),
    "sigmoid": lambda x, a, b: sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: by_element.leaky_relu(x, alpha=a),
    "thresholded_relu": lambda x, a, b: np.where(x < a, 0.0, x),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: by_element.hard_sigmoid(x, alpha=a, beta=b),
    "elu": lambda x, a, b: by_element.elu(x, alpha=a),
    "softsign": lambda x, a, b: by_element.FUNCTIONS["softsign"](x),
    "softplus": lambda x, a, b: by_element.FUNCTIONS["softplus"](x),
}


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """What one layer is given next to its weights."""

    op: str
    direction: str
    batch_first: bool
    activations: Sequence[str]
    alpha: Sequence[float]
    beta: Sequence[float]
    clip: float | None
    inner: Places

    @property
    def ways(self) -> tuple[bool, ...]:
        """Whether each direction runs from the end; OpError for one that nobody knows."""
        if self.direction not in DIRECTIONS:
            raise OpError(f"{self.op}: direction {self.direction!r} is none")
        return DIRECTIONS[self.direction]

    def functions(self, way: int) -> list[Function]:
        """Returns the activations of one direction; raises OpError where they are not as many as it
        takes."""
        each, ways = len(DEFAULT_ACTIVATIONS[self.op]), len(self.ways)
        names = list(self.activations) or list(DEFAULT_ACTIVATIONS[self.op]) * ways
        if len(names) != each * ways or any(n not in ACTIVATIONS for n in names):
            raise OpError(f"{self.op}: activations {', '.join(names)} are not {each} a direction")
        return [self._function(i, names[i]) for i in range(way * each, (way + 1) * each)]

    def _function(self, index: int, name: str) -> Function:
        usual = ACTIVATIONS[name]
        a = self.alpha[index] if self.alpha else usual[0] or 0.0
        b = self.beta[index] if self.beta else usual[1] or 0.0
        applied = _APPLIED[name]
        return lambda x: np.asarray(applied(x, a, b), np.float64)

    def at(self, place: str, x: Float64Array) -> Float64Array:
        """Returns the value as it is at a place, rounded where somebody asked for that."""
        rounded = self.inner.get(place)
        return x if rounded is None else rounded(x)

    def gated(self, gate: str, function: Function, total: Float64Array) -> Float64Array:
        """Returns a gate: its sum rounded, clipped, put through its activation, and rounded
        again."""
        total = self.at(f"gate.{gate}", total)
        kept = total if self.clip is None else np.clip(total, -self.clip, self.clip)
        return self.at(f"act.{gate}", function(kept))


class CellStep(Protocol):
    """One direction's step: from the product of x with w, its bias added, and the state."""

    def __call__(self, given: Float64Array, state: State) -> State: ...


@dataclass(frozen=True, slots=True)
class RecurrentWeights:
    """One direction's weights, turned to be multiplied from the right."""

    layer: RecurrentLayer
    way: int
    r: Float64Array
    bias: Float64Array
    proj: Float64Array | None = None
    peephole: tuple[Float64Array, ...] = field(default=())

    def product(self, h: Float64Array, gates: slice = slice(None)) -> Float64Array:
        """Returns what r makes of a state, its bias added, for some of the gates."""
        columns = self._columns(gates)
        return _product(h, self.r[:, columns]) + self.bias[columns]

    def split(self, sums: Float64Array) -> list[Float64Array]:
        """Returns the sums, gate by gate."""
        return np.split(sums, len(GATE_COUNTS[self.layer.op]), axis=1)

    def _columns(self, gates: slice) -> slice:
        hidden = self.r.shape[1] // len(GATE_COUNTS[self.layer.op])
        start, stop, _ = gates.indices(len(GATE_COUNTS[self.layer.op]))
        return slice(start * hidden, stop * hidden)


def _rnn_cell(own: RecurrentWeights) -> CellStep:
    (f,) = own.layer.functions(own.way)

    def step(given: Float64Array, state: State) -> State:
        total = given + own.product(own.layer.at("h", state[0]))
        return (own.layer.gated("h", f, total),)

    return step


def _lstm_cell(own: RecurrentWeights, *, input_forget: bool) -> CellStep:
    f, g, last = own.layer.functions(own.way)
    layer = own.layer

    def step(given: Float64Array, state: State) -> State:
        h, c = state
        i, o, forget, new = own.split(given + own.product(layer.at("h", h)))
        if own.peephole:
            i, forget = i + own.peephole[0] * c, forget + own.peephole[2] * c
        i = layer.gated("i", f, i)
        kept = layer.at("act.f", 1 - i) if input_forget else layer.gated("f", f, forget)
        c = layer.at("c", kept * c + i * layer.gated("c", g, new))
        if own.peephole:
            o = o + own.peephole[1] * c
        made = layer.at("hidden", layer.gated("o", f, o) * last(c))
        return (made if own.proj is None else _product(made, own.proj), c)

    return step


def _gru_cell(own: RecurrentWeights, *, before_reset: bool) -> CellStep:
    f, g = own.layer.functions(own.way)
    layer = own.layer

    def step(given: Float64Array, state: State) -> State:
        (h,) = state
        read = layer.at("h", h)
        z, r, new = own.split(given)
        to_z, to_r = np.split(own.product(read, slice(0, 2)), 2, axis=1)
        z, r = layer.gated("z", f, z + to_z), layer.gated("r", f, r + to_r)
        if before_reset:
            new = new + r * own.product(read, slice(2, 3))
        else:
            new = new + own.product(r * read, slice(2, 3))
        return ((1 - z) * layer.gated("h", g, new) + z * h,)

    return step


@np.errstate(all="ignore")
def rnn(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
    *,
    direction: str = "forward",
    batch_first: bool = False,
    activations: Sequence[str] = (),
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float | None = None,
    inner: Places = NOWHERE,
) -> tuple[Array, ...]:
    """y and the last h of a plain layer; OpError for operands that do not fit."""
    layer = RecurrentLayer("rnn", direction, batch_first, activations, alpha, beta, clip, inner)
    return _run(layer, _rnn_cell, x, w, r, bias, lengths, (h0,))


@np.errstate(all="ignore")
def lstm(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
    c0: Array | None = None,
    peephole: Array | None = None,
    proj: Array | None = None,
    *,
    direction: str = "forward",
    batch_first: bool = False,
    activations: Sequence[str] = (),
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float | None = None,
    input_forget: bool = False,
    inner: Places = NOWHERE,
) -> tuple[Array, ...]:
    """y and the last h and c of a long short-term memory; OpError for operands that do not fit."""
    layer = RecurrentLayer("lstm", direction, batch_first, activations, alpha, beta, clip, inner)

    def cell(own: RecurrentWeights) -> CellStep:
        return _lstm_cell(own, input_forget=input_forget)

    return _run(layer, cell, x, w, r, bias, lengths, (h0, c0), peephole, proj)


@np.errstate(all="ignore")
def gru(
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
    *,
    direction: str = "forward",
    batch_first: bool = False,
    activations: Sequence[str] = (),
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
    inner: Places = NOWHERE,
) -> tuple[Array, ...]:
    """y and the last h of a gated recurrent unit; OpError for operands that do not fit."""
    layer = RecurrentLayer("gru", direction, batch_first, activations, alpha, beta, clip, inner)

    def cell(own: RecurrentWeights) -> CellStep:
        return _gru_cell(own, before_reset=linear_before_reset)

    return _run(layer, cell, x, w, r, bias, lengths, (h0,))


def _run(
    layer: RecurrentLayer,
    make_cell: Callable[[RecurrentWeights], CellStep],
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None,
    lengths: Array | None,
    start: Sequence[Array | None],
    peephole: Array | None = None,
    proj: Array | None = None,
) -> tuple[Array, ...]:
    first = {f"{name}0": data for name, data in zip("hc", start, strict=False)}
    require_floats(layer.op, x=x, w=w, r=r, bias=bias, peephole=peephole, proj=proj, **first)
    for slot, data in (("x", x), ("w", w), ("r", r)):
        require_rank(layer.op, slot, data, 3)
    xs = np.swapaxes(_wide(x), 0, 1) if layer.batch_first else _wide(x)
    hidden, out = _check(layer, xs, w, r, bias, peephole, proj)
    steps, batch, taken = xs.shape
    counts = _counts(layer.op, lengths, steps, batch)
    sizes = zip("hc", start, (out, hidden), strict=False)
    states = [_start(layer, f"{name}0", data, batch, size) for name, data, size in sizes]
    made, ends = np.zeros((steps, len(layer.ways), batch, out)), list[State]()
    for way, back in enumerate(layer.ways):
        own, shift = _weights(layer, way, r, bias, peephole, proj)
        given = _product(xs.reshape(steps * batch, taken), _wide(w)[way].T) + shift
        state: State = tuple(s[way] for s in states)
        parts = given.reshape(steps, batch, r.shape[1])
        ends.append(_stepped(make_cell(own), parts, state, counts, made[:, way], back=back))
    y = np.moveaxis(made, 2, 0) if layer.batch_first else made
    last = [np.stack(parts, 1 if layer.batch_first else 0) for parts in zip(*ends, strict=True)]
    return tuple(np.asarray(round_to_dtype(data, x.dtype), order="C") for data in (y, *last))


def _check(
    layer: RecurrentLayer,
    xs: Float64Array,
    w: Array,
    r: Array,
    bias: Array | None,
    peephole: Array | None,
    proj: Array | None,
) -> tuple[int, int]:
    """How large the cell and what it hands on are; OpError for operands that do not fit."""
    op, ways, rows = layer.op, len(layer.ways), w.shape[1]
    hidden = rows // len(GATE_COUNTS[op])
    out = hidden if proj is None else proj.shape[1]
    _fit(op, "w", w, ways, len(GATE_COUNTS[op]) * hidden, xs.shape[2])
    _fit(op, "r", r, ways, rows, out)
    _fit(op, "proj", proj, ways, out, hidden)
    _fit(op, "peephole", peephole, ways, 3 * hidden)
    if bias is None or bias.shape != (ways, rows):
        _fit(op, "bias", bias, ways, 2 * rows)
    return hidden, out


def _weights(
    layer: RecurrentLayer,
    way: int,
    r: Array,
    bias: Array | None,
    peephole: Array | None,
    proj: Array | None,
) -> tuple[RecurrentWeights, Float64Array]:
    """Returns one direction's weights, and what is added to the product of x with w."""
    rows = r.shape[1]
    both = np.zeros(2 * rows)
    if bias is not None:
        both[: bias.shape[1]] = _wide(bias)[way]
    own = RecurrentWeights(
        layer,
        way,
        _wide(r)[way].T,
        both[rows:],
        None if proj is None else _wide(proj)[way].T,
        () if peephole is None else tuple(np.split(_wide(peephole)[way], 3)),
    )
    return own, both[:rows]


def _stepped(
    cell: CellStep,
    given: Float64Array,
    state: State,
    counts: Counts,
    made: Float64Array,
    *,
    back: bool,
) -> State:
    """Runs one direction; writes what each step made, gives the last state of each sequence."""
    every = np.arange(given.shape[1])
    for k in range(len(given)):
        on = k < counts
        at = np.where(on, counts - 1 - k, 0) if back else np.full(len(every), k)
        new = cell(given[at, every], state)
        state = tuple(np.where(on[:, None], n, s) for n, s in zip(new, state, strict=True))
        made[at[on], every[on]] = state[0][on]
    return tuple(np.where(counts[:, None] > 0, s, 0.0) for s in state)


def _wide(x: Array) -> Float64Array:
    return x.astype(np.float64, copy=False)


def _product(a: Float64Array, b: Float64Array) -> Float64Array:
    return _wide(product(a, b))


def _fit(op: str, slot: str, data: Array | None, *wanted: int) -> None:
    if data is not None and data.shape != wanted:
        raise OpError(f"{op}: {slot} is {list(data.shape)}, it should be {list(wanted)}")


def _start(
    layer: RecurrentLayer, slot: str, data: Array | None, batch: int, size: int
) -> Float64Array:
    """Returns the state before the first step, [directions, batch, size]."""
    ways = len(layer.ways)
    if data is None:
        return np.zeros((ways, batch, size))
    _fit(layer.op, slot, data, *((batch, ways, size) if layer.batch_first else (ways, batch, size)))
    return np.swapaxes(_wide(data), 0, 1) if layer.batch_first else _wide(data)


def _counts(op: str, lengths: Array | None, steps: int, batch: int) -> Counts:
    """Returns how many steps each sequence has."""
    if lengths is None:
        return np.full(batch, steps)
    if lengths.dtype.kind not in "iu":
        raise OpError(f"{op}: lengths are {lengths.dtype}, they must be whole numbers")
    _fit(op, "lengths", lengths, batch)
    counts = lengths.astype(np.int64)
    if counts.size and not 0 <= counts.min() <= counts.max() <= steps:
        ends = f"{counts.min()}..{counts.max()}"
        raise OpError(f"{op}: lengths {ends}, they must be in 0..{steps}")
    return counts


FUNCTIONS: dict[str, Callable[..., tuple[Array, ...]]] = {"rnn": rnn, "lstm": lstm, "gru": gru}
