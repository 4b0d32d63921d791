"""Arithmetic, comparisons, functions and activations that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

from qir.ir.node import Node, Value

from .symbol import Entry
from .writer import TYPE_NAMES, OpWriter, SymbolWriter, float_attr, scalar_constant

Step = Callable[[SymbolWriter, Node, Entry], Entry]


def _unary(op: str, **attrs: object) -> OpWriter:
    return lambda writer, node: writer.add_result(node, op, [writer.operand(node)], attrs)


def _steps(*steps: tuple[str, dict[str, object]]) -> OpWriter:
    """Returns the row of operators one after the other."""

    def write(writer: SymbolWriter, node: Node) -> Entry:
        made = writer.operand(node)
        for op, attrs in steps[:-1]:
            made = writer.add_intermediate(node, op, [made], attrs)
        return writer.add_result(node, steps[-1][0], [made], steps[-1][1])

    return write


def applied(
    writer: SymbolWriter, node: Node, op: str, a: Value, b: Value, emit: Callable[..., Entry]
) -> Entry:
    """Writes an op of two operands: by a number, of equal shapes, or one that broadcasts."""
    left, right = scalar_constant(a), scalar_constant(b)
    wide = (b.type.rank <= a.type.rank, a.type.rank <= b.type.rank)
    scalar, swapped = _SCALARS.get(op, ("", ""))
    if right is not None and a.constant is None and scalar and wide[0]:
        return emit(node, scalar, [writer.entry(a)], {"scalar": right})
    if left is not None and b.constant is None and swapped and wide[1]:
        return emit(node, swapped, [writer.entry(b)], {"scalar": left})
    same = a.type.shape == b.type.shape and all(isinstance(s, int) for s in a.type.shape)
    name = f"elemwise_{op}" if same and op in _ELEMENTWISE else f"broadcast_{_NAMES[op]}"
    return emit(node, name, [writer.entry(a), writer.entry(b)])


def _binary(op: str) -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        a, b = node.operands["a"], node.operands["b"]
        return applied(writer, node, op, a, b, writer.add_result)

    return write


def _compared(op: str) -> OpWriter:
    """Returns the row of a comparison, whose truth values are floats."""

    def write(writer: SymbolWriter, node: Node) -> Entry:
        a, b = node.operands["a"], node.operands["b"]
        if TYPE_NAMES[str(a.type.dtype)] == "float32":
            return applied(writer, node, op, a, b, writer.add_result)
        made = applied(writer, node, op, a, b, writer.add_intermediate)
        return writer.add_result(node, "Cast", [made], {"dtype": "float32"})

    return write


def _not(writer: SymbolWriter, node: Node) -> Entry:
    return writer.add_result(node, "_equal_scalar", [writer.operand(node)], {"scalar": 0.0})


def _mod(writer: SymbolWriter, node: Node) -> Entry:
    if node.attrs["fmod"]:
        raise writer.refuse(node, "MXNet's mod has the sign of b, fmod that of a")
    return applied(writer, node, "mod", node.operands["a"], node.operands["b"], writer.add_result)


def _floor_div(writer: SymbolWriter, node: Node) -> Entry:
    a, b = node.operands["a"], node.operands["b"]
    made = applied(writer, node, "div", a, b, writer.add_intermediate)
    return writer.add_result(node, "floor", [made])


def _squared_difference(writer: SymbolWriter, node: Node) -> Entry:
    made = applied(
        writer, node, "sub", node.operands["a"], node.operands["b"], writer.add_intermediate
    )
    return writer.add_result(node, "square", [made])


def _several(op: str) -> OpWriter:
    """Returns the row of an op of any number of operands."""

    def write(writer: SymbolWriter, node: Node) -> Entry:
        parts = list(node.operands.values())
        if len(parts) == 1:
            return writer.add_result(node, "_copy", [writer.entry(parts[0])])
        if op == "add" and len({p.type.shape for p in parts}) == 1:
            entries = [writer.entry(p) for p in parts]
            return writer.add_result(node, "add_n", entries, {"num_args": len(parts)})
        if len(parts) == 2:
            return applied(writer, node, op, parts[0], parts[1], writer.add_result)
        made = applied(writer, node, op, parts[0], parts[1], writer.add_intermediate)
        for part in parts[2:-1]:
            made = writer.add_intermediate(
                node, f"broadcast_{_NAMES[op]}", [made, writer.entry(part)]
            )
        operands = [made, writer.entry(parts[-1])]
        return writer.add_result(node, f"broadcast_{_NAMES[op]}", operands)

    return write


def _mean(writer: SymbolWriter, node: Node) -> Entry:
    made, *rest = (writer.entry(v) for v in node.operands.values())
    for part in rest:
        made = writer.add_intermediate(node, "broadcast_add", [made, part])
    return writer.add_result(node, "_div_scalar", [made], {"scalar": float(len(rest) + 1)})


def _clip(writer: SymbolWriter, node: Node) -> Entry:
    low, high = node.attrs["min"], node.attrs["max"]
    x = [writer.operand(node)]
    if low is None and high is None:
        return writer.add_result(node, "_copy", x)
    if low is None:
        return writer.add_result(node, "_minimum_scalar", x, {"scalar": high})
    if high is None or math.isinf(float_attr(node.attrs, "max")):
        return writer.add_result(node, "_maximum_scalar", x, {"scalar": low})
    return writer.add_result(node, "clip", x, {"a_min": low, "a_max": high})


def _leaky(kind: str, slope: str = "") -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        attrs = {"act_type": kind} | ({"slope": node.attrs[slope]} if slope else {})
        return writer.add_result(node, "LeakyReLU", [writer.operand(node)], attrs)

    return write


def _prelu(writer: SymbolWriter, node: Node) -> Entry:
    x, slope = node.operands["x"].type, node.operands["slope"]
    data = writer.constant_operand(node, "slope")
    aligned = data.reshape((1,) * max(x.rank - data.ndim, 0) + data.shape)
    if x.rank < 2 or (data.size != 1 and aligned.shape[1] != data.size):
        raise writer.refuse(node, "its slope is not along the channels")
    flat = writer.constant(f"{slope.name}_flat", data.reshape(-1), node)
    return writer.add_result(node, "LeakyReLU", [writer.operand(node), flat], {"act_type": "prelu"})


def _selu(writer: SymbolWriter, node: Node) -> Entry:
    x = writer.operand(node)
    alpha, gamma = (float_attr(node.attrs, n) for n in ("alpha", "gamma"))
    if abs(alpha - 1.6732632) < 1e-6 and abs(gamma - 1.050701) < 1e-6:
        return writer.add_result(node, "LeakyReLU", [x], {"act_type": "selu"})
    made = writer.add_intermediate(node, "LeakyReLU", [x], {"act_type": "elu", "slope": alpha})
    return writer.add_result(node, "_mul_scalar", [made], {"scalar": gamma})


def _celu(writer: SymbolWriter, node: Node) -> Entry:
    alpha = float_attr(node.attrs, "alpha")
    made = writer.add_intermediate(node, "_div_scalar", [writer.operand(node)], {"scalar": alpha})
    made = writer.add_intermediate(node, "LeakyReLU", [made], {"act_type": "elu", "slope": 1.0})
    return writer.add_result(node, "_mul_scalar", [made], {"scalar": alpha})


def _gelu(writer: SymbolWriter, node: Node) -> Entry:
    x = writer.operand(node)
    if node.attrs["approximate"] == "none":
        return writer.add_result(node, "LeakyReLU", [x], {"act_type": "gelu"})
    cube = writer.add_intermediate(node, "_power_scalar", [x], {"scalar": 3.0})
    cube = writer.add_intermediate(node, "_mul_scalar", [cube], {"scalar": 0.044715})
    inner = writer.add_intermediate(node, "elemwise_add", [x, cube])
    inner = writer.add_intermediate(
        node, "_mul_scalar", [inner], {"scalar": math.sqrt(2 / math.pi)}
    )
    above = writer.add_intermediate(
        node, "_plus_scalar", [writer.add_intermediate(node, "tanh", [inner])], {"scalar": 1.0}
    )
    half = writer.add_intermediate(node, "_mul_scalar", [x], {"scalar": 0.5})
    return writer.add_result(node, "elemwise_mul", [half, above])


def _gated(gate: Step) -> OpWriter:
    """Returns the row of an activation that multiplies its operand by a gate."""

    def write(writer: SymbolWriter, node: Node) -> Entry:
        x = writer.operand(node)
        return writer.add_result(node, "elemwise_mul", [x, gate(writer, node, x)])

    return write


def _silu_gate(writer: SymbolWriter, node: Node, x: Entry) -> Entry:
    alpha = float_attr(node.attrs, "alpha")
    if alpha != 1:
        x = writer.add_intermediate(node, "_mul_scalar", [x], {"scalar": alpha})
    return writer.add_intermediate(node, "sigmoid", [x])


def _hard_gate(writer: SymbolWriter, node: Node, x: Entry) -> Entry:
    return writer.add_intermediate(node, "hard_sigmoid", [x], {"alpha": 1 / 6, "beta": 0.5})


def _above_gate(writer: SymbolWriter, node: Node, x: Entry) -> Entry:
    attrs = {"scalar": node.attrs["alpha"]}
    return writer.add_intermediate(node, "_greater_scalar", [x], attrs)


def _hard_sigmoid(writer: SymbolWriter, node: Node) -> Entry:
    attrs = {n: node.attrs[n] for n in ("alpha", "beta")}
    return writer.add_result(node, "hard_sigmoid", [writer.operand(node)], attrs)


def _tanh_shrink(writer: SymbolWriter, node: Node) -> Entry:
    x = writer.operand(node)
    return writer.add_result(node, "elemwise_sub", [x, writer.add_intermediate(node, "tanh", [x])])


def _round(writer: SymbolWriter, node: Node) -> Entry:
    """Writes a rounding with ties to even: MXNet's rint takes them down."""
    x = writer.operand(node)
    low = writer.add_intermediate(node, "floor", [x])
    rest = writer.add_intermediate(node, "elemwise_sub", [x, low])
    tie = writer.add_intermediate(node, "_equal_scalar", [rest], {"scalar": 0.5})
    odd = writer.add_intermediate(node, "_mod_scalar", [low], {"scalar": 2.0})
    up = writer.add_intermediate(node, "elemwise_mul", [tie, odd])
    return writer.add_result(node, "elemwise_add", [writer.add_intermediate(node, "rint", [x]), up])


