"""Forms of convolutions and products, by name: what decides which kernel a runtime takes, and is no
attribute.

A rule speaks of one by `when = {form = "..."}`; a layer may have several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.types import QuantType, TensorType


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution as forms look at it; weights are [out, in / groups, ...]."""

    op: str
    weights: tuple[int, ...]
    sizes: tuple[int | None, ...]
    """Of the data, without images and channels, of linear layers without terms; None where one is
    not known."""
    quant: QuantType | None
    """The map of the weights."""
    data: QuantType | None
    """The map of the data."""
    attrs: Mapping[str, Attr]
    result: QuantType | None = None
    """The map of the result, of sums alone and of what is joined."""
    joined: tuple[QuantType | None, ...] = ()
    """The maps of all that concat joins."""
    biased: bool = False
    """Whether a linear layer adds something to its sums."""

    @property
    def rank(self) -> int:
        """How many axes windows have."""
        return len(self.weights) - 2

    @property
    def kernel(self) -> tuple[int, ...]:
        """The window."""
        return self.weights[2:]

    @property
    def groups(self) -> int:
        """Into how many parts the channels fall."""
        groups = self.attrs.get("groups", 1)
        return groups if isinstance(groups, int) else 1

    def ints(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list."""
        value = self.attrs.get(name)
        return tuple(int(v) for v in value) if isinstance(value, tuple) else ()  # type: ignore[arg-type]

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """What is put before and after, axis by axis."""
        pad, n = self.ints("pad"), self.rank
        return tuple((pad[i], pad[i + n]) for i in range(n))


def _depthwise(of: Layer) -> bool:
    out, each = of.weights[:2]
    return (
        of.op in ("conv2d", "conv3d")
        and each == 1
        and of.groups % 8 == 0
        and out in (of.groups, 2 * of.groups)
        and set(of.kernel) <= {3, 5, 7}
        and of.kernel[-2] == of.kernel[-1]
        and set(of.ints("stride")) <= {1, 2}
        and set(of.ints("dilation")) <= {1}
        and all(pads == ((k - 1) // 2,) * 2 for pads, k in zip(of.pads, of.kernel, strict=True))
    )


def _blocked(of: QuantType | None) -> bool:
    return of is not None and of.grain is not None and of.axis is None


def _shifted(of: Layer) -> bool:
    if of.quant is None or of.quant.zero is None or of.quant.dynamic:
        return False
    return bool(np.any(np.asarray(of.quant.zeros())))


def _padded_high(of: Layer) -> bool:
    if of.data is None or of.data.zero is None or of.data.dynamic:
        return False
    return any(map(any, of.pads)) and bool(np.any(np.asarray(of.data.zeros()) > 128))


def _left_over(of: Layer) -> bool:
    out, each = of.weights[:2]
    together = {2: 8, 4: 4}.get(each, 1)
    return (
        of.op in ("conv2d", "conv3d")
        and out == each * of.groups
        and of.groups > together
        and of.groups % together > 0
        and set(of.kernel) == {3}
        and set(of.pads) == {(1, 1)}
        and set(of.ints("dilation")) == {1}
        and of.ints("stride")[-2:] in ((1, 1), (2, 2))
    )


def _scattered(of: Layer) -> bool:
    into, outof = of.weights[:2]
    return (
        of.op == "conv_transpose2d"
        and of.groups == 1
        and into % 8 == outof % 8 == 0
        and of.kernel[0] == 2
        and of.kernel[1] <= 6
        and set(of.ints("stride")) <= {1, 2}
        and set(of.ints("dilation")) == {1}
        and not any(map(any, of.pads))
    )


def _short(of: Layer) -> bool:
    return any(s.count is not None and s.count < s.pads[0] for s in _sides(of))


def _past_edges(of: Layer) -> bool:
    """Whether some window holds nothing but padding."""
    return any(side.beyond for side in _sides(of))


_EARLY = 1 << 16


@dataclass(frozen=True, slots=True)
class _Side:
    """One axis of the windows."""

    taps: int
    pads: tuple[int, int]
    stride: int
    dilation: int
    size: int | None

    @property
    def count(self) -> int | None:
        """How many windows there are along it."""
        if self.size is None:
            return None
        room = self.size + sum(self.pads) - (self.taps - 1) * self.dilation - 1
        return max(room // self.stride + 1, 0)

    @property
    def beyond(self) -> bool:
        """Whether no tap of some window meets data."""
        if self.count is None or self.size is None:
            return max(self.pads) > (self.taps - 1) * self.dilation
        before, reach = self.pads[0], (self.taps - 1) * self.dilation
        if self.count == 0:
            return False
        if before > reach or (self.count - 1) * self.stride - before >= self.size:
            return True
        if self.dilation <= self.size:
            return False
        # Data fit between two taps: the first windows, which start before them, are looked at.
        early = min(self.count, -(-before // self.stride), _EARLY)
        first_in = (np.arange(early) * self.stride - before) % self.dilation
        return bool(np.any(first_in >= self.size))


def _sides(of: Layer) -> list[_Side]:
    steps = (of.ints("stride"), of.ints("dilation"))
    return [_Side(*side) for side in zip(of.kernel, of.pads, *steps, of.sizes, strict=True)]


def _one_slice(of: Layer) -> bool:
    return of.op == "conv3d" and of.sizes[0] in (1, None) and any(of.pads[0])


def _one_column(of: Layer) -> bool:
    if of.op not in ("conv2d", "conv3d") or of.ints("stride")[-1] < 2:
        return False
    sides = _sides(of)
    if sides[-1].count not in (1, None):
        return False
    rows = sides[0].count
    tall = rows is None or rows >= 5 or max(of.ints("dilation")) > 1
    apart = of.weights[:2] == (of.groups, 1)
    return of.op == "conv3d" or (of.kernel[-1] > 1 and tall and not apart)


def _same_unpadded(of: Layer) -> bool:
    """Whether padding may be said by SAME, and leaves some rows or columns unread."""
    if of.op != "conv2d" or max(of.kernel) == 1:
        return False
    unread = False
    for side in _sides(of):
        reach = (side.taps - 1) * side.dilation + 1
        if side.size is None:
            unread |= side.stride > reach and not any(side.pads)
            continue
        needed = (-(-side.size // side.stride) - 1) * side.stride + reach - side.size
        total = max(needed, 0)
        if side.pads != (total // 2, total - total // 2):
            return False
        unread |= needed < 0
    return unread


_TERMS = 384


def _in_turn(of: Layer) -> bool:
    rows, terms = of.sizes[1:]
    turned = of.attrs.get("trans_a") or of.attrs.get("trans_b")
    return not turned and rows not in (0, 1, None) and terms is not None and terms <= _TERMS


def _small(of: Layer) -> bool:
    """Whether a linear layer of known rows is no work for tiles."""
    if of.op != "linear" or None in of.sizes or 0 in of.weights:
        return False
    count, terms = of.weights
    rows = int(np.prod([size or 0 for size in of.sizes], dtype=np.int64))
    return terms <= 16 or (rows == 1 and terms == 256) or (rows <= 32 and rows * count <= 256)


_SUMS = frozenset({"add", "sub"})


def _far(of: Layer) -> bool:
    """Whether an operand's scale is below 1/1024 of the result's, in float32."""
    scales = []
    for quant in (of.result, of.data, of.quant):
        if quant is None or quant.scale is None or quant.grain is not None:
            return False
        scales.append(quant.scales().astype(np.float32))
    with np.errstate(all="ignore"):
        return bool(min(scales[1] / scales[0], scales[2] / scales[0]) < 2.0**-10)


def _one_map(of: Layer) -> bool:
    result = of.result
    return result is not None and all(q is not None and q.same_map(result) for q in of.joined)


def holds_ranges(result: QuantType | None, joined: Iterable[QuantType | None]) -> bool:
    """Whether a result's range reaches as far as those of all operands."""
    made = _range(result)
    parts = [_range(one) for one in joined]
    return made is not None and all(
        one is not None and made[0] <= one[0] and one[1] <= made[1] for one in parts
    )


def _range(quant: QuantType | None) -> tuple[np.float32, np.float32] | None:
    """What a type of one scale declares, else what its ends mean."""
    if quant is None or quant.scale is None or quant.grain is not None or quant.dynamic:
        return None
    if not quant.storage.is_integer:
        return None
    if quant.declared is not None and isinstance(quant.declared.low, tuple):
        assert isinstance(quant.declared.high, tuple)
        return np.float32(quant.declared.low[0]), np.float32(quant.declared.high[0])
    zero, scale = quant.zeros().astype(np.float64), quant.scales()
    low, high = ((end - zero) * scale for end in (quant.low, quant.high))
    return np.float32(low), np.float32(high)


@dataclass(frozen=True, slots=True)
class Form:
    """One of them."""

    said: str
    has: Callable[[Layer], bool]
    ops: tuple[str, ...]
    """The ops that can have it."""


_PLAIN = ("conv1d", "conv2d", "conv3d")
_CONVS = (*_PLAIN, "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


FORMS: Mapping[str, Form] = {
    "depthwise": Form(
        "conv2d or conv3d in as many groups as channels, a multiple of 8, with one result of each "
        "or two; 3, 5 or 7 taps along each axis, as many along the last two, half of them "
        "beyond each edge; strides 1 or 2, no dilation: what fbgemm has kernels of its own for",
        _depthwise,
        ("conv2d", "conv3d"),
    ),
    "volumes_apart": Form(
        "conv3d of 3 taps along each axis in as many groups as channels, two or more, with one "
        "result of each: what qnnpack has a kernel of its own for",
        lambda of: of.op == "conv3d" and of.weights == (of.groups, 1, 3, 3, 3) and of.groups > 1,
        ("conv3d",),
    ),
    "beyond_onednn": Form(
        "more than 100 groups, or weights with a zero point that is not 0: what torch's engine x86 "
        "does not ask oneDNN for",
        lambda of: of.groups > 100 or _shifted(of),
        _CONVS,
    ),
    "groups_left_over": Form(
        "conv2d or conv3d whose groups have 2 channels, or 4, and as many results, 3 taps along "
        "each axis, one beyond each edge, no dilation and both last strides 1 or 2: more than 8 "
        "groups, or 4, and no multiple of that: fbgemm computes 8 at a time, or 4, and beyond "
        "its memory",
        _left_over,
        ("conv2d", "conv3d"),
    ),
    "scattered_rows": Form(
        "conv_transpose2d of one group, channels in and out multiples of 8, 2 rows of up to 6 "
        "taps, strides 1 or 2, no padding, no dilation: fbgemm has a kernel of its own for it, "
        "whose sums are wrong but of one image in steps of 1",
        _scattered,
        ("conv_transpose2d",),
    ),
    "short_result": Form(
        "a result that is shorter along some axis than the padding before it",
        _short,
        _CONVS,
    ),
    "onednn_amiss": Form(
        "no transposed one, of which some window holds padding alone, or a conv3d of one slice "
        "with padding before or after it: oneDNN sums what lies beyond the data",
        lambda of: not of.op.startswith("conv_transpose") and (_past_edges(of) or _one_slice(of)),
        _PLAIN,
    ),
    "padded_high": Form(
        "padding, and a zero point of the data above 128, with which two weights of codes at their "
        "ends leave 16 bits",
        _padded_high,
        _CONVS,
    ),
    "same_unpadded": Form(
        "conv2d by more than one tap, padded as a file may say by SAME, with a stride that leaves "
        "rows or columns unread: of XNNPACK's in TensorFlow 2.21",
        _same_unpadded,
        ("conv2d",),
    ),
    "one_column": Form(
        "a result of width 1, in steps of 2 or more: conv3d, or conv2d of 2 taps and more along "
        "its width that has 5 rows and more or a dilation, no result with a channel of its own",
        _one_column,
        ("conv2d", "conv3d"),
    ),
    "three_axes": Form(
        "matmul of two operands of three axes each: what Intel's extension for PyTorch computes in "
        "reals",
        lambda of: of.op == "matmul",
        ("matmul",),
    ),
    "in_turn": Form(
        "matmul of three axes of 2 rows and more and of 384 terms at most, neither operand "
        "transposed: what Intel's library adds up one term after the other",
        lambda of: of.op == "matmul" and _in_turn(of),
        ("matmul",),
    ),
    "far_operand": Form(
        "add or sub of which an operand has a scale below 1/1024 of the result's: what XNNPACK "
        "leaves to other kernels",
        lambda of: of.op in _SUMS and _far(of),
        ("add", "sub"),
    ),
    "steps_beyond_taps": Form(
        "conv_transpose2d or conv_transpose3d whose stride exceeds its taps along some axis, so "
        "that no element of the data reaches some results: oneDNN 3.13 gets these wrong",
        lambda of: (
            of.op in ("conv_transpose2d", "conv_transpose3d")
            and any(s > k for s, k in zip(of.ints("stride"), of.kernel, strict=False))
        ),
        ("conv_transpose2d", "conv_transpose3d"),
    ),
    "steps_beyond_window": Form(
        "max_pool2d whose stride exceeds its window along some axis: what XNNPACK leaves to other "
        "kernels",
        lambda of: (
            of.op == "max_pool2d"
            and any(s > k for s, k in zip(of.ints("stride"), of.ints("kernel"), strict=False))
        ),
        ("max_pool2d",),
    ),
    "one_map": Form(
        "concat of operands that all have the result's map",
        _one_map,
        ("concat",),
    ),
    "held_ranges": Form(
        "concat whose result has a range that reaches as far as that of each operand, as runtimes "
        "have it that make the range themselves",
        lambda of: holds_ranges(of.result, of.joined),
        ("concat",),
    ),
    "weight_blocks": Form(
        "linear whose weights have scales in blocks of terms",
        lambda of: of.op == "linear" and _blocked(of.quant),
        ("linear",),
    ),
    "odd_rows": Form(
        "linear whose rows of weights have an odd length: of four-bit weights, what XNNPACK leaves "
        "to other kernels",
        lambda of: of.op == "linear" and of.weights[-1] % 2 == 1,
        ("linear",),
    ),
    "grouped": Form(
        "a convolution in two groups or more",
        lambda of: of.op.startswith("conv") and of.groups > 1,
        _CONVS,
    ),
    "single_channels": Form(
        "a convolution, no transposed one, of one channel a group",
        lambda of: of.op in ("conv1d", "conv2d", "conv3d") and of.weights[1] == 1,
        _PLAIN,
    ),
    "unbiased": Form(
        "linear without a bias: of 16-bit codes, what TensorFlow Lite has another kernel for",
        lambda of: of.op == "linear" and not of.biased,
        ("linear",),
    ),
    "known_rows": Form(
        "linear of a number of rows that is known",
        lambda of: of.op == "linear" and None not in of.sizes and min(of.weights) > 0,
        ("linear",),
    ),
    "small_product": Form(
        "linear of known rows, of 16 terms at most, of one row of 256 terms, or of 32 rows at most "
        "with no more than 256 results: what oneDNN leaves to kernels for VNNI where there is AMX",
        _small,
        ("linear",),
    ),
}
"""The forms that rules may name; a layer may have several."""


def forms_of(
    op: str,
    types: Mapping[str, TensorType],
    attrs: Mapping[str, Attr],
    result: QuantType | None = None,
) -> tuple[str, ...]:
    """The forms that a layer has; none for what is no convolution of known weights, nor a product
    of three axes."""
    if op in _OTHERS:
        return _other(op, types, attrs, result)
    if op == "matmul":
        return _product(types, attrs)
    if not op.startswith("conv") or not {"x", "w"} <= types.keys() or "stride" not in attrs:
        return ()
    w, x = types["w"], types["x"]
    known = tuple(d for d in w.shape if isinstance(d, int))
    if len(known) < len(w.shape) or x.rank != w.rank or w.rank < 3:
        return ()
    inner = x.shape[1:-1] if attrs.get("layout") == "NHWC" else x.shape[2:]
    sizes = tuple(d if isinstance(d, int) else None for d in inner)
    layer = Layer(op, known, sizes, w.quant, x.quant, attrs)
    return tuple(name for name, form in FORMS.items() if form.has(layer))


_OTHERS: Mapping[str, tuple[str, str]] = {
    "add": ("a", "b"),
    "sub": ("a", "b"),
    "max_pool2d": ("x", "x"),
    "linear": ("x", "w"),
    "concat": ("xs.0", "xs.0"),
}
"""Other ops that have forms, and the operands that decide."""
_OTHER_FORMS = (
    "far_operand",
    "steps_beyond_window",
    "weight_blocks",
    "odd_rows",
    "unbiased",
    "known_rows",
    "small_product",
)


def _other(
    op: str, types: Mapping[str, TensorType], attrs: Mapping[str, Attr], result: QuantType | None
) -> tuple[str, ...]:
    first, second = (types.get(slot) for slot in _OTHERS[op])
    if first is None or second is None:
        return ()
    sizes = tuple(d if isinstance(d, int) else 0 for d in second.shape)
    rows = tuple(d if isinstance(d, int) else None for d in first.shape[:-1])
    layer = Layer(op, sizes, rows, second.quant, first.quant, attrs, result, biased="bias" in types)
    if op == "concat":
        joined = tuple(kind.quant for slot, kind in types.items() if slot.startswith("xs."))
        layer = replace(layer, joined=joined)
        return tuple(n for n in ("one_map", "held_ranges") if FORMS[n].has(layer))
    return tuple(name for name in _OTHER_FORMS if FORMS[name].has(layer))


def _product(types: Mapping[str, TensorType], attrs: Mapping[str, Attr]) -> tuple[str, ...]:
    if not {"a", "b"} <= types.keys() or types["a"].rank != 3 or types["b"].rank != 3:
        return ()
    sizes = tuple(d if isinstance(d, int) else None for d in types["a"].shape)
    layer = Layer("matmul", (), sizes, types["b"].quant, types["a"].quant, attrs)
    return tuple(name for name in ("three_axes", "in_turn") if FORMS[name].has(layer))
