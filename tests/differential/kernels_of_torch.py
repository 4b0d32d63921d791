"""Torch's quantized kernels one at a time, as functions on arrays, and QIR's answer to each."""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

import numpy as np
import torch
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import DType, dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array as Stored
from qir.ir.types import QuantType, TensorType, uniform
from qir.profiles import Query, profile
from qir.profiles.kernel_forms import forms_of
from qir.reference.interpreter import run
from tests.counting import note
from tests.processors import require, require_cap
from tests.richness import NEAR

Array = NDArray[np.generic]
F = np.float32

warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*")
warnings.filterwarnings("ignore", message=".*TypedStorage is deprecated.*")

_TORCH = {"u8": torch.quint8, "i8": torch.qint8, "i32": torch.qint32}
BOUNDS = {
    "u8": (0, 255),
    "i8": (-128, 127),
    "i16": (-(2**15), 2**15 - 1),
    "i32": (-(2**31), 2**31 - 1),
}


@dataclass(frozen=True, eq=False)
class Map:
    """Scale and zero point, one or one each along an axis, and the storage type."""

    storage: str
    scale: NDArray[np.float32]
    zero: NDArray[np.int64]
    axis: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        return BOUNDS[self.storage]


@dataclass(frozen=True, eq=False)
class Held:
    """Codes and their map; reals where there is none."""

    data: Array
    map: Map | None = None


def of(
    storage: str, scale: float | np.floating | Array, zero: int | Array = 0, axis: int | None = None
) -> Map:
    """A map; one zero goes with many scales."""
    scales = np.asarray(scale, F)
    return Map(storage, scales, np.broadcast_to(np.asarray(zero, np.int64), scales.shape), axis)


def codes(rng: np.random.Generator, storage: str, *shape: int) -> Array:
    """Any codes of a storage type of 8 bits."""
    low, high = BOUNDS[storage]
    return rng.integers(low, high + 1, shape).astype(np.uint8 if storage == "u8" else np.int8)


# -- torch ----------------------------------------------------------------------------------------


def tensor(held: Held, *, last: bool = False) -> torch.Tensor:
    """The quantized tensor, with channels last in memory if so asked."""
    data, m = torch.from_numpy(np.ascontiguousarray(held.data)), held.map
    if m is None:
        return data
    if m.scale.ndim:
        made = torch._make_per_channel_quantized_tensor(
            data, torch.from_numpy(m.scale.astype(np.float64)), torch.tensor(m.zero), m.axis or 0
        )
    else:
        made = torch._make_per_tensor_quantized_tensor(data, float(m.scale), int(m.zero))
    if not last:
        return made
    many = torch.channels_last_3d if data.ndim == 5 else torch.channels_last
    return made.contiguous(memory_format=many)


