"""Calls of PyTorch's operators, each as a function of tensors, for the tests to export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed
import torch.nn.functional as F
from torch import Tensor, nn

from .picked_cases import indexing_cases

Results = Tensor | tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """A function of tensors, and the operands it is exported and run with."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    near: float = 2e-6
    """How far results may be off, relative to the largest one."""

    def module(self) -> nn.Module:
        """Returns the function as a module, which is what can be exported."""
        return _Function(self.function)


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


def _random_floats(*shape: int, seed: int = 0, low: float = -3.0, high: float = 3.0) -> Tensor:
    made = torch.Generator().manual_seed(hash((shape, seed)) % 2**31)
    return torch.rand(*shape, generator=made) * (high - low) + low


def _random_integers(
    *shape: int, low: int = -5, high: int = 6, kind: torch.dtype = torch.int64
) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=made).to(kind)


X = _random_floats(2, 6, 8, 8)
ROW = _random_floats(3, 10)
POSITIVE = _random_floats(3, 10, low=0.1, high=4.0)
UNIT = _random_floats(3, 10, low=-0.9, high=0.9)
TIES = torch.tensor([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 3.0])

_POSITIVE = "log sqrt log2 log10 rsqrt log1p reciprocal acosh"
_UNIT = "asin acos atanh erf"
_ANY = "exp sin cos tan atan sinh cosh asinh exp2 expm1 erfc sigmoid tanh abs square neg sign"


def _functions() -> Iterator[Case]:
    for names, x in ((_POSITIVE, POSITIVE), (_UNIT, UNIT), (_ANY, ROW)):
        for name in names.split():
            held = x + 1 if name == "acosh" else x
            yield Case(name, getattr(torch, name), (held,), 1e-5)
    for name in ("floor", "ceil", "round", "trunc"):
        yield Case(name, getattr(torch, name), (TIES,), 0.0)
        yield Case(f"{name} of integers", getattr(torch, name), (_random_integers(4, 3),), 0.0)
    yield Case("exp of integers", torch.exp, (_random_integers(4, 3),), 1e-5)
    yield Case("abs of integers", torch.abs, (_random_integers(4, 3),), 0.0)
    special = torch.tensor([0.0, float("inf"), float("-inf"), float("nan"), 1.0])
    yield Case("isnan", torch.isnan, (special,))
    yield Case("isinf", torch.isinf, (special,))


