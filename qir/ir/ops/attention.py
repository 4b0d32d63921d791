"""Attention and rotary embedding, as ONNX's operators of opsets 23 and later define them.

q, k and v are [batch, heads, length, size], or [batch, length, heads * size] where `heads` says how
many there are. k and v may have fewer heads than q: each then serves the heads / kv_heads heads of
q that stand together. past_k and past_v, [batch, kv_heads, length, size], are before k and v.

Inner slots, both [batch, heads, length of q, length of k]: `scores` is the scaled product of q and
k, before softcap and mask; `probs` is what softmax makes of it.
"""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.ops.elementwise import broadcast, require_floats, require_same_express
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType
from qir.records import record

SHOWN = ("none", "raw", "capped", "masked", "probs")
"""What the last result of attention may hold: nothing, or the scores at one of four places."""


@record
class AttentionSizes:
    """The sizes of one attention."""

    batch: Dim
    heads: Dim
    kv_heads: Dim
    length: Dim
    total: Dim
    """How many keys there are, those of the past among them."""
    size: Dim
    out: Dim
    """How large one head of v is."""


def _heads(call: Call, slot: str, name: str) -> tuple[Dim, Dim, Dim, Dim]:
    """Batch, heads, length and size of one head."""
    shape, stated = call.shape(slot), call.attrs[name]
    if name == "kv_heads" and stated is None and len(shape) == 3:
        # Three-axis k and v without `kv_heads` have as many heads as q.
        stated = call.attrs["heads"]
    count = stated if isinstance(stated, int) else None
    if count is not None and count < 1:
        raise call.fail(f"{name} = {count}, it must be 1 or more")
    if len(shape) == 4:
        batch, heads, length, size = shape
        if count is not None and not dims.may_be_equal(heads, count):
            raise call.fail(f"{slot} has {heads} heads, {name} says {count}")
        return batch, heads, length, size
    if len(shape) != 3:
        raise call.fail(f"{slot} has {len(shape)} axes, it takes 3 or 4")
    if count is None:
        raise call.fail(f"{slot} has 3 axes, so {name} must say how many heads it has")
    batch, length, width = shape
    if isinstance(width, int) and width % count:
        raise call.fail(f"{slot} is {width} wide, which {count} heads do not share evenly")
    return batch, count, length, dims.divide(width, count)


def _agree(call: Call, what: str, *sizes: Dim) -> Dim:
    """Returns the one size that all are; raises TypeRuleError where two differ."""
    numbers = {size for size in sizes if isinstance(size, int)}
    if len(numbers) > 1:
        raise call.fail(f"{what} differ: {', '.join(map(str, sorted(numbers)))}")
    return numbers.pop() if numbers else sizes[0]


def _sizes(call: Call) -> AttentionSizes:
    if len({len(call.shape(s)) for s in "qkv"}) > 1:
        raise call.fail("q, k and v have different numbers of axes")
    q, k, v = (_heads(call, s, "heads" if s == "q" else "kv_heads") for s in "qkv")
    batch = _agree(call, "batch sizes", q[0], k[0], v[0])
    kv_heads = _agree(call, "heads of k and v", k[1], v[1])
    # Grouped-query attention: each head of k and v serves the same number of heads of q.
    if isinstance(q[1], int) and isinstance(kv_heads, int) and q[1] % (kv_heads or 1):
        raise call.fail(f"{q[1]} heads of q cannot share {kv_heads} heads of k and v")
    size = _agree(call, "sizes of a head of q and k", q[3], k[3])
    total = _agree(call, "lengths of k and v", k[2], v[2])
    if ("past_k" in call.types) != ("past_v" in call.types):
        raise call.fail("past_k and past_v come together")
    if "past_k" in call.types:
        if "lengths" in call.types:
            raise call.fail("lengths are those of k and v without a past")
        head_sizes = {"past_k": size, "past_v": v[3]}
        past = [_past(call, slot, (batch, kv_heads, n)) for slot, n in head_sizes.items()]
        total = dims.add(total, _agree(call, "lengths of past_k and past_v", *past))
    return AttentionSizes(batch, q[1], kv_heads, q[2], total, size, v[3])


def _past(call: Call, slot: str, expected: Shape) -> Dim:
    """Returns how long the past is."""
    shape = call.shape(slot)
    if len(shape) != 4 or not all(map(dims.may_be_equal, (shape[0], shape[1], shape[3]), expected)):
        message = "batch, heads, length and size of k's or v's own"
        raise call.fail(f"{slot} is {list(shape)}, it takes {message}")
    return shape[2]


def _attention(call: Call) -> tuple[TensorType, ...]:
    require_floats(call, "q")
    require_same_express(call, "q", "k", "past_k")
    require_same_express(call, "v", "past_v")
    require_same_express(call, "q", "v")
    _check_attrs(call)
    sizes, kind = _sizes(call), call.express("q")
    _check_mask(call, sizes)
    if "lengths" in call.types:
        lengths = call.types["lengths"]
        if lengths.quant or not lengths.dtype.is_integer or lengths.rank != 1:
            raise call.fail(f"lengths are {lengths}, they must be one row of whole numbers")
        _agree(call, "batch size and number of lengths", sizes.batch, lengths.shape[0])
    y: Shape = (sizes.batch, sizes.heads, sizes.length, sizes.out)
    if len(call.shape("q")) == 3:
        # The result has the form of q: three axes in, three axes out.
        y = (sizes.batch, sizes.length, dims.multiply(sizes.heads, sizes.out))
    shapes = [y]
    if call.bool_attr("present"):
        shapes += [(sizes.batch, sizes.kv_heads, sizes.total, n) for n in (sizes.size, sizes.out)]
    if call.text_attr("qk") != "none":
        # Results are in ONNX's order: y, present_key, present_value, qk_matmul_output.
        shapes.append((sizes.batch, sizes.heads, sizes.length, sizes.total))
    return tuple(TensorType(shape, kind) for shape in shapes)