def taken(made: torch.Tensor) -> Array:
    """The codes of a quantized tensor, or the elements of another."""
    found = made.int_repr() if made.is_quantized else made
    return np.ascontiguousarray(found.detach().numpy())


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Runs with that quantized engine, on one thread."""
    before, threads = torch.backends.quantized.engine, torch.get_num_threads()
    torch.backends.quantized.engine = name
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False)
class Product:
    """A linear layer or a convolution with all that it is given."""

    op: str
    x: Held
    w: Held
    bias: Array | None
    out: Map
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1
    relu: bool = False
    summand: Held | None = None

    @property
    def attrs(self) -> dict[str, Attr]:
        if self.op == "linear":
            return {}
        n = self.x.data.ndim - 2
        return {
            "stride": (self.stride,) * n,
            "pad": (self.pad,) * 2 * n,
            "dilation": (self.dilation,) * n,
            "groups": self.groups,
        }


def run_product(name: str, case: Product) -> Array:
    """What an engine makes of it."""
    ops = torch.ops.quantized
    bias = None if case.bias is None else torch.from_numpy(case.bias)
    with engine(name):
        x, w = tensor(case.x), tensor(case.w)
        scale, zero = float(case.out.scale), int(case.out.zero)
        end = "_relu" if case.relu else ""
        if case.op == "linear":
            packed = ops.linear_prepack(w, bias)
            return taken(getattr(ops, f"linear{end}")(x, packed, scale, zero))
        n = case.x.data.ndim - 2
        sides = ([case.stride] * n, [case.pad] * n, [case.dilation] * n)
        packed = getattr(ops, f"{case.op}_prepack")(w, bias, *sides, case.groups)
        if case.summand is not None:
            other = tensor(case.summand)
            return taken(getattr(ops, f"conv2d_add{end}")(x, other, packed, scale, zero))
        return taken(getattr(ops, f"{case.op}{end}")(x, packed, scale, zero))


def run_pointwise(case: Product) -> Array:
    """What inductor's kernels of oneDNN make of it; weights have a scale a channel."""
    ops, m = torch.ops.onednn, case.x.map
    assert m is not None
    assert case.w.map is not None
    x, w = torch.from_numpy(case.x.data), torch.from_numpy(case.w.data)
    scales = torch.from_numpy(np.broadcast_to(case.w.map.scale, len(case.w.data)).copy())
    zeros = torch.zeros(len(case.w.data), dtype=torch.long)
    bias = None if case.bias is None else torch.from_numpy(case.bias)
    given = (float(m.scale), int(m.zero))
    end = (float(case.out.scale), int(case.out.zero), torch.uint8, "relu" if case.relu else "none")
    if case.op == "linear":
        packed = ops.qlinear_prepack(w, None)
        return taken(ops.qlinear_pointwise(x, *given, packed, scales, zeros, bias, *end, [], ""))
    n = case.x.data.ndim - 2
    sides = ([case.stride] * n, [case.pad] * n, [case.dilation] * n, case.groups)
    packed = ops.qconv_prepack(w, scales, *given, *sides, list(x.shape))
    return taken(ops.qconv_pointwise(x, *given, packed, scales, zeros, bias, *sides, *end, [], ""))


def run_products(name: str, cases: Sequence[Product]) -> list[Array]:
    """What an engine makes of each, or oneDNN's own kernels."""
    if name == "pt2e":
        return [run_pointwise(case) for case in cases]
    return [run_product(name, case) for case in cases]


@contextmanager
def processor(isa: str, name: str = "ONEDNN_MAX_CPU_ISA") -> Iterator[ProcessPoolExecutor]:
    """Starts another process in which oneDNN, or who reads that variable, takes the processor for
    one of that kind; skips the test where the processor lacks it, since a cap adds nothing."""
    require_cap(isa)
    before = os.environ.get(name)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        os.environ[name] = isa
        try:
            pool.submit(run_products, "onednn", []).result()
        finally:  # this process's own oneDNN reads it too, once and for all
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before
        yield pool


_UNKNOWN = {
    "avx512": ("avx512vnni", "avxvnni"),
    "avx2": ("avx512vnni", "avxvnni", "avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"),
}
"""What a processor before VNNI has not, by the name that profiles have for it."""


@contextmanager
def older(isa: str) -> Iterator[ProcessPoolExecutor]:
    """Starts another process in which torch and fbgemm take the processor for one before VNNI; not
    so oneDNN, which looks for itself. Skips the test where the processor has no VNNI itself."""
    require("vnni")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(forget, _UNKNOWN[isa]).result()
        yield pool


def forget(features: Sequence[str]) -> None:
    """Takes features of the processor from what cpuinfo found, before anybody asks for them.

    Its record has a byte for each, in the order of its header; those of 32 bits stand apart. Two
    libraries of torch 2.15 have a copy: torch reads the first one among those of torch._C.
    """
    torch.backends.cpu.get_cpu_capability()  # cpuinfo looks
    folder = os.path.dirname(torch.__file__)
    with open(os.path.join(folder, "include", "cpuinfo.h"), encoding="utf-8") as file:
        _, _, rest = file.read().partition("struct cpuinfo_x86_isa {")
    body = re.sub(r"#if CPUINFO_ARCH_X86\n.*?#endif", "", rest.partition("};")[0], flags=re.DOTALL)
    names = re.findall(r"bool (\w+);", body)
    library = ctypes.CDLL(torch._C.__file__)
    record = (ctypes.c_ubyte * len(names)).in_dll(library, "cpuinfo_isa")
    assert set(record) <= {0, 1}
    for name in features:
        assert name == "avxvnni" or record[names.index(name)], f"no {name} before"
        record[names.index(name)] = 0


# -- QIR ------------------------------------------------------------------------------------------


def kind_of(held: Held) -> TensorType:
    """The type of what is held."""
    return TensorType(held.data.shape, element(held.map, held.data))