def _cast(writer: SymbolWriter, node: Node) -> Entry:
    x, to = node.operands["x"], str(node.result.type.dtype)
    if to == "bool":
        row = [writer.entry(x)]
        if TYPE_NAMES[str(x.type.dtype)] == "float32":
            return writer.add_result(node, "_not_equal_scalar", row, {"scalar": 0.0})
        truth = writer.add_intermediate(node, "_not_equal_scalar", row, {"scalar": 0.0})
        return writer.add_result(node, "Cast", [truth], {"dtype": "float32"})
    writer.carrier(node.result.type.dtype, node)
    return writer.add_result(node, "Cast", [writer.entry(x)], {"dtype": TYPE_NAMES[to]})


def _where(writer: SymbolWriter, node: Node) -> Entry:
    shape = node.result.type.shape
    made = []
    for slot in ("condition", "a", "b"):
        value = node.operands[slot]
        entry = writer.entry(value)
        if value.type.shape != shape:
            entry = wide(writer, node, value, entry)
        made.append(entry)
    return writer.add_result(node, "where", made)


def wide(writer: SymbolWriter, node: Node, value: Value, entry: Entry) -> Entry:
    """Returns a value as large as the result of a node."""
    if not all(isinstance(size, int) for size in node.result.type.shape):
        return _wide_as_others(writer, node, value, entry)
    sizes = writer.sizes(node, node.result)
    lead = len(sizes) - max(value.type.rank, 1)
    if lead > 0:
        shape = (*(1,) * lead, *(writer.sizes(node, value) or (1,)))
        entry = writer.add_intermediate(node, "Reshape", [entry], {"shape": shape})
    return writer.add_intermediate(node, "broadcast_to", [entry], {"shape": sizes or (1,)})