def _arithmetic() -> Iterator[Case]:
    a, b, i = ROW, POSITIVE, _random_integers(3, 10)
    for name in ("add", "sub", "mul", "div", "minimum", "maximum", "atan2", "remainder"):
        yield Case(name, getattr(torch, name), (a, b), 1e-6)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        op = getattr(torch, name)
        yield Case(f"{name} tensor", op, (i, i.flip(0)))
        yield Case(f"{name} number", lambda x, op=op: op(x, 1.5), (TIES,))
        yield Case(f"{name} mixed", lambda x, op=op: op(x, 0.5), (i,))
    yield Case("add alpha", lambda x, y: torch.add(x, y, alpha=0.5), (a, b))
    yield Case("sub alpha", lambda x, y: torch.sub(x, y, alpha=2), (a, b))
    yield Case("rsub", lambda x: 1 - x, (a,))
    yield Case("rsub tensor", lambda x, y: torch.rsub(x, y, alpha=3), (a, b))
    yield Case("integers and floats", lambda x, y: x + y * 2, (i, a))
    yield Case("integers over integers", lambda x: x / 3, (i,))
    yield Case("truth values", lambda x, y: (x > 0) + (y > 2), (a, b))
    yield Case("products of truth values", lambda x, y: (x > 0) * (y > 2), (a, b))
    yield Case("32-bit and 64-bit integers", lambda x, y: x + y, (i, i.to(torch.int32)))
    yield Case("floor division", lambda x: x // 3, (i,))
    yield Case("floor division of floats", lambda x, y: torch.floor_divide(x, y), (a, b))
    yield Case("division toward zero", lambda x, y: torch.div(x, y, rounding_mode="trunc"), (a, b))
    yield Case("division down", lambda x, y: torch.div(x, y, rounding_mode="floor"), (a, b))
    yield Case("division as is", lambda x, y: torch.div(x, y, rounding_mode=None), (a, b))
    yield Case("remainder of a number", lambda x: x % 3, (i,))
    for power in (1, 2, 0.5, 3, -1.5):
        yield Case(f"pow {power}", lambda x, p=power: torch.pow(x, p), (b,), 1e-5)
    yield Case("pow tensor", torch.pow, (b, a), 1e-5)
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield Case(name, getattr(torch, name), (i, i.flip(0)))
    yield Case("logical_not", torch.logical_not, (i,))
    yield Case("not", lambda x: ~(x > 0), (i,))
    yield Case("bitwise not", lambda x: ~x, (i,))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield Case(name, getattr(torch, name), (i, i.flip(0)))
    yield Case("and", lambda x: (x > 0) & (x < 3), (i,))
    yield Case("or", lambda x: (x > 0) | (x < -3), (i,))
    yield Case("__and__", lambda x: x.__and__(x.flip(0)), (i,))
    yield Case("__or__", lambda x: x.__or__(x.flip(0)), (i,))
    yield Case("addcmul", lambda x, y: torch.addcmul(x, x, y, value=0.5), (a, b), 1e-6)
    yield Case("addcdiv", lambda x, y: torch.addcdiv(x, x, y, value=2), (a, b), 1e-6)


def _activations() -> Iterator[Case]:
    for name in (
        "relu relu6 hardsigmoid hardswish silu mish selu celu elu leaky_relu softplus softsign"
        " tanhshrink hardtanh gelu glu"
    ).split():
        yield Case(name, getattr(F, name), (ROW * 3,), 1e-5)
    yield Case("logsigmoid", F.logsigmoid, (ROW,), 1e-5)
    yield Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), (ROW,), 1e-5)
    yield Case("elu alpha", lambda x: F.elu(x, 0.5), (ROW,), 1e-5)
    yield Case("celu alpha", lambda x: F.celu(x, 0.5), (ROW,), 1e-5)
    yield Case("leaky", lambda x: F.leaky_relu(x, 0.25), (ROW,))
    yield Case("clamp", lambda x: x.clamp(-1, 2.5), (ROW,))
    whole = torch.tensor([-7, -1, 0, 3, 9])
    yield Case("clamp whole", lambda x: x.clamp(-1, 5), (whole,))
    yield Case("clamp_min whole", lambda x: x.clamp_min(2), (whole,))
    yield Case("clamp tensors", lambda x: torch.clamp(x, x - 1, x * x), (ROW,))
    yield Case("clamp max tensor", lambda x: torch.clamp(x, max=x * x), (ROW,))
    yield Case("clamp_max tensor", lambda x: torch.clamp_max(x, x * x), (ROW,))
    yield Case("clamp_min tensor", lambda x: torch.clamp_min(x, x * x), (ROW,))
    yield Case("min other", lambda x: torch.min(x, -x), (ROW,))
    yield Case("max other", lambda x: torch.max(x, x * x), (whole,))
    yield Case("threshold", lambda x: F.threshold(x, 0.4, 0.0), (ROW,))
    yield Case("clamp_min", lambda x: x.clamp_min(-0.5), (ROW,))
    yield Case("clamp_max", lambda x: x.clamp_max(0.5), (ROW,))
    yield Case("prelu one", lambda x: F.prelu(x, torch.tensor([0.3])), (X,))
    yield Case("prelu many", lambda x: F.prelu(x, torch.linspace(0, 1, 6)), (X,))
    yield Case("where", lambda x: torch.where(x > 0, x, -x), (ROW,))
    yield Case("where number", lambda x: torch.where(x > 0, x, 0.25), (ROW,))
    yield Case("where self number", lambda x: torch.where(x > 0, 0.25, x), (ROW,))
    yield Case("where numbers", lambda x: torch.where(x > 0, 1.0, 0.25), (ROW,))
    yield Case("masked_fill", lambda x: x.masked_fill(x > 0, float("-inf")), (ROW,))
    filled = torch.tensor(2.0)
    yield Case("masked_fill tensor", lambda x: x.masked_fill(x > 0, filled), (ROW,))


