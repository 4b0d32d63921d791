"""Recurrent layers, step by step in float64; results are rounded once.

`inner` holds what rounds a value at a place within a step, by the names of the op's inner slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.ops.recurrent import ACTIVATIONS, DEFAULT_ACTIVATIONS, DIRECTIONS, GATE_COUNTS
from qir.records import record
from qir.reference import activations as by_element
from qir.reference.elementwise import sigmoid
from qir.reference.operands import Array, Float64Array, require_floats, require_rank, round_to_dtype
from qir.reference.product import product

Places: TypeAlias = Mapping[str, Callable[[Float64Array], Float64Array]]
State: TypeAlias = tuple[Float64Array, ...]
Counts: TypeAlias = NDArray[np.int64]
Function: TypeAlias = Callable[[Float64Array], Float64Array]
NOWHERE: Places = {}

_ACTIVATION_FUNCTIONS: dict[str, Callable[[Float64Array, float, float], Array]] = {
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


@record
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

    def functions(self, direction_index: int) -> list[Function]:
        """Returns the activations of one direction; raises OpError where they are not as many as it
        takes."""
        per_direction, directions = len(DEFAULT_ACTIVATIONS[self.op]), len(self.ways)
        names = list(self.activations) or list(DEFAULT_ACTIVATIONS[self.op]) * directions
        if len(names) != per_direction * directions or any(n not in ACTIVATIONS for n in names):
            raise OpError(
                f"{self.op}: activations {', '.join(names)} are not {per_direction} a direction"
            )
        return [
            self._function(i, names[i])
            for i in range(direction_index * per_direction, (direction_index + 1) * per_direction)
        ]

    def _function(self, index: int, name: str) -> Function:
        # Without a list each activation has ONNX's default.
        defaults = ACTIVATIONS[name]
        a = self.alpha[index] if self.alpha else defaults[0] or 0.0
        b = self.beta[index] if self.beta else defaults[1] or 0.0
        function = _ACTIVATION_FUNCTIONS[name]
        return lambda x: np.asarray(function(x, a, b), np.float64)

    def at(self, place: str, x: Float64Array) -> Float64Array:
        """Returns a value as it stands at a place, rounded if the node asks for that."""
        rounding = self.inner.get(place)
        return x if rounding is None else rounding(x)

    def gated(self, gate: str, function: Function, total: Float64Array) -> Float64Array:
        """Returns a gate: its sum rounded, clipped, put through its activation, and rounded
        again."""
        total = self.at(f"gate.{gate}", total)
        clipped = total if self.clip is None else np.clip(total, -self.clip, self.clip)
        return self.at(f"act.{gate}", function(clipped))


class CellStep(Protocol):
    """One direction's step: from the product of x with w, its bias added, and the state."""

    def __call__(self, given: Float64Array, state: State) -> State: ...


@record
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


def _rnn_cell(weights: RecurrentWeights) -> CellStep:
    (f,) = weights.layer.functions(weights.way)

    def step(given: Float64Array, state: State) -> State:
        total = given + weights.product(weights.layer.at("h", state[0]))
        return (weights.layer.gated("h", f, total),)

    return step


def _lstm_cell(weights: RecurrentWeights, *, input_forget: bool) -> CellStep:
    f, g, cell_activation = weights.layer.functions(weights.way)
    layer = weights.layer

    def step(given: Float64Array, state: State) -> State:
        h, c = state
        # Gates are in ONNX's order: input, output, forget, cell.
        i, o, forget, new = weights.split(given + weights.product(layer.at("h", h)))
        if weights.peephole:
            # Peepholes of i and f look at the old cell, that of o at the new one.
            i, forget = i + weights.peephole[0] * c, forget + weights.peephole[2] * c
        i = layer.gated("i", f, i)
        # Coupled gates: what is not written is kept.
        kept = layer.at("act.f", 1 - i) if input_forget else layer.gated("f", f, forget)
        c = layer.at("c", kept * c + i * layer.gated("c", g, new))
        if weights.peephole:
            o = o + weights.peephole[1] * c
        made = layer.at("hidden", layer.gated("o", f, o) * cell_activation(c))
        return (made if weights.proj is None else _product(made, weights.proj), c)

    return step