def _wide_as_others(writer: SymbolWriter, node: Node, value: Value, entry: Entry) -> Entry:
    """Returns a value with axes as long as open ones of other tensors."""
    wanted, held = node.result.type.shape, value.type.shape or (1,)
    for _ in range(len(wanted) - len(held)):
        entry = writer.add_intermediate(node, "expand_dims", [entry], {"axis": 0})
    held = (*(1,) * (len(wanted) - len(held)), *held)
    for axis, (size, now) in enumerate(zip(wanted, held, strict=True)):
        if size == now:
            continue
        if isinstance(size, int):
            attrs: dict[str, object] = {"axis": axis, "size": size}
            entry = writer.add_intermediate(node, "broadcast_axis", [entry], attrs)
            continue
        like = next((v for v in writer.entries if size in v.type.shape), None)
        if like is None or now != 1:
            writer.size(node, node.result, axis)  # refused: no tensor has this size
            continue
        attrs = {"lhs_axes": (axis,), "rhs_axes": (like.type.shape.index(size),)}
        entry = writer.add_intermediate(
            node, "broadcast_like", [entry, writer.entries[like]], attrs
        )
    return entry


def _is_nan(writer: SymbolWriter, node: Node) -> Entry:
    x = writer.operand(node)
    return writer.add_result(node, "_not_equal", [x, x])