def _write_through_view(x: Tensor, where: Any) -> Tensor:
    """Writes to a part of a tensor, of which there is a view."""
    made = x * 2
    made[where] = x[where] + made[where] * 3
    return made


def _write_numbers(x: Tensor) -> Tensor:
    """Writes numbers to parts of a tensor that is computed from none."""
    mask = x.new_zeros((8, 8))
    mask[0:3, 0:5] = 1
    mask[3:, 5:] = 2
    mask[-1] = x[0, 0, 0]
    return x + mask


def _fill_parts(x: Tensor) -> Tensor:
    """Fills a part of a tensor with a number, and another with zeros."""
    made = x * 2
    made[:, 0].fill_(3)
    made[:, 1].zero_()
    return made + 1


def _write_to_unread_view(x: Tensor) -> Tensor:
    """Changes a view of a tensor that nothing reads later, as GhostNet does."""
    part = torch.cat([x, x * 2], 1)[:, :5]
    part += 1
    return part * 3


def _read_view_of_in_place_result(x: Tensor) -> Tensor:
    """Changes a view of what an op in place gave back, and reads both."""
    made = (x * 2).relu_()
    made.view(-1).sub_(1)
    return made * 3


def _dropped(x: Tensor) -> Tensor:
    return F.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1), 0.2, False, True) + 1


def _layers() -> Iterator[Case]:
    for rank in (1, 2, 3):
        x = _random_floats(2, 4, *((9,) * rank))
        for groups, bias in ((1, True), (2, False), (4, True)):
            conv = getattr(nn, f"Conv{rank}d")(
                4, 8, 3, stride=2, padding=1, dilation=1 + (rank == 2), groups=groups, bias=bias
            )
            yield Case(f"conv{rank}d {groups}", conv, (x,))
        same = getattr(nn, f"Conv{rank}d")(4, 8, 4, padding="same")
        yield Case(f"conv{rank}d same", same, (x,))
        valid = getattr(nn, f"Conv{rank}d")(4, 8, 3, padding="valid")
        yield Case(f"conv{rank}d valid", valid, (x,))
        yield Case(f"conv{rank}d alone", getattr(nn, f"Conv{rank}d")(4, 8, 3), (x[0],))
        back = getattr(nn, f"ConvTranspose{rank}d")(4, 6, 3, 2, 1, output_padding=1, groups=2)
        yield Case(f"conv_transpose{rank}d", back, (x,))
        for kind in ("Max", "Avg"):
            pool = getattr(nn, f"{kind}Pool{rank}d")
            yield Case(f"{kind} pool{rank}d", pool(3, 2, padding=1, ceil_mode=True), (x,))
            yield Case(f"{kind} pool{rank}d plain", pool(2), (x,))
        uncounted = getattr(nn, f"AvgPool{rank}d")(3, 2, 1, count_include_pad=False)
        yield Case(f"avg pool{rank}d uncounted", uncounted, (x,))
        yield Case(f"adaptive{rank}d", getattr(nn, f"AdaptiveAvgPool{rank}d")(4), (x,))
        yield Case(f"global{rank}d", getattr(nn, f"AdaptiveAvgPool{rank}d")(1), (x,))
        norm = getattr(nn, f"BatchNorm{rank}d")(4)
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        yield Case(f"batch_norm{rank}d", norm.eval(), (x,), 1e-5)
        yield Case(f"instance_norm{rank}d", getattr(nn, f"InstanceNorm{rank}d")(4), (x,), 1e-5)
    bare = nn.BatchNorm2d(6, affine=False).eval()
    yield Case("batch_norm bare", bare, (X,), 1e-5)
    yield Case("batch_norm written", lambda x: _write_through_view(bare(x), (0, 2)), (X,), 1e-5)
    weighed: Any = nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 8, 3), dim=2)
    yield Case("weight_norm", weighed.eval(), (X[..., 0],), 1e-5)
    yield Case("power of a number", lambda x: torch.pow(2.5, x), (ROW,), 1e-5)
    yield Case("view written", _write_to_unread_view, (X,))
    yield Case("parts filled", _fill_parts, (X,))
    yield Case("filled by a tensor", lambda x: (x * 2).fill_(x.flatten()[3]) + x, (X,))
    yield Case("changed, then viewed", _read_view_of_in_place_result, (X,))
    yield Case("dropout in place", _dropped, (X,), 1e-5)
    yield Case("linear", nn.Linear(10, 4), (ROW,))
    yield Case("linear bare", nn.Linear(8, 4, bias=False), (X,))
    yield Case("layer_norm", nn.LayerNorm((8, 8)), (X,), 1e-5)
    yield Case("layer_norm bare", nn.LayerNorm(8, elementwise_affine=False), (X,), 1e-5)
    yield Case("rms_norm", nn.RMSNorm(8), (X,), 1e-5)
    yield Case("rms_norm bare", nn.RMSNorm(8, eps=1e-3, elementwise_affine=False), (X,), 1e-5)
    yield Case("group_norm", nn.GroupNorm(3, 6), (X,), 1e-5)
    yield Case("group_norm bare", nn.GroupNorm(2, 6, affine=False), (X,), 1e-5)
    yield Case("softmax", lambda x: x.softmax(-1), (X,), 1e-5)
    yield Case("log_softmax", lambda x: x.log_softmax(1), (X,), 1e-5)
    yield Case("dropout", nn.Dropout(0.3).eval(), (X,))
    yield Case("dropout2d", nn.Dropout2d(0.3).eval(), (X,))
    yield Case("alpha dropout", nn.AlphaDropout(0.3).eval(), (X,))
    indices = torch.tensor([[1, 2, 0], [4, 4, 3]])
    yield Case("embedding", nn.Embedding(5, 7), (indices,))
    yield Case("embedding with padding", nn.Embedding(5, 7, padding_idx=4), (indices,))