def _gru_cell(weights: RecurrentWeights, *, before_reset: bool) -> CellStep:
    f, g = weights.layer.functions(weights.way)
    layer = weights.layer

    def step(given: Float64Array, state: State) -> State:
        (h,) = state
        read = layer.at("h", h)
        z, r, new = weights.split(given)
        to_z, to_r = np.split(weights.product(read, slice(0, 2)), 2, axis=1)
        z, r = layer.gated("z", f, z + to_z), layer.gated("r", f, r + to_r)
        # cuDNN and torch multiply r with the finished product; the original GRU resets h before it.
        if before_reset:
            new = new + r * weights.product(read, slice(2, 3))
        else:
            new = new + weights.product(r * read, slice(2, 3))
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
    initial = {f"{name}0": data for name, data in zip("hc", start, strict=False)}
    require_floats(layer.op, x=x, w=w, r=r, bias=bias, peephole=peephole, proj=proj, **initial)
    for slot, data in (("x", x), ("w", w), ("r", r)):
        require_rank(layer.op, slot, data, 3)
    # Time first inside, whatever the layout: each step is then a matrix.
    xs = np.swapaxes(_as_float64(x), 0, 1) if layer.batch_first else _as_float64(x)
    hidden, out = _check(layer, xs, w, r, bias, peephole, proj)
    steps, batch, input_size = xs.shape
    counts = _counts(layer.op, lengths, steps, batch)
    sizes = zip("hc", start, (out, hidden), strict=False)
    states = [_initial_state(layer, f"{name}0", data, batch, size) for name, data, size in sizes]
    y_steps, last_states = np.zeros((steps, len(layer.ways), batch, out)), list[State]()
    for index, is_reversed in enumerate(layer.ways):
        weights, input_bias = _weights(layer, index, r, bias, peephole, proj)
        # The products of all steps with w at once: they do not depend on the state.
        input_products = (
            _product(xs.reshape(steps * batch, input_size), _as_float64(w)[index].T) + input_bias
        )
        state: State = tuple(s[index] for s in states)
        parts = input_products.reshape(steps, batch, r.shape[1])
        last_states.append(
            _run_steps(
                make_cell(weights), parts, state, counts, y_steps[:, index], is_reversed=is_reversed
            )
        )
    y = np.moveaxis(y_steps, 2, 0) if layer.batch_first else y_steps
    last = [
        np.stack(parts, 1 if layer.batch_first else 0) for parts in zip(*last_states, strict=True)
    ]
    # Rounded once at the end: between steps the state is a float64.
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
    """Returns the sizes of the cell state and of its output.

    Raises OpError for operands that do not fit.
    """
    op, ways, rows = layer.op, len(layer.ways), w.shape[1]
    hidden = rows // len(GATE_COUNTS[op])
    out = hidden if proj is None else proj.shape[1]
    _check_shape(op, "w", w, ways, len(GATE_COUNTS[op]) * hidden, xs.shape[2])
    _check_shape(op, "r", r, ways, rows, out)
    _check_shape(op, "proj", proj, ways, out, hidden)
    _check_shape(op, "peephole", peephole, ways, 3 * hidden)
    # A bias of half the length is that of the input product alone.
    if bias is None or bias.shape != (ways, rows):
        _check_shape(op, "bias", bias, ways, 2 * rows)
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
    # ONNX keeps two biases in a row: that of x @ w, then that of h @ r.
    biases = np.zeros(2 * rows)
    if bias is not None:
        biases[: bias.shape[1]] = _as_float64(bias)[way]
    weights = RecurrentWeights(
        layer,
        way,
        _as_float64(r)[way].T,
        biases[rows:],
        None if proj is None else _as_float64(proj)[way].T,
        () if peephole is None else tuple(np.split(_as_float64(peephole)[way], 3)),
    )
    return weights, biases[:rows]


def _run_steps(
    cell: CellStep,
    input_products: Float64Array,
    state: State,
    counts: Counts,
    y_steps: Float64Array,
    *,
    is_reversed: bool,
) -> State:
    """Runs one direction; writes what each step made, gives the last state of each sequence."""
    batch_index = np.arange(input_products.shape[1])
    for k in range(len(input_products)):
        is_active = k < counts
        # A reversed sequence begins at its own last step.
        positions = (
            np.where(is_active, counts - 1 - k, 0) if is_reversed else np.full(len(batch_index), k)
        )
        new_state = cell(input_products[positions, batch_index], state)
        # A sequence that has ended keeps its state.
        state = tuple(
            np.where(is_active[:, None], n, s) for n, s in zip(new_state, state, strict=True)
        )
        y_steps[positions[is_active], batch_index[is_active]] = state[0][is_active]
    # A sequence without steps has no last state: zeros, and not what it would have begun with.
    return tuple(np.where(counts[:, None] > 0, s, 0.0) for s in state)


def _as_float64(x: Array) -> Float64Array:
    return x.astype(np.float64, copy=False)


def _product(a: Float64Array, b: Float64Array) -> Float64Array:
    return _as_float64(product(a, b))


def _check_shape(op: str, slot: str, data: Array | None, *expected: int) -> None:
    if data is not None and data.shape != expected:
        raise OpError(f"{op}: {slot} is {list(data.shape)}, it should be {list(expected)}")


def _initial_state(
    layer: RecurrentLayer, slot: str, data: Array | None, batch: int, size: int
) -> Float64Array:
    """Returns the state before the first step, [directions, batch, size]."""
    ways = len(layer.ways)
    if data is None:
        return np.zeros((ways, batch, size))
    axes = (1, ways) if layer.batch_first else (ways, 1)
    if batch != 1 and data.shape == (*axes, size):
        raise OpError(f"{layer.op}: {slot} is of one sample, x of {batch}: use `batch=1`")
    _check_shape(
        layer.op, slot, data, *((batch, ways, size) if layer.batch_first else (ways, batch, size))
    )
    return np.swapaxes(_as_float64(data), 0, 1) if layer.batch_first else _as_float64(data)


def _counts(op: str, lengths: Array | None, steps: int, batch: int) -> Counts:
    """Returns how many steps each sequence has."""
    if lengths is None:
        return np.full(batch, steps)
    if lengths.dtype.kind not in "iu":
        raise OpError(f"{op}: lengths are {lengths.dtype}, they must be whole numbers")
    _check_shape(op, "lengths", lengths, batch)
    counts = lengths.astype(np.int64)
    if counts.size and not 0 <= counts.min() <= counts.max() <= steps:
        ends = f"{counts.min()}..{counts.max()}"
        raise OpError(f"{op}: lengths {ends}, they must be in 0..{steps}")
    return counts


FUNCTIONS: dict[str, Callable[..., tuple[Array, ...]]] = {"rnn": rnn, "lstm": lstm, "gru": gru}