_NAMES = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "mod": "mod",
    "pow": "power",
    "max": "maximum",
    "min": "minimum",
    "equal": "equal",
    "not_equal": "not_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "less": "lesser",
    "less_equal": "lesser_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}
_COMPARISONS = (
    "equal not_equal greater greater_equal less less_equal logical_and logical_or logical_xor"
).split()
_ELEMENTWISE = frozenset(("add", "sub", "mul", "div"))
_SCALARS = {
    "add": ("_plus_scalar", "_plus_scalar"),
    "sub": ("_minus_scalar", "_rminus_scalar"),
    "mul": ("_mul_scalar", "_mul_scalar"),
    "div": ("_div_scalar", "_rdiv_scalar"),
    "mod": ("_mod_scalar", "_rmod_scalar"),
    "pow": ("_power_scalar", "_rpower_scalar"),
    "max": ("_maximum_scalar", "_maximum_scalar"),
    "min": ("_minimum_scalar", "_minimum_scalar"),
    "equal": ("_equal_scalar", "_equal_scalar"),
    "not_equal": ("_not_equal_scalar", "_not_equal_scalar"),
    "greater": ("_greater_scalar", "_lesser_scalar"),
    "greater_equal": ("_greater_equal_scalar", "_lesser_equal_scalar"),
    "less": ("_lesser_scalar", "_greater_scalar"),
    "less_equal": ("_lesser_equal_scalar", "_greater_equal_scalar"),
}
"""The operator that takes b as a number, and the one that takes a."""
_FUNCTIONS = {
    **{
        name: name
        for name in (
            "abs ceil cos cosh erf exp expm1 floor log log10 log1p log2 reciprocal rsqrt"
            " sign sin sinh sqrt square tan trunc"
        ).split()
    },
    "neg": "negative",
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atanh": "arctanh",
}
_ACTIVATIONS = {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "softplus": "softrelu",
    "softsign": "softsign",
    "log_sigmoid": "log_sigmoid",
    "mish": "mish",
}
ROWS: dict[str, OpWriter] = {
    **{ours: _unary(theirs) for ours, theirs in _FUNCTIONS.items()},
    **{ours: _unary("Activation", act_type=kind) for ours, kind in _ACTIVATIONS.items()},
    **{op: _binary(op) for op in ("add", "sub", "mul", "div", "pow")},
    **{op: _compared(op) for op in _COMPARISONS},
    "logical_not": _not,
    "mod": _mod,
    "floor_div": _floor_div,
    "squared_difference": _squared_difference,
    "min": _several("min"),
    "max": _several("max"),
    "sum": _several("add"),
    "mean": _mean,
    "clip": _clip,
    "leaky_relu": _leaky("leaky", "alpha"),
    "elu": _leaky("elu", "alpha"),
    "prelu": _prelu,
    "selu": _selu,
    "celu": _celu,
    "gelu": _gelu,
    "silu": _gated(_silu_gate),
    "hard_swish": _gated(_hard_gate),
    "thresholded_relu": _gated(_above_gate),
    "hard_sigmoid": _hard_sigmoid,
    "tanh_shrink": _tanh_shrink,
    "exp2": _unary("_rpower_scalar", scalar=2.0),
    "erfc": _steps(("erf", {}), ("_rminus_scalar", {"scalar": 1.0})),
    "round": _round,
    "cast": _cast,
    "where": _where,
    "is_nan": _is_nan,
    "identity": _unary("_copy"),
    "dropout": _unary("_copy"),
}