def _check_attrs(call: Call) -> None:
    if call.text_attr("qk") not in SHOWN:
        raise call.fail(f"qk {call.text_attr('qk')!r} is none of {', '.join(SHOWN)}")
    if min(call.int_attr("left"), call.int_attr("right")) < -1:
        raise call.fail("left and right are -1 for no bound, else 0 or more")
    softcap = call.attrs["softcap"]
    if isinstance(softcap, float) and not softcap >= 0:
        raise call.fail(f"softcap = {softcap!r}, it must be 0 or more")


def _check_mask(call: Call, sizes: AttentionSizes) -> None:
    """Raises TypeRuleError for a mask that would widen the scores; its last axis may be shorter."""
    if "mask" not in call.types:
        return
    kind = call.types["mask"]
    if kind.dtype.name != "bool" and kind.express != call.express("q"):
        raise call.fail(f"mask is {kind}, it takes bool or {call.express('q')}")
    # The last axis may be shorter than the keys: ONNX pads such a mask with -inf.
    *leading, last = kind.shape or (1,)
    if isinstance(last, int) and isinstance(sizes.total, int) and last > sizes.total:
        raise call.fail(f"mask is for {last} keys, there are {sizes.total}")
    score_axes = (sizes.batch, sizes.heads, sizes.length)
    result_shape = broadcast(call, score_axes, tuple(leading))
    if len(result_shape) > 3 or not all(map(dims.may_be_equal, result_shape, score_axes)):
        raise call.fail(
            f"mask {list(kind.shape)} does not broadcast to {[*score_axes, sizes.total]}"
        )


def _macs(call: Call, result: Shape) -> int:
    sizes = _sizes(call)
    shape = dims.known_shape(
        (sizes.batch, sizes.heads, sizes.length, sizes.total, dims.add(sizes.size, sizes.out))
    )
    total = 1 if shape else 0
    for size in shape or ():
        total *= size
    return total


def _rotary(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    require_same_express(call, "x", "cos", "sin")
    batch, _, length, size = _heads(call, "x", "heads")
    rotated = call.int_attr("dim")
    if rotated < 0 or rotated % 2 or (isinstance(size, int) and rotated > size):
        raise call.fail(f"dim = {rotated}, it must be even and no more than {size}")
    if not rotated and isinstance(size, int) and size % 2:
        raise call.fail(f"a head has {size} elements, an odd one has no pair")
    # `dim` 0 rotates the whole head; cos and sin hold one angle for each pair.
    half = rotated // 2 if rotated else dims.divide(size, 2)
    expected: Shape = (None, half) if "positions" in call.types else (batch, length, half)
    for slot in ("cos", "sin"):
        shape = call.shape(slot)
        if len(shape) != len(expected) or not all(map(dims.may_be_equal, shape, expected)):
            raise call.fail(f"{slot} is {list(shape)}, it should be {list(expected)}")
    if "positions" in call.types:
        kind = call.types["positions"]
        if kind.quant or not kind.dtype.is_integer or kind.rank not in (1, 2):
            raise call.fail(f"positions are {kind}, they must be whole numbers on 1 or 2 axes")
        allowed: Shape = (batch, length) if kind.rank == 2 else (1,)
        if not all(map(dims.may_be_equal, kind.shape, allowed)):
            raise call.fail(f"positions are {list(kind.shape)}, they should be {list(allowed)}")
    return (TensorType(call.shape("x"), call.express("x")),)


OPS = (
    OpSpec(
        "attention",
        (
            *(Slot(s) for s in "qkv"),
            *(Slot(s, optional=True) for s in ("mask", "past_k", "past_v", "lengths")),
        ),
        _attention,
        (
            AttrSpec("heads", "int"),
            AttrSpec("kv_heads", "int"),
            AttrSpec("causal", "bool", False),
            AttrSpec("scale", "float"),
            AttrSpec("softcap", "float", 0.0),
            AttrSpec("left", "int", -1),
            AttrSpec("right", "int", -1),
            AttrSpec("precision", "dtype"),
            AttrSpec("present", "bool", False),
            AttrSpec("qk", "text", "none"),
        ),
        cost=_macs,
        results=None,
        inner=("scores", "probs"),
        doc="softmax(softcap(q @ k.T * scale) + mask) @ v, head by head; then, where present, k "
        "and v after their past, then the scores that qk names (raw, capped, masked, probs). "
        "mask is added, or false where nothing is looked at; lengths says how many keys count; "
        "query i stands at i + past (or lengths - queries), and looks at no later key if causal, "
        "at `left` keys before and `right` after it if these are not -1; one that looks at none "
        "gives zeros. scale is 1 / sqrt(size) unless given; precision is softmax's own type",
    ),
    OpSpec(
        "rotary",
        (Slot("x"), Slot("cos"), Slot("sin"), Slot("positions", optional=True)),
        _rotary,
        (
            AttrSpec("interleaved", "bool", False),
            AttrSpec("dim", "int", 0),
            AttrSpec("heads", "int"),
        ),
        doc="pairs of each head of x, (i, i + dim / 2) or neighbours where interleaved, turned by "
        "the angles of cos and sin; the elements from dim on stay, 0 turns all. positions pick "
        "rows of cos and sin: [batch, length], or one number for the first of each sequence",
    ),
)