def _products() -> Iterator[Case]:
    a, b = _random_floats(3, 5, 6), _random_floats(3, 6, 4)
    yield Case("matmul", torch.matmul, (a, b))
    yield Case("matmul of a row", torch.matmul, (a, b[0, :, 0]))
    yield Case("mm", torch.mm, (a[0], b[0]))
    yield Case("bmm", torch.bmm, (a, b))
    yield Case("addmm", torch.addmm, (b[0, :1], a[0], b[0]))
    scaled = lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2.0)  # noqa: E731
    yield Case("addmm scaled", scaled, (b[0, :1], a[0], b[0]))
    yield Case("baddbmm", lambda c, x, y: torch.baddbmm(c, x, y, beta=2, alpha=0.5), (a @ b, a, b))
    yield Case("einsum", lambda x, y: torch.einsum("bij,bjk->bki", x, y), (a, b))
    q, k, v = (
        _random_floats(2, 4, 5, 8),
        _random_floats(2, 4, 7, 8, seed=1),
        _random_floats(2, 4, 7, 6, seed=2),
    )
    attend = F.scaled_dot_product_attention
    yield Case("attention", attend, (q, k, v), 1e-5)
    yield Case("attention scaled", lambda x, y, z: attend(x, y, z, scale=0.1), (q, k, v), 1e-5)
    yield Case("attention causal", lambda x: attend(x, x, x, is_causal=True), (q,), 1e-5)
    mask = _random_floats(5, 7) > 0
    mask[:, 0] = True
    yield Case("attention mask", lambda x, y, z: attend(x, y, z, attn_mask=mask), (q, k, v), 1e-5)
    bias = _random_floats(2, 1, 5, 7)
    yield Case("attention bias", lambda x, y, z: attend(x, y, z, attn_mask=bias), (q, k, v), 1e-5)
    grouped = lambda x, y: attend(x, y, y, enable_gqa=True)  # noqa: E731
    yield Case("attention of groups", grouped, (q, k[:, :2].contiguous()), 1e-5)