def element(m: Map | None, data: Array | None = None) -> DType | QuantType:
    """The element type of a map, or of plain data."""
    if m is None:
        assert data is not None
        return dtype_of(data)
    axis = m.axis if m.scale.ndim else None
    zero = m.zero if m.scale.ndim else int(m.zero)
    return uniform(dtype(m.storage), m.scale, zero, axis=axis)


@dataclass(frozen=True, eq=False)
class Asked:
    """One op, or a row of them, on what is held."""

    op: str
    operands: Mapping[str, Held]
    out: Map | None
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    tails: tuple[str, ...] = ()


def computed(asked: Asked, profile: str) -> Array:
    """What QIR computes under a profile."""
    graph = Graph(profile=profile)
    given: dict[str, Value] = {}
    fed: dict[str, Array] = {}
    for slot, held in asked.operands.items():
        name = slot.replace(".", "")
        if slot in ("w", "bias", "slope", "gamma", "beta", "mean", "var"):
            given[slot] = graph.constant(Stored(held.data, kind_of(held), name))
        else:
            given[slot] = graph.add("input", types=[kind_of(held)], name=name).result
            fed[name] = held.data
    plain = graph.add(asked.op, _meant(graph, given), dict(asked.attrs)).result.type
    kind = plain.with_element(element(asked.out)) if asked.out else plain
    if asked.tails:
        first = Stage(asked.op, spec(asked.op).complete_attrs(dict(asked.attrs)), tuple(given))
        rest = tuple(Stage(op, spec(op).complete_attrs({}), (), "x") for op in asked.tails)
        node = graph.add_chain((first, *rest), given, kind)
    else:
        node = graph.add(asked.op, given, dict(asked.attrs), types=[kind])
    graph.add("output", {"y": node.result})
    graph.prune()
    return run(graph, fed)["y"]


def _meant(graph: Graph, given: Mapping[str, Value]) -> dict[str, Value]:
    """The operands dequantized, to learn what shape a result has."""
    return {
        slot: graph.add("dequantize", {"x": v}).result if v.type.quant else v
        for slot, v in given.items()
    }


def product_of(case: Product, profile: str) -> Array:
    """What QIR computes for a product."""
    operands = {"x": case.x, "w": case.w}
    if case.bias is not None:
        operands["bias"] = Held(case.bias)
    tails = ("relu",) if case.relu else ()
    return computed(Asked(case.op, operands, case.out, case.attrs, tails), profile)


# -- sums by formulas of their own ----------------------------------------------------------------


def exact(case: Product) -> NDArray[np.float64]:
    """Sums of products, as torch adds reals."""
    assert case.x.map is not None
    assert case.w.map is not None
    x = torch.from_numpy(case.x.data.astype(np.float64) - float(case.x.map.zero))
    n = case.x.data.ndim - 2
    zero = case.w.map.zero.reshape(-1, *[1] * (case.w.data.ndim - 1))
    w = torch.from_numpy(case.w.data.astype(np.float64) - zero)
    if case.op == "linear":
        return np.asarray(torch.nn.functional.linear(x, w).numpy())
    sides = (case.stride, case.pad, case.dilation, case.groups)
    return np.asarray(getattr(torch.nn.functional, f"conv{n}d")(x, w, None, *sides).numpy())


