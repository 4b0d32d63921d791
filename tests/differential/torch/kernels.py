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
    """Integers and their map; floats where there is none."""

    data: Array
    map: Map | None = None


def of(
    storage: str, scale: float | np.floating | Array, zero: int | Array = 0, axis: int | None = None
) -> Map:
    """A map; one zero goes with many scales."""
    scales = np.asarray(scale, F)
    return Map(storage, scales, np.broadcast_to(np.asarray(zero, np.int64), scales.shape), axis)


def random_integers(rng: np.random.Generator, storage: str, *shape: int) -> Array:
    """Any integers of a storage type of 8 bits."""
    low, high = BOUNDS[storage]
    return rng.integers(low, high + 1, shape).astype(np.uint8 if storage == "u8" else np.int8)


# -- torch ----------------------------------------------------------------------------------------


def tensor(operand: Held, *, channels_last: bool = False) -> torch.Tensor:
    """The quantized tensor, with channels last in memory if so asked."""
    data, mapping = torch.from_numpy(np.ascontiguousarray(operand.data)), operand.map
    if mapping is None:
        return data
    if mapping.scale.ndim:
        quantized = torch._make_per_channel_quantized_tensor(
            data,
            torch.from_numpy(mapping.scale.astype(np.float64)),
            torch.tensor(mapping.zero),
            mapping.axis or 0,
        )
    else:
        quantized = torch._make_per_tensor_quantized_tensor(
            data, float(mapping.scale), int(mapping.zero)
        )
    if not channels_last:
        return quantized
    memory_format = torch.channels_last_3d if data.ndim == 5 else torch.channels_last
    return quantized.contiguous(memory_format=memory_format)


def taken(result: torch.Tensor) -> Array:
    """Returns the integers of a quantized tensor, or the elements of another."""
    elements = result.int_repr() if result.is_quantized else result
    return np.ascontiguousarray(elements.detach().numpy())


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
    """Returns what an engine computes of a product."""
    ops = torch.ops.quantized
    bias = None if case.bias is None else torch.from_numpy(case.bias)
    with engine(name):
        x, w = tensor(case.x), tensor(case.w)
        scale, zero = float(case.out.scale), int(case.out.zero)
        suffix = "_relu" if case.relu else ""
        if case.op == "linear":
            packed = ops.linear_prepack(w, bias)
            return taken(getattr(ops, f"linear{suffix}")(x, packed, scale, zero))
        n = case.x.data.ndim - 2
        geometry = ([case.stride] * n, [case.pad] * n, [case.dilation] * n)
        packed = getattr(ops, f"{case.op}_prepack")(w, bias, *geometry, case.groups)
        if case.summand is not None:
            summand = tensor(case.summand)
            return taken(getattr(ops, f"conv2d_add{suffix}")(x, summand, packed, scale, zero))
        return taken(getattr(ops, f"{case.op}{suffix}")(x, packed, scale, zero))


def run_pointwise(case: Product) -> Array:
    """What inductor's kernels of oneDNN make of it; weights have a scale a channel."""
    ops, x_map = torch.ops.onednn, case.x.map
    assert x_map is not None
    assert case.w.map is not None
    x, w = torch.from_numpy(case.x.data), torch.from_numpy(case.w.data)
    scales = torch.from_numpy(np.broadcast_to(case.w.map.scale, len(case.w.data)).copy())
    zeros = torch.zeros(len(case.w.data), dtype=torch.long)
    bias = None if case.bias is None else torch.from_numpy(case.bias)
    x_numbers = (float(x_map.scale), int(x_map.zero))
    result_numbers = (
        float(case.out.scale),
        int(case.out.zero),
        torch.uint8,
        "relu" if case.relu else "none",
    )
    if case.op == "linear":
        packed = ops.qlinear_prepack(w, None)
        return taken(
            ops.qlinear_pointwise(
                x, *x_numbers, packed, scales, zeros, bias, *result_numbers, [], ""
            )
        )
    n = case.x.data.ndim - 2
    geometry = ([case.stride] * n, [case.pad] * n, [case.dilation] * n, case.groups)
    packed = ops.qconv_prepack(w, scales, *x_numbers, *geometry, list(x.shape))
    return taken(
        ops.qconv_pointwise(
            x, *x_numbers, packed, scales, zeros, bias, *geometry, *result_numbers, [], ""
        )
    )


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
        _, _, after_struct = file.read().partition("struct cpuinfo_x86_isa {")
    # The fields of 32-bit processors are not in this build.
    body = re.sub(
        r"#if CPUINFO_ARCH_X86\n.*?#endif", "", after_struct.partition("};")[0], flags=re.DOTALL
    )
    names = re.findall(r"bool (\w+);", body)
    library = ctypes.CDLL(torch._C.__file__)
    record = (ctypes.c_ubyte * len(names)).in_dll(library, "cpuinfo_isa")
    assert set(record) <= {0, 1}
    for name in features:
        assert name == "avxvnni" or record[names.index(name)], f"no {name} before"
        record[names.index(name)] = 0


# -- QIR ------------------------------------------------------------------------------------------


def kind_of(operand: Held) -> TensorType:
    """Returns the type of an operand."""
    return TensorType(operand.data.shape, element(operand.map, operand.data))