def _moves() -> Iterator[Case]:
    yield Case("view", lambda x: x.view(2, -1, 8), (X,))
    yield Case("reshape", lambda x: x.transpose(1, 2).reshape(-1, 48), (X,))
    yield Case("flatten", lambda x: x.flatten(1), (X,))
    yield Case("flatten some", lambda x: x.flatten(1, 2), (X,))
    yield Case("flatten all", lambda x: x.flatten(), (X,))
    yield Case("unflatten", lambda x: x.unflatten(1, (2, 3)), (X,))
    yield Case("transpose", lambda x: x.transpose(1, -1), (X,))
    yield Case("permute", lambda x: x.permute(0, 2, -1, 1), (X,))
    yield Case("t", lambda x: x.t(), (ROW,))
    yield Case("squeeze", lambda x: x[:1].squeeze(), (X,))
    yield Case("squeeze one", lambda x: x[:1].squeeze(0), (X,))
    yield Case("squeeze some", lambda x: x[:1, :, :1].squeeze((0, 2)), (X,))
    yield Case("squeeze none", lambda x: x.squeeze(0), (X,))
    yield Case("unsqueeze", lambda x: x.unsqueeze(-1), (X,))
    yield Case("cat", lambda x: torch.cat([x, x + 1], 1), (X,))
    yield Case("cat of nothing", lambda x: torch.cat([x[:, :0], x, x[:, 4:]], 1)[:, :, :0:], (X,))
    yield Case("cat with nothing", lambda x: torch.cat([x[:, :0], x, x[:, 4:]], 1), (X,))
    yield Case("cat of kinds", lambda x, i: torch.cat([x, i], 0), (ROW, _random_integers(2, 10)))
    yield Case("stack", lambda x: torch.stack([x, -x], -1), (X,))
    yield Case("split", lambda x: x.split(4, 1), (X,))
    yield Case("split sizes", lambda x: x.split([1, 5], 1), (X,))
    yield Case("chunk", lambda x: x.chunk(4, 1), (X,))
    yield Case("tensor_split", lambda x: x.tensor_split(4, 1), (X,))
    yield Case("unbind", lambda x: x.unbind(1), (X,))
    yield Case("slice", lambda x: x[:, 1:-1, ::2, -3:], (X,))
    yield Case("slice written", lambda x: _write_through_view(x, (slice(None), slice(1, -1))), (X,))
    yield Case("part written", lambda x: _write_through_view(x, (0, slice(2, None))), (X,))
    yield Case("number written", _write_numbers, (X,))
    yield Case("select", lambda x: x[1, -1, 2], (X,))
    yield Case("narrow", lambda x: x.narrow(1, 2, 3), (X,))
    yield Case("expand", lambda x: x[:1].expand(3, -1, -1, -1), (X,))
    yield Case("expand new", lambda x: x.expand(4, 3, 10), (ROW,))
    yield Case("expand_as", lambda x, y: x[:1].expand_as(y), (X, X))
    yield Case("repeat", lambda x: x.repeat(2, 1, 3), (ROW,))
    yield Case("tile", lambda x: x.tile(2), (ROW,))
    for mode in ("constant", "reflect", "replicate"):
        yield Case(f"pad {mode}", lambda x, m=mode: F.pad(x, (1, 2, 3, 0), m), (X,))
    yield Case("pad number", lambda x: F.pad(x, (1, 2), value=-7.5), (X,))
    yield Case("pad less", lambda x: F.pad(x, (-1, 2, 0, -3)), (X,))
    yield Case("ReflectionPad1d", nn.ReflectionPad1d(2), (X[0],))
    yield Case("ReplicationPad2d", nn.ReplicationPad2d((1, 2, 0, 3)), (X,))
    yield Case("ConstantPad2d", nn.ConstantPad2d((1, 0, 2, 1), 0.5), (X,))
    yield Case("pixel_shuffle", nn.PixelShuffle(2), (_random_floats(2, 8, 3, 5),))
    yield Case("flip", lambda x: x.flip(1, -1), (X,))
    yield Case("roll", lambda x: x.roll((1, -3), (1, 2)), (X,))
    yield Case("contiguous", lambda x: x.transpose(0, 1).contiguous(), (X,))
    yield Case("clone", lambda x: x.clone(), (X,))
    yield Case("detach", lambda x: x.detach() + 1, (X,))
    yield Case("to", lambda x: x.to(torch.int32), (ROW,))
    yield Case("float of integers", lambda x: x.float(), (_random_integers(3, 4),))
    yield Case("to other", lambda x, y: x.to(y), (_random_integers(3, 4), ROW))
    yield Case("type_as", lambda x, y: x.type_as(y), (_random_integers(3, 4), ROW))
    yield Case("index_select", lambda x: x.index_select(1, torch.tensor([3, 0, 3])), (X,))
    places = torch.tensor([[0, 2], [1, 1], [9, 4]])
    yield Case("gather", lambda x: x.gather(1, places), (ROW,))
    yield Case("index", lambda x: x[:, torch.tensor([1, 4])], (X,))
    rows, columns = torch.arange(2).reshape(2, 1, 1), torch.tensor([[0, 5, -1]])
    yield Case("index of two shapes", lambda x: x[rows, columns], (X,))
    yield Case("index two", lambda x: x[torch.tensor([0, 1]), torch.tensor([5, 2])], (X,))
    yield Case("tril", lambda x: x.tril(1), (X,))
    yield Case("triu", lambda x: x.triu(-1), (X,))
    for name in ("zeros", "ones"):
        yield Case(name, lambda x, n=name: x + getattr(torch, n)(10), (ROW,))
        yield Case(f"{name}_like", lambda x, n=name: getattr(torch, f"{n}_like")(x) + x, (ROW,))
        yield Case(f"new_{name}", lambda x, n=name: getattr(x, f"new_{n}")(3, 1) + x, (ROW,))
    yield Case("full", lambda x: x + torch.full((10,), 2.5), (ROW,))
    yield Case("full_like", lambda x: x + torch.full_like(x, 2.5), (ROW,))
    yield Case("new_full", lambda x: x + x.new_full((10,), 2.5), (ROW,))
    yield Case("arange", lambda x: x + torch.arange(10), (ROW,))
    yield Case("arange from", lambda x: x + torch.arange(1, 11), (ROW,))
    yield Case("arange by", lambda x: x + torch.arange(0.0, 5.0, 0.5), (ROW,))
    yield Case("scalar_tensor", lambda x: x + torch.scalar_tensor(2.5), (ROW,))


