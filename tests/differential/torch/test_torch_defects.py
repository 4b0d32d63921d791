"""Layers that torch's kernels compute from memory beyond the data: nothing is claimed of them."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
import torch

from qir.ir.ops import spec
from qir.profiles import profile, query_for_op
from tests.differential.torch.kernels import (
    Asked,
    F,
    Held,
    Product,
    computed,
    engine,
    kind_of,
    of,
    processor,
    product_of,
    run_product,
    run_products,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named
from tests.processors import LACKS, has

from .test_torch_layers import torchs_transposed
from .test_torch_products import made_by
from .test_torch_products import pytestmark as here

pytestmark = here


def layer(op: str, sides: tuple[int, ...], w: tuple[int, ...], **sizes: int) -> Product:
    rng = np.random.default_rng(0)
    channels = w[1] * sizes.get("groups", 1)
    x = rng.integers(0, 256, (2, channels, *sides)).astype(np.uint8)
    weights = rng.integers(-128, 128, w).astype(np.int8)
    held = Held(x, of("u8", 0.05, 13)), Held(weights, of("i8", 0.01))
    return Product(op, *held, None, of("u8", F(0.45), 128), **sizes)  # type: ignore[arg-type]


def claim(case: Product, name: str, isa: str = "any") -> str:
    types = {"x": kind_of(case.x), "w": kind_of(case.w)}
    asked = query_for_op(case.op, spec(case.op).complete_attrs(case.attrs), types, types["x"])
    return profile(name).on(isa).resolve(asked).claim


PADDING = layer("conv2d", (8, 5), (10, 1, 2, 2), pad=2, groups=5)
LARGER = layer("conv2d", (7, 7), (80, 1, 2, 2), pad=2, groups=5)
SLICE = layer("conv3d", (1, 4, 5), (32, 1, 3, 3, 3), pad=1, groups=2)
COLUMN = layer("conv3d", (7, 7, 4), (8, 16, 3, 3, 3), stride=2)
COLUMNS = [
    layer("conv2d", (10, 2), (64, 64, 3, 3), stride=2, pad=1),
    layer("conv2d", (15, 1), (8, 16, 3, 3), stride=3, pad=1, groups=2),
    layer("conv2d", (13, 5), (16, 32, 5, 5), stride=2, groups=2),
    layer("conv2d", (13, 5), (32, 8, 3, 3), stride=2, dilation=2),
]
BESIDE = [
    layer("conv2d", (8, 2), (64, 64, 3, 3), stride=2, pad=1),
    layer("conv2d", (10, 3), (64, 64, 3, 3), stride=2, pad=1),
    layer("conv2d", (10, 2), (64, 64, 1, 1), stride=2),
    layer("conv2d", (10, 1), (64, 64, 3, 3), pad=1),
    layer("conv2d", (10, 2), (16, 1, 3, 3), stride=2, pad=1, groups=16),
    layer("conv1d", (2,), (64, 64, 3), stride=2, pad=1),
]
"""Layers that are all but ones of one column in steps, whose integers are right."""


def test_what_onednn_sums_beyond_the_data_is_not_claimed() -> None:
    for case in (PADDING, LARGER, SLICE):
        for name in ("x86", "onednn", "pt2e"):
            assert claim(case, named(name)) == "unknown"
        for name in ("fbgemm", "qnnpack"):
            assert claim(case, named(name)) == "exact"


def test_it_sums_what_is_beyond_the_data() -> None:
    cases = [PADDING, LARGER, SLICE] * 6
    try:
        with processor("AVX512_CORE_VNNI") as pool:
            made = made_by(pool, "onednn", cases)
    except BrokenProcessPool:
        return  # or it ends the process
    off: dict[int, int] = {}
    for case, one in zip(cases, made, strict=True):
        wanted = product_of(case, named("onednn")).astype(int)
        off[case.pad] = max(off.get(case.pad, 0), int(np.abs(one - wanted).max()))
    assert min(off.values()) > 1


def test_columns_of_volumes_are_not_claimed_with_amx() -> None:
    for name in ("x86", "onednn", "pt2e"):
        assert claim(COLUMN, named(name), "amx") == "unknown"
        assert claim(COLUMN, named(name)) != "unknown"


def test_columns_of_images_are_not_claimed_with_amx_but_those_beside_them() -> None:
    wide = layer("conv2d", (10, 2), (202, 2, 3, 3), stride=2, pad=1, groups=101)
    for name in ("x86", "onednn", "pt2e"):
        for case in COLUMNS:
            assert claim(case, named(name), "amx") == "unknown"
            assert claim(case, named(name)) != "unknown"
        for case in BESIDE:
            assert claim(case, named(name), "amx") != "unknown"
    assert claim(wide, named("onednn"), "amx") == "unknown"
    assert claim(wide, named("onednn")) != "unknown"


@pytest.mark.skipif(not has("amx"), reason=f"{LACKS}AMX")
@pytest.mark.parametrize("name", ["x86", "onednn", "pt2e"])
def test_columns_of_images_have_wrong_integers_with_amx(name: str) -> None:
    for case, wrong in [(c, True) for c in COLUMNS] + [(c, False) for c in BESIDE]:
        made = run_products(name, [case])[0].astype(int)
        off = np.abs(made - product_of(case, named(name)))
        assert (off.max() > 1) == wrong, (case.op, case.x.data.shape, case.w.data.shape)


def test_what_fbgemm_writes_beyond_its_memory_is_not_claimed() -> None:
    rest = layer("conv2d", (5, 5), (18, 2, 3, 3), pad=1, groups=9)
    short = layer("conv3d", (2, 6, 6), (8, 1, 5, 5, 5), pad=2, stride=2, groups=8)
    wide = layer("conv2d", (5, 5), (202, 2, 3, 3), pad=1, groups=101)
    for case, name in ((rest, "fbgemm"), (short, "fbgemm"), (wide, "fbgemm"), (wide, "x86")):
        assert claim(case, named(name)) == "unknown"
    assert claim(rest, named("x86")) == "within:1:0.001"
    assert claim(wide, named("onednn")) == "within:1:0.001"


def test_convolutions_without_vnni_are_claimed_of_fbgemm_and_not_of_onednn() -> None:
    own = layer("conv2d", (5, 5), (8, 1, 3, 3), pad=1, groups=8)
    for isa in ("avx2", "avx512"):
        for case in (PADDING, COLUMN, SLICE):
            for name in ("onednn", "pt2e"):
                assert claim(case, named(name), isa) == "unknown"
            for name in ("fbgemm", "x86"):
                assert claim(case, named(name), isa) == "exact"
        assert claim(own, named("fbgemm"), isa) == "exact"


def scattered(images: int, stride: int, zero: int, outof: int = 8, kind: str = "full") -> Asked:
    """A transposed convolution of which fbgemm has a kernel of its own, or all but one."""
    rng = np.random.default_rng(images)
    data = rng.integers(0, 256, (images, 8, 5, 5)).astype(np.uint8)
    most = 128 if kind == "full" else 9
    weights = rng.integers(-most, most, (8, outof, 2, 2)).astype(np.int8)
    held = {"x": Held(data, of("u8", 0.05, zero)), "w": Held(weights, of("i8", 0.01))}
    attrs = {"stride": (stride,) * 2, "pad": (0,) * 4, "output_pad": (0, 0), "dilation": (1, 1)}
    return Asked("conv_transpose2d", held, of("u8", 0.005 * most, 128), {**attrs, "groups": 1})


def scattered_claim(asked: Asked, name: str, isa: str = "any") -> str:
    types = {slot: kind_of(held) for slot, held in asked.operands.items()}
    found = query_for_op(
        asked.op, spec(asked.op).complete_attrs(dict(asked.attrs)), types, types["x"]
    )
    return profile(name).on(isa).resolve(found).claim


def torchs_scattered(asked: Asked) -> np.ndarray:
    stride = asked.attrs["stride"]
    assert isinstance(stride, tuple)
    sides = [[int(str(s)) for s in stride], [0, 0], [0, 0], [1, 1]]
    with engine("fbgemm"):
        return taken(torchs_transposed(asked, sides))


def test_what_fbgemm_scatters_two_rows_at_a_time_is_not_claimed() -> None:
    own = [scattered(2, 2, 13), scattered(2, 1, 0), scattered(1, 1, 13), scattered(1, 2, 0)]
    for asked in own:
        assert scattered_claim(asked, named("fbgemm")) == "unknown"
        assert scattered_claim(asked, named("x86"), "avx2") == "unknown"
        assert scattered_claim(asked, named("x86")) == "within:1:0.002"
        assert scattered_claim(asked, named("qnnpack")) == "exact"
        off = computed(asked, named("fbgemm")) != torchs_scattered(asked)
        assert np.mean(off) > 0.1
    beside = scattered(2, 2, 13, outof=9)
    assert scattered_claim(beside, named("fbgemm")) == "exact"
    assert np.array_equal(computed(beside, named("fbgemm")), torchs_scattered(beside))
    one = scattered(1, 1, 0, kind="few")  # the only one that is right, where no pair saturates
    assert np.array_equal(computed(one, named("fbgemm")), torchs_scattered(one))


def test_results_beyond_32_bits_are_turned_round_as_the_notes_say() -> None:
    x, w = np.full((2, 9), 200, np.uint8), np.ones((3, 9), np.int8)
    turned = {"fbgemm": True, "x86": True, "qnnpack": True, "onednn": False}
    for relu in (False, True):
        held = Held(x, of("u8", 1.0)), Held(w, of("i8", 1.0))
        case = Product("linear", *held, None, of("u8", 1e-9, 77), relu=relu)
        for name, low in turned.items():
            made = run_product(name, case)
            assert set(made.flat) == {(77 if relu else 0) if low else 255}
            assert set(product_of(case, named(name)).flat) == {255}
    layers = profile(named("fbgemm")).layers
    assert any("2^31" in note for layer in layers for note in layer.head.notes)


@pytest.mark.filterwarnings("error")
def test_floats_that_no_float_holds_are_warned_of_nowhere() -> None:
    data = np.array([[[[0, 255], [255, 255]]]], np.uint8)
    held = {"x": Held(data, of("u8", 3e38, 0))}
    asked = Asked("avg_pool2d", held, of("u8", 1.0), {"kernel": (1, 2), "stride": (1, 1)})
    for name in ("ort-1.31", "native", named("fbgemm")):
        assert computed(asked, name).shape == (1, 1, 2, 1)


def test_qnnpack_clamps_channels_last_integers_to_other_places() -> None:
    """They are written in the order that they have in memory, to a tensor of the plain order."""
    rng = np.random.default_rng(0)
    for shape in ((1, 5, 4, 4), (2, 3, 2, 4, 5)):
        held = Held(rng.integers(0, 256, shape).astype(np.uint8), of("u8", 0.05, 101))
        lying = np.moveaxis(held.data, 1, -1)
        for name in ("qnnpack", "fbgemm"):
            with engine(name):
                made = taken(torch.clamp(tensor(held, channels_last=True), -1.0, 2.0))
            meant = lying.reshape(shape) if name == "qnnpack" else held.data
            assert np.array_equal(made, np.clip(meant, 81, 141)), name
        assert not np.array_equal(lying.reshape(shape), held.data)
    steps = {name: profile(named(name)).prepare for name in ("qnnpack", "fbgemm")}
    assert "channels_last_moved_clips" in steps["qnnpack"]
    assert "channels_last" in steps["fbgemm"]
