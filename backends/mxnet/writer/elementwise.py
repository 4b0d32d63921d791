"""Arithmetic, comparisons, functions and activations that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

from qir.ir.node import Node, Value

from .symbol import Entry
from .writer import TYPE_NAMES, OpWriter, SymbolWriter, float_attr, scalar_constant

Step = Callable[[SymbolWriter, Node, Entry], Entry]


def _unary_op(op: str, **attrs: object) -> OpWriter:
    return lambda writer, node: writer.add_result(node, op, [writer.operand(node)], attrs)


def _sequence(*steps: tuple[str, dict[str, object]]) -> OpWriter:
    """Returns the row of operators one after the other."""

    def write(writer: SymbolWriter, node: Node) -> Entry:
        value = writer.operand(node)
        for op, attrs in steps[:-1]:
            value = writer.add_intermediate(node, op, [value], attrs)
        return writer.add_result(node, steps[-1][0], [value], steps[-1][1])

    return write


def write_binary(
    writer: SymbolWriter, node: Node, op: str, a: Value, b: Value, emit: Callable[..., Entry]
) -> Entry:
    """Writes an op of two operands: by a number, of equal shapes, or one that broadcasts."""
    left, right = scalar_constant(a), scalar_constant(b)
    wide = (b.type.rank <= a.type.rank, a.type.rank <= b.type.rank)
    scalar, swapped = _SCALAR_OPERATORS.get(op, ("", ""))
    if right is not None and a.constant is None and scalar and wide[0]:
        return emit(node, scalar, [writer.entry(a)], {"scalar": right})
    if left is not None and b.constant is None and swapped and wide[1]:
        return emit(node, swapped, [writer.entry(b)], {"scalar": left})
    same = a.type.shape == b.type.shape and all(isinstance(s, int) for s in a.type.shape)
    name = f"elemwise_{op}" if same and op in _ELEMENTWISE else f"broadcast_{_BROADCAST_NAMES[op]}"
    return emit(node, name, [writer.entry(a), writer.entry(b)])


def _binary_op(op: str) -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        a, b = node.operands["a"], node.operands["b"]
        return write_binary(writer, node, op, a, b, writer.add_result)

    return write


def _comparison(op: str) -> OpWriter:
    """Returns the row of a comparison, whose truth values are floats."""

    def write(writer: SymbolWriter, node: Node) -> Entry:
        a, b = node.operands["a"], node.operands["b"]
        if TYPE_NAMES[str(a.type.dtype)] == "float32":
            return write_binary(writer, node, op, a, b, writer.add_result)
        truth = write_binary(writer, node, op, a, b, writer.add_intermediate)
        return writer.add_result(node, "Cast", [truth], {"dtype": "float32"})

    return write


def _not(writer: SymbolWriter, node: Node) -> Entry:
    return writer.add_result(node, "_equal_scalar", [writer.operand(node)], {"scalar": 0.0})


def _mod(writer: SymbolWriter, node: Node) -> Entry:
    if node.attrs["fmod"]:
        raise writer.refuse(node, "MXNet's mod has the sign of b, fmod that of a")
    return write_binary(
        writer, node, "mod", node.operands["a"], node.operands["b"], writer.add_result
    )


def _floor_div(writer: SymbolWriter, node: Node) -> Entry:
    a, b = node.operands["a"], node.operands["b"]
    quotient = write_binary(writer, node, "div", a, b, writer.add_intermediate)
    return writer.add_result(node, "floor", [quotient])


def _squared_difference(writer: SymbolWriter, node: Node) -> Entry:
    difference = write_binary(
        writer, node, "sub", node.operands["a"], node.operands["b"], writer.add_intermediate
    )
    return writer.add_result(node, "square", [difference])


def _left_fold(op: str) -> OpWriter:
    """Returns the row of an op of any number of operands."""

    def write(writer: SymbolWriter, node: Node) -> Entry:
        parts = list(node.operands.values())
        if len(parts) == 1:
            return writer.add_result(node, "_copy", [writer.entry(parts[0])])
        if op == "add" and len({p.type.shape for p in parts}) == 1:
            entries = [writer.entry(p) for p in parts]
            return writer.add_result(node, "add_n", entries, {"num_args": len(parts)})
        if len(parts) == 2:
            return write_binary(writer, node, op, parts[0], parts[1], writer.add_result)
        accumulated = write_binary(writer, node, op, parts[0], parts[1], writer.add_intermediate)
        for part in parts[2:-1]:
            accumulated = writer.add_intermediate(
                node, f"broadcast_{_BROADCAST_NAMES[op]}", [accumulated, writer.entry(part)]
            )
        operands = [accumulated, writer.entry(parts[-1])]
        return writer.add_result(node, f"broadcast_{_BROADCAST_NAMES[op]}", operands)

    return write


def _mean(writer: SymbolWriter, node: Node) -> Entry:
    total, *others = (writer.entry(v) for v in node.operands.values())
    for part in others:
        total = writer.add_intermediate(node, "broadcast_add", [total, part])
    return writer.add_result(node, "_div_scalar", [total], {"scalar": float(len(others) + 1)})


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
    scaled_elu = writer.add_intermediate(
        node, "LeakyReLU", [x], {"act_type": "elu", "slope": alpha}
    )
    return writer.add_result(node, "_mul_scalar", [scaled_elu], {"scalar": gamma})


def _celu(writer: SymbolWriter, node: Node) -> Entry:
    alpha = float_attr(node.attrs, "alpha")
    scaled = writer.add_intermediate(node, "_div_scalar", [writer.operand(node)], {"scalar": alpha})
    # celu(x) = alpha * elu(x / alpha)
    scaled = writer.add_intermediate(node, "LeakyReLU", [scaled], {"act_type": "elu", "slope": 1.0})
    return writer.add_result(node, "_mul_scalar", [scaled], {"scalar": alpha})


def _gelu(writer: SymbolWriter, node: Node) -> Entry:
    x = writer.operand(node)
    if node.attrs["approximate"] == "none":
        return writer.add_result(node, "LeakyReLU", [x], {"act_type": "gelu"})
    # 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
    cube = writer.add_intermediate(node, "_power_scalar", [x], {"scalar": 3.0})
    cube = writer.add_intermediate(node, "_mul_scalar", [cube], {"scalar": 0.044715})
    inner = writer.add_intermediate(node, "elemwise_add", [x, cube])
    inner = writer.add_intermediate(
        node, "_mul_scalar", [inner], {"scalar": math.sqrt(2 / math.pi)}
    )
    one_plus_tanh = writer.add_intermediate(
        node, "_plus_scalar", [writer.add_intermediate(node, "tanh", [inner])], {"scalar": 1.0}
    )
    half = writer.add_intermediate(node, "_mul_scalar", [x], {"scalar": 0.5})
    return writer.add_result(node, "elemwise_mul", [half, one_plus_tanh])


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
    floor = writer.add_intermediate(node, "floor", [x])
    fraction = writer.add_intermediate(node, "elemwise_sub", [x, floor])
    tie = writer.add_intermediate(node, "_equal_scalar", [fraction], {"scalar": 0.5})
    odd = writer.add_intermediate(node, "_mod_scalar", [floor], {"scalar": 2.0})
    # A tie below an odd floor is rounded up to the even number above it.
    correction = writer.add_intermediate(node, "elemwise_mul", [tie, odd])
    return writer.add_result(
        node, "elemwise_add", [writer.add_intermediate(node, "rint", [x]), correction]
    )


def _cast(writer: SymbolWriter, node: Node) -> Entry:
    x, to = node.operands["x"], str(node.result.type.dtype)
    if to == "bool":
        operands = [writer.entry(x)]
        if TYPE_NAMES[str(x.type.dtype)] == "float32":
            return writer.add_result(node, "_not_equal_scalar", operands, {"scalar": 0.0})
        truth = writer.add_intermediate(node, "_not_equal_scalar", operands, {"scalar": 0.0})
        return writer.add_result(node, "Cast", [truth], {"dtype": "float32"})
    writer.carrier(node.result.type.dtype, node)
    return writer.add_result(node, "Cast", [writer.entry(x)], {"dtype": TYPE_NAMES[to]})


def _where(writer: SymbolWriter, node: Node) -> Entry:
    shape = node.result.type.shape
    operands = []
    for slot in ("condition", "a", "b"):
        value = node.operands[slot]
        entry = writer.entry(value)
        if value.type.shape != shape:
            entry = broadcast(writer, node, value, entry)
        operands.append(entry)
    return writer.add_result(node, "where", operands)


def broadcast(writer: SymbolWriter, node: Node, value: Value, entry: Entry) -> Entry:
    """Returns a value as large as the result of a node."""
    if not all(isinstance(size, int) for size in node.result.type.shape):
        return _broadcast_like_others(writer, node, value, entry)
    sizes = writer.sizes(node, node.result)
    lead = len(sizes) - max(value.type.rank, 1)
    if lead > 0:
        shape = (*(1,) * lead, *(writer.sizes(node, value) or (1,)))
        entry = writer.add_intermediate(node, "Reshape", [entry], {"shape": shape})
    return writer.add_intermediate(node, "broadcast_to", [entry], {"shape": sizes or (1,)})


def _broadcast_like_others(writer: SymbolWriter, node: Node, value: Value, entry: Entry) -> Entry:
    """Returns a value with axes as long as open ones of other tensors."""
    target_shape, shape = node.result.type.shape, value.type.shape or (1,)
    for _ in range(len(target_shape) - len(shape)):
        entry = writer.add_intermediate(node, "expand_dims", [entry], {"axis": 0})
    shape = (*(1,) * (len(target_shape) - len(shape)), *shape)
    for axis, (size, current) in enumerate(zip(target_shape, shape, strict=True)):
        if size == current:
            continue
        if isinstance(size, int):
            attrs: dict[str, object] = {"axis": axis, "size": size}
            entry = writer.add_intermediate(node, "broadcast_axis", [entry], attrs)
            continue
        like = next((v for v in writer.entries if size in v.type.shape), None)
        if like is None or current != 1:
            writer.size(node, node.result, axis)  # refused: no tensor has this size
            continue
        # An axis that is open in the result is as long as that of another tensor with that symbol.
        attrs = {"lhs_axes": (axis,), "rhs_axes": (like.type.shape.index(size),)}
        entry = writer.add_intermediate(
            node, "broadcast_like", [entry, writer.entries[like]], attrs
        )
    return entry


def _is_nan(writer: SymbolWriter, node: Node) -> Entry:
    x = writer.operand(node)
    return writer.add_result(node, "_not_equal", [x, x])


_BROADCAST_NAMES = {
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
_SCALAR_OPERATORS = {
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
OPS: dict[str, OpWriter] = {
    **{ours: _unary_op(theirs) for ours, theirs in _FUNCTIONS.items()},
    **{ours: _unary_op("Activation", act_type=kind) for ours, kind in _ACTIVATIONS.items()},
    **{op: _binary_op(op) for op in ("add", "sub", "mul", "div", "pow")},
    **{op: _comparison(op) for op in _COMPARISONS},
    "logical_not": _not,
    "mod": _mod,
    "floor_div": _floor_div,
    "squared_difference": _squared_difference,
    "min": _left_fold("min"),
    "max": _left_fold("max"),
    "sum": _left_fold("add"),
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
    "exp2": _unary_op("_rpower_scalar", scalar=2.0),
    "erfc": _sequence(("erf", {}), ("_rminus_scalar", {"scalar": 1.0})),
    "round": _round,
    "cast": _cast,
    "where": _where,
    "is_nan": _is_nan,
    "identity": _unary_op("_copy"),
    "dropout": _unary_op("_copy"),
}