def _reductions() -> Iterator[Case]:
    for name in ("mean", "sum", "amax", "amin", "logsumexp"):
        op = getattr(torch, name)
        yield Case(name, lambda x, op=op: op(x, (1, -1)), (X,), 1e-5)
        yield Case(f"{name} keep", lambda x, op=op: op(x, 1, keepdim=True), (X,), 1e-5)
    for name in ("mean", "sum", "max", "min", "prod"):
        yield Case(f"{name} of all", getattr(torch, name), (ROW / 2,), 1e-5)
    yield Case("sum of integers", lambda x: x.sum(1), (_random_integers(3, 4, kind=torch.int32),))
    yield Case("sum of truth values", lambda x: (x > 0).sum(), (ROW,))
    yield Case("var", lambda x: x.var(1), (X,), 1e-5)
    yield Case("var biased", lambda x: x.var((1, 2), unbiased=False, keepdim=True), (X,), 1e-5)
    yield Case("var corrected", lambda x: torch.var(x, (1, 3), correction=2), (X,), 1e-5)
    yield Case("std", lambda x: torch.std(x, 1, correction=0), (X,), 1e-5)
    yield Case("std unbiased", lambda x: x.std(-1), (X,), 1e-5)
    yield Case("norm", lambda x: x.norm(dim=1), (X,), 1e-5)
    yield Case("norm 1", lambda x: x.norm(p=1, dim=1, keepdim=True), (X,), 1e-5)
    yield Case("vector_norm", lambda x: torch.linalg.vector_norm(x, dim=(1, 2)), (X,), 1e-5)
    yield Case("normalize", lambda x: F.normalize(x, dim=1), (X,), 1e-5)
    yield Case("argmax", lambda x: x.argmax(1), (X,))
    yield Case("argmin", lambda x: x.argmin(-1, keepdim=True), (X,))
    yield Case("max", lambda x: x.max(1), (X,))
    yield Case("min", lambda x: x.min(-1, keepdim=True), (X,))
    yield Case("diff", lambda x: x.diff(n=2, dim=1), (X,), 1e-5)
    yield Case("diff of a step before", lambda x: x.diff(prepend=x[..., :1] - 1), (ROW,), 1e-5)
    yield Case("diff of truths", lambda x: (x > 0).diff(append=x[..., :1] < 0), (ROW,))
    yield Case(
        "to with a layout",
        lambda x: torch.ops.aten.to.dtype_layout(x, dtype=torch.bool),
        (_random_integers(4, 3),),
    )
    yield Case("cumsum", lambda x: x.cumsum(1), (X,), 1e-5)
    yield Case("topk", lambda x: x.topk(3), (X,))