def paired(case: Product) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sums of pairs that end at 16 bits, and exact ones: windows as torch unfolds them, the
    channels of a group last."""
    assert case.x.map is not None
    assert case.w.map is not None
    x, taps = torch.from_numpy(case.x.data.astype(np.int64)), case.w.data.shape[2:]
    n, zero = len(taps), int(case.x.map.zero)
    x = torch.nn.functional.pad(x, [case.pad] * 2 * n, value=zero)
    for axis, size in enumerate(taps):
        x = x.unfold(2 + axis, (size - 1) * case.dilation + 1, case.stride)[..., :: case.dilation]
    split = x.reshape(len(x), case.groups, -1, *x.shape[2:])
    windows = split.permute(0, 1, *range(3, 3 + 2 * n), 2).flatten(2 + n).numpy()
    windows = np.repeat(windows, len(case.w.data) // case.groups, axis=1)
    row = np.moveaxis(case.w.data.astype(np.int64), 1, -1).reshape(1, len(case.w.data), 1, -1)
    products = windows.reshape(*windows.shape[:2], -1, windows.shape[-1]) * row
    odd = np.zeros((*products.shape[:-1], products.shape[-1] % 2), np.int64)
    pairs = np.concatenate([products, odd], -1)
    pairs = pairs.reshape(*pairs.shape[:-1], -1, 2).sum(-1)
    shift = np.broadcast_to(case.w.map.zero, row.shape[1]).reshape(-1, 1)
    seen = windows.reshape(*products.shape).sum(-1) * shift
    moved = seen + zero * (row.sum(-1) - shift * row.shape[-1])
    shape = (*windows.shape[:2], *windows.shape[2:-1])
    lost = (np.clip(pairs, -32768, 32767) - pairs).sum(-1)
    whole = pairs.sum(-1) - moved
    return (whole + lost).reshape(shape), whole.reshape(shape)


def in_steps(case: Product, sums: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The result of such sums in units of its code."""
    assert case.x.map is not None
    assert case.w.map is not None
    shape = (1, -1, *[1] * (case.x.data.ndim - 2))
    step = case.x.map.scale.astype(np.float64) * case.w.map.scale.astype(np.float64)
    real = sums * (step.reshape(shape) if step.ndim else step)
    if case.bias is not None:
        real = real + case.bias.astype(np.float64).reshape(shape)
    return np.asarray(real / float(case.out.scale))


# -- what is compared -----------------------------------------------------------------------------


def claim(name: str, asked: Asked) -> str:
    """What the profile says of that op on operands of these shapes."""
    storage = {s: h.map.storage for s, h in asked.operands.items() if h.map}
    if asked.out is not None:
        storage["result"] = asked.out.storage
    types = {s: kind_of(h) for s, h in asked.operands.items()}
    forms = forms_of(asked.op, types, asked.attrs)
    query = Query(asked.op, storage, attrs=asked.attrs, forms=forms)
    return profile(name).resolve(query).claim


def reals(held: Held) -> NDArray[np.float64]:
    """What codes mean."""
    assert held.map is not None
    steps = held.data.astype(np.float64) - held.map.zero.astype(np.float64)
    return np.asarray(steps * held.map.scale.astype(np.float64))


@dataclass
class Tally:
    """How many elements were compared, how many differ, and how rich they were."""

    total: int = 0
    wrong: int = 0
    most: int = 0
    ties: int = 0
    low: int = 0
    high: int = 0
    where: str = ""

    def add(self, found: Array, wanted: Array, where: str) -> None:
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
        off = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
        self.total += off.size
        note(found, wanted)
        if off.any():
            self.where = self.where or where
            self.wrong += int((off > 0).sum())
            self.most = max(self.most, int(off.max()))

    def see(self, reals: NDArray[np.float64], out: Map) -> None:
        """Counts ties and saturation of results, in units of the code from the zero point."""
        low, high = out.bounds
        below, above = reals + float(out.zero) < low - 0.5, reals + float(out.zero) > high + 0.5
        near = NEAR * np.maximum(1, np.abs(reals))
        tie = (np.abs(reals - np.floor(reals) - 0.5) <= near) & ~below & ~above
        counted = [int(np.count_nonzero(found)) for found in (tie, below, above)]
        self.ties, self.low, self.high = np.add([self.ties, self.low, self.high], counted).tolist()

    def rich(self) -> None:
        """At least 5 % exact ties, and 5 % saturated at either side."""
        found = [n / self.total for n in (self.ties, self.low, self.high)]
        assert min(found) >= 0.05, f"ties, low and high saturated: {found}"

    def exact(self) -> None:
        said = f"{self.wrong} of {self.total} differ, first at {self.where}"
        assert self.total, "nothing was compared"
        assert not self.wrong, said

    def within(self, claim: str) -> None:
        """Holds to a claim, `exact` or `within:steps:rate`."""
        if claim == "exact":
            self.exact()
            return
        word, steps, rate = claim.split(":")
        assert word == "within"
        said = f"{self.wrong} of {self.total} differ by up to {self.most}, first at {self.where}"
        assert self.most <= int(steps), said
        assert self.wrong <= float(rate) * self.total, said


def hold(tally: Tally, name: str, asked: Asked, made: torch.Tensor, where: object) -> None:
    """Compares what QIR computes with what torch made."""
    tally.add(computed(asked, name), taken(made), f"{asked.op} {where}")
