"""An average pool whose window is the whole image, which onnxruntime gives to its global pool."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir._kernels import _cpu
from qir.backends.cpu import CpuTarget
from qir.ir.attrs import Attr
from qir.ir.dtype import I8, U8, DType
from qir.ir.graph import Graph
from qir.ir.types import TensorType, uniform

pytest.importorskip("onnxruntime")

from tests.differential.onnxruntime.kernels import MS, run_operator

F = np.float32
CHANNELS = 67


def pool(
    storage: DType, maps: list[tuple[np.float32, int]], kernel: tuple[int, int], layout: str
) -> Graph:
    """One pool of an image of the kernel's size."""
    graph = Graph()
    nchw = layout == "NCHW"
    shapes = [
        (2, CHANNELS, *kernel) if nchw else (2, *kernel, CHANNELS),
        (2, CHANNELS, 1, 1) if nchw else (2, 1, 1, CHANNELS),
    ]
    kinds = [
        TensorType(shape, uniform(storage, np.array(scale, F), zero))
        for shape, (scale, zero) in zip(shapes, maps, strict=True)
    ]
    x = graph.add("input", types=[kinds[0]], name="x").result
    given: dict[str, Attr] = {"kernel": kernel, "layout": layout}
    graph.add("output", {"y": graph.add("avg_pool2d", {"x": x}, given, types=[kinds[1]]).result})
    return graph


def in_order_of_the_window(
    x: NDArray[np.int64], maps: list[tuple[np.float32, int]], low: int, high: int
) -> NDArray[np.int64]:
    """What the kernel of smaller windows would give."""
    (sx, zx), (sy, zy) = maps
    total = np.zeros(x.shape[:2], F)
    for i, j in np.ndindex(x.shape[2:]):
        total = total + (x[:, :, i, j] - zx).astype(F) * sx
    mean = total / F(x.shape[2] * x.shape[3]) / sy + F(zy)
    out: NDArray[np.int64] = np.rint(mean).astype(np.int64).clip(low, high)
    return out


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("storage", [U8, I8], ids=str)
@pytest.mark.parametrize("kernel", [(3, 3), (7, 7), (1, 1), (2, 1)], ids=str)
def test_a_window_of_the_whole_image_is_the_global_pools(
    kernel: tuple[int, int], storage: DType, layout: str
) -> None:
    low, high = storage.bounds
    moved = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        zeros = [int(z) for z in rng.integers(low // 2, high // 2, 2) * 2 + 1]
        scale = F(rng.uniform(0.01, 0.05))
        pixels = kernel[0] * kernel[1]
        ratio = F((2, 2 / pixels, 0.7, 4)[seed % 4])  # many results are ties, or close
        maps = [(scale, zeros[0]), (F(scale * ratio), zeros[1])]
        x = rng.integers(low, high + 1, (2, CHANNELS, *kernel)).astype(storage.carrier)
        given = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        numbers = [
            np.asarray(n, kind) for m in maps for n, kind in zip(m, (F, x.dtype), strict=True)
        ]
        wanted = run_operator(
            "QLinearAveragePool",
            [given, *numbers],
            x.dtype,
            domain=MS,
            kernel_shape=kernel,
            channels_last=int(layout == "NHWC"),
        )
        graph = pool(storage, maps, kernel, layout)
        for isa in _cpu.isa():
            got = np.asarray(CpuTarget().compile(graph, isa=isa)(x=given)["y"])
            assert np.array_equal(got, wanted), f"seed {seed}, {isa}"
        other = in_order_of_the_window(x.astype(np.int64), maps, low, high)
        moved += int((other.ravel() != wanted.ravel()).sum())
    assert moved > 0, "the two formulas never differ here"


@pytest.mark.parametrize("spatial", [(32,), (3, 4, 5)])
def test_means_of_integers_along_one_or_three_axes_are_the_references(
    spatial: tuple[int, ...],
) -> None:
    sizes, ones = ("x".join(map(str, s)) for s in (spatial, (1,) * len(spatial)))
    graph = qir.parse(
        f"graph main as native {{ %x = input() : (N)x10x{sizes}x!quant.uniform<u8:f32, 0.5:3>\n"
        f"%y = global_avg_pool(%x) : (N)x10x{ones}x!quant.uniform<u8:f32, 0.25:7>\noutput(y=%y) }}"
    )
    x = np.random.default_rng(2).integers(0, 256, (4, 10, *spatial)).astype(np.uint8)
    mean = (x.astype(np.float64) - 3).mean(tuple(range(2, x.ndim)), keepdims=True)
    wanted = np.clip(np.rint(mean * 0.5 / 0.25) + 7, 0, 255)
    found = np.asarray(qir.compile(graph)(x=x)["y"]).astype(int)
    assert np.array_equal(found, qir.run(graph, {"x": x})["y"])
    assert np.abs(found - wanted).max() <= 1  # float32 may make another side of a tie