def _resizes() -> Iterator[Case]:
    for rank, mode in ((1, "linear"), (2, "bilinear"), (3, "trilinear"), (2, "bicubic")):
        x = _random_floats(2, 3, *((5,) * rank))
        for aligned in (False, True):
            name = f"{mode} {'aligned' if aligned else 'half'}"
            sized = lambda x, m=mode, a=aligned: F.interpolate(x, 8, mode=m, align_corners=a)  # noqa: E731
            yield Case(f"{name} size", sized, (x,), 1e-5)
            scaled = lambda x, m=mode, a=aligned: F.interpolate(  # noqa: E731
                x, scale_factor=2.0, mode=m, align_corners=a
            )
            yield Case(f"{name} scale", scaled, (x,), 1e-5)
    for rank in (1, 2, 3):
        x = _random_floats(2, 3, *((5,) * rank))
        yield Case(f"nearest{rank}d", lambda x: F.interpolate(x, scale_factor=2), (x,))
        yield Case(f"nearest{rank}d size", lambda x: F.interpolate(x, 7), (x,))


def _recurrent() -> Iterator[Case]:
    x = _random_floats(2, 7, 6)
    for kind in ("LSTM", "GRU", "RNN"):
        made = getattr(nn, kind)
        yield Case(f"{kind} plain", made(6, 5), (x,), 1e-5)
        many = made(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        yield Case(f"{kind} both ways", many, (x,), 1e-5)
        yield Case(f"{kind} without bias", made(6, 5, bias=False), (x,), 1e-5)
    yield Case("RNN relu", nn.RNN(6, 5, nonlinearity="relu"), (x,), 1e-5)
    state = (_random_floats(1, 7, 5), _random_floats(1, 7, 5, seed=3))
    yield Case("LSTM state", lambda x, h, c: _LSTM(x, (h, c)), (x, *state), 1e-5)
    yield Case(
        "attention layer",
        nn.TransformerEncoderLayer(8, 2, 16).eval(),
        (_random_floats(5, 2, 8),),
        1e-5,
    )


_LSTM = nn.LSTM(6, 5).eval()


def _decomposed() -> Iterator[Case]:
    """Overloads that programs hold after PyTorch's own decomposition."""
    aten: Any = torch.ops.aten
    yield Case("_softmax", lambda x: aten._softmax.default(x, -1, False), (ROW,), 1e-5)
    yield Case("_log_softmax", lambda x: aten._log_softmax.default(x, 1, False), (ROW,), 1e-5)
    yield Case("_to_copy", lambda x: aten._to_copy.default(x, dtype=torch.float64), (ROW,))
    yield Case("_unsafe_view", lambda x: aten._unsafe_view.default(x, [6, 5]), (ROW,))
    for name in ("add", "sub", "mul", "div", "rsub"):
        op = getattr(aten, name).Scalar
        yield Case(f"{name}.Scalar", lambda x, op=op: op(x, 1.5), (ROW,))
    yield Case("remainder.Scalar", lambda x: aten.remainder.Scalar(x, 3), (ROW,), 1e-5)
    yield Case("alias", lambda x: aten.alias.default(x), (ROW,))
    yield Case("constant_pad_nd", lambda x: aten.constant_pad_nd.default(x, [1, 2], 0.5), (ROW,))
    w, b = _random_floats(8, 3, 3, 3), _random_floats(8)
    flat = ([2, 2], [1, 1], [1, 1])
    conv = aten.convolution.default
    yield Case("convolution", lambda x: conv(x, w, b, *flat, False, [0, 0], 2), (X,))
    back = _random_floats(6, 2, 3, 3)
    yield Case("convolution back", lambda x: conv(x, back, None, *flat, True, [1, 1], 2), (X,))
    yield Case("norm", lambda x: aten.norm.ScalarOpt_dim(x, 2, [1]), (ROW,), 1e-5)
    for name in ("reflection", "replication"):
        for rank, x in ((1, X[0]), (2, X)):
            op = getattr(aten, f"{name}_pad{rank}d").default
            yield Case(f"{name}_pad{rank}d", lambda x, op=op, r=rank: op(x, [1, 2] * r), (x,))
    for rank in (1, 2, 3):
        x = _random_floats(2, 3, *((5,) * rank))
        op = getattr(aten, f"upsample_nearest{rank}d").default
        yield Case(f"upsample_nearest{rank}d", lambda x, op=op, r=rank: op(x, [7] * r), (x,))
    for name, rank in (("linear1d", 1), ("bilinear2d", 2), ("trilinear3d", 3), ("bicubic2d", 2)):
        x = _random_floats(2, 3, *((5,) * rank))
        op = getattr(aten, f"upsample_{name}").default
        sized = lambda x, op=op, r=rank: op(x, [8] * r, False)  # noqa: E731
        yield Case(f"upsample_{name}", sized, (x,), 1e-5)


def _fake_quantized() -> Iterator[Case]:
    """Fake quantization, by numbers and by tensors, and the forms that also give a mask."""
    aten = torch.ops.aten
    scale, zero, on = (
        torch.tensor([0.03]),
        torch.tensor([3], dtype=torch.int32),
        torch.ones(1).long(),
    )
    scales = torch.linspace(0.01, 0.2, 6)
    zeros = torch.zeros(6, dtype=torch.int32)
    tensor = aten.fake_quantize_per_tensor_affine
    channel = aten.fake_quantize_per_channel_affine.default
    masked = aten.fake_quantize_per_tensor_affine_cachemask.default
    many = aten.fake_quantize_per_channel_affine_cachemask.default
    switched = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    for name, fake in (
        ("by numbers", lambda x: tensor.default(x, 0.03, 3, 0, 127)),
        ("by tensors", lambda x: tensor.tensor_qparams(x, scale, zero, 0, 255)),
        ("of channels", lambda x: channel(x, scales, zeros, 1, -128, 127)),
        ("with a mask", lambda x: masked(x, 0.03, 3, 0, 127)[0]),
        ("of channels with a mask", lambda x: many(x, scales, zeros, 1, -127, 127)[0]),
        ("with a switch", lambda x: switched(x, scale, zero, on, 0, 255)[0]),
    ):
        yield Case(f"fake quantization {name}", fake, (X,), 0.0)


def _quantized() -> Iterator[Case]:
    """Quantize and dequantize as PT2E puts them into exported programs."""
    ops = torch.ops.quantized_decomposed
    scale, zero = torch.tensor(0.03), torch.tensor(117)
    low, high = torch.tensor(0), torch.tensor(255)
    scales, zeros = torch.linspace(0.01, 0.2, 6), torch.arange(6)
    least = torch.finfo(torch.float32).eps
    forms: dict[str, tuple[Any, ...]] = {
        "numbers": (0.03, 117, 0, 255, torch.uint8),
        "tensors": (scale, zero, 0, 255, torch.uint8),
        "tensors and bounds": (scale, zero, low, high, torch.uint8),
        "channels": (scales, zeros, 1, -128, 127, torch.int8),
    }
    for name, held in forms.items():
        kind = "channel" if name == "channels" else "tensor"
        form = {"tensors": "tensor", "tensors and bounds": "tensor2"}.get(name, "default")
        there = getattr(getattr(ops, f"quantize_per_{kind}"), form)
        back = getattr(getattr(ops, f"dequantize_per_{kind}"), form)
        yield Case(f"quantize by {name}", lambda x, op=there, held=held: op(x, *held), (X,))
        both = lambda x, a=there, b=back, held=held: b(a(x, *held), *held)  # noqa: E731
        yield Case(f"dequantize by {name}", both, (X,), 0.0)
    choose = ops.choose_qparams
    chosen = lambda x: [v.float() for v in choose(x, 0, 255, least, torch.uint8)]  # noqa: E731
    yield Case("choose_qparams", chosen, (ROW,), 0.0)


def cases() -> list[Case]:
    """Returns all cases."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        families = (_functions, _arithmetic, _activations, _layers, _products, _moves)
        more = (_reductions, _resizes, _recurrent, _decomposed, _fake_quantized, _quantized)
        found = [case for family in (*families, *more) for case in family()]
        return [*found, *(Case(*each, near=1e-5) for each in indexing_cases())]