def element(mapping: Map | None, data: Array | None = None) -> DType | QuantType:
    """Returns the element type of a map, or of plain data."""
    if mapping is None:
        assert data is not None
        return dtype_of(data)
    axis = mapping.axis if mapping.scale.ndim else None
    zero = mapping.zero if mapping.scale.ndim else int(mapping.zero)
    return uniform(dtype(mapping.storage), mapping.scale, zero, axis=axis)


@dataclass(frozen=True, eq=False)
class Asked:
    """One op, or a row of them, on what is held."""

    op: str
    operands: Mapping[str, Held]
    out: Map | None
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    tails: tuple[str, ...] = ()


def computed(asked: Asked, profile: str) -> Array:
    """Returns what QIR computes under a profile."""
    graph = Graph(profile=profile)
    values: dict[str, Value] = {}
    feeds: dict[str, Array] = {}
    for slot, operand in asked.operands.items():
        name = slot.replace(".", "")
        if slot in ("w", "bias", "slope", "gamma", "beta", "mean", "var"):
            values[slot] = graph.constant(Stored(operand.data, kind_of(operand), name))
        else:
            values[slot] = graph.add("input", types=[kind_of(operand)], name=name).result
            feeds[name] = operand.data
    float_type = graph.add(asked.op, _meant(graph, values), dict(asked.attrs)).result.type
    kind = float_type.with_element(element(asked.out)) if asked.out else float_type
    if asked.tails:
        first = Stage(asked.op, spec(asked.op).complete_attrs(dict(asked.attrs)), tuple(values))
        tail_stages = tuple(Stage(op, spec(op).complete_attrs({}), (), "x") for op in asked.tails)
        node = graph.add_chain((first, *tail_stages), values, kind)
    else:
        node = graph.add(asked.op, values, dict(asked.attrs), types=[kind])
    graph.add("output", {"y": node.result})
    graph.prune()
    return run(graph, feeds)["y"]


def _meant(graph: Graph, values: Mapping[str, Value]) -> dict[str, Value]:
    """The operands dequantized, to learn what shape a result has."""
    return {
        slot: graph.add("dequantize", {"x": v}).result if v.type.quant else v
        for slot, v in values.items()
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
    """Sums of products, as torch adds floats."""
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
    weighted = windows.reshape(*products.shape).sum(-1) * shift
    zero_part = weighted + zero * (row.sum(-1) - shift * row.shape[-1])
    shape = (*windows.shape[:2], *windows.shape[2:-1])
    lost = (np.clip(pairs, -32768, 32767) - pairs).sum(-1)
    exact_sums = pairs.sum(-1) - zero_part
    return (exact_sums + lost).reshape(shape), exact_sums.reshape(shape)


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
    """Returns what the profile claims of that op on operands of these shapes."""
    storage = {s: h.map.storage for s, h in asked.operands.items() if h.map}
    if asked.out is not None:
        storage["result"] = asked.out.storage
    types = {s: kind_of(h) for s, h in asked.operands.items()}
    forms = forms_of(asked.op, types, asked.attrs)
    query = Query(asked.op, storage, attrs=asked.attrs, forms=forms)
    return profile(name).resolve(query).claim


def dequantized(operand: Held) -> NDArray[np.float64]:
    """What integers mean."""
    assert operand.map is not None
    steps = operand.data.astype(np.float64) - operand.map.zero.astype(np.float64)
    return np.asarray(steps * operand.map.scale.astype(np.float64))


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

    def add(self, predicted: Array, actual: Array, where: str) -> None:
        assert (predicted.dtype, predicted.shape) == (actual.dtype, actual.shape), where
        distances = np.abs(predicted.astype(np.float64) - actual.astype(np.float64))
        self.total += distances.size
        note(predicted, actual)
        if distances.any():
            self.where = self.where or where
            self.wrong += int((distances > 0).sum())
            self.most = max(self.most, int(distances.max()))

    def see(self, floats: NDArray[np.float64], out: Map) -> None:
        """Counts ties and saturation of results, in units of the code from the zero point."""
        low, high = out.bounds
        below, above = floats + float(out.zero) < low - 0.5, floats + float(out.zero) > high + 0.5
        near = NEAR * np.maximum(1, np.abs(floats))
        tie = (np.abs(floats - np.floor(floats) - 0.5) <= near) & ~below & ~above
        counts = [int(np.count_nonzero(mask)) for mask in (tie, below, above)]
        self.ties, self.low, self.high = np.add([self.ties, self.low, self.high], counts).tolist()

    def rich(self) -> None:
        """At least 5 % exact ties, and 5 % saturated at either side."""
        shares = [n / self.total for n in (self.ties, self.low, self.high)]
        assert min(shares) >= 0.05, f"ties, low and high saturated: {shares}"

    def exact(self) -> None:
        message = f"{self.wrong} of {self.total} differ, first at {self.where}"
        assert self.total, "nothing was compared"
        assert not self.wrong, message

    def within(self, claim: str) -> None:
        """Holds to a claim, `exact` or `within:steps:rate`."""
        if claim == "exact":
            self.exact()
            return
        word, steps, rate = claim.split(":")
        assert word == "within"
        message = f"{self.wrong} of {self.total} differ by up to {self.most}, first at {self.where}"
        assert self.most <= int(steps), message
        assert self.wrong <= float(rate) * self.total, message


def hold(tally: Tally, name: str, asked: Asked, torch_result: torch.Tensor, where: object) -> None:
    """Compares what QIR computes with what torch made."""
    tally.add(computed(asked, name), taken(torch_result), f"{asked.op} {where}")
