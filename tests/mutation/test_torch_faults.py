"""One field of a profile of torch's engines changed: it is found, or listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from qir.numerics import Profile, profile
from tests.differential import test_torch_codes as whole
from tests.differential import test_torch_elements as elements
from tests.differential import test_torch_layers as layers
from tests.differential import test_torch_means as means
from tests.differential import test_torch_products as products
from tests.differential.kernels_of_torch import F, Held, Product, Tally, of, processor, product_of
from tests.differential.kernels_of_torch import run_products as run_in
from tests.mutation.fields import Mutant, survivors
from tests.mutation.indistinct import same

Check = Callable[[], None]

pytestmark = [products.pytestmark, pytest.mark.slow]


@pytest.fixture(scope="module")
def vnni() -> Iterator[ProcessPoolExecutor]:
    with processor("AVX512_CORE_VNNI") as pool:
        yield pool


def long(seed: int) -> Product:
    """A sum that 32 bits do not hold, of pairs that 16 bits do not."""
    rng = np.random.default_rng(seed)
    terms = 67_000 + seed
    weights = np.full((3, terms), 127, np.int8) - rng.integers(0, 2, (3, terms)).astype(np.int8)
    data = np.full((2, terms), 255, np.uint8)
    wide = of("u8", F(2.0**25), 121)
    return Product("linear", Held(data, of("u8", 1.0, 0)), Held(weights, of("i8", 1.0)), None, wide)


def cases() -> list[Product]:
    found = [products.linear(seed, many) for seed in range(7) for many in (False, True)]
    found += [products.conv(seed, many, 2) for seed in range(6) for many in (False, True)]
    found += [products.conv(seed, many, 1) for seed in range(10) for many in (False, True)]
    return [*found, *(long(seed) for seed in range(3))]


def many_scales(case: Product) -> bool:
    return case.w.map is not None and case.w.map.scale.ndim > 0


class Sums:
    """What an engine made of sums of products, to be compared again and again."""

    def __init__(self, engine: str, pool: ProcessPoolExecutor) -> None:
        self.name = f"torch-2.13.{engine}"
        self.cases = cases()
        both = (False, True)
        if engine == "x86":
            more = [products.conv(seed, many, 2) for seed in range(6, 40) for many in both]
            self.cases += more
        if engine in ("x86", "fbgemm"):
            count = 30 if engine == "x86" else 8
            self.cases += [products.conv(seed, many, 3) for seed in range(count) for many in both]
        if engine == "pt2e":
            kinds = ("linear", "conv2d")
            self.cases = [c for c in self.cases if c.op in kinds and many_scales(c)]
        self.made = pool.submit(run_in, engine, self.cases).result()

    def check(self, op: str = "") -> None:
        tally = Tally()
        for case, wanted in zip(self.cases, self.made, strict=True):
            if not op or case.op == op:
                tally.add(product_of(case, self.name), wanted, case.op)
                tally.exact()


class Summands:
    """Convolutions with a summand: no change may bring them as near to the engine's."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.cases = [products.summed(seed) for seed in range(16)]
        self.made = pool.submit(run_in, "onednn", self.cases).result()
        self.right = self.wrong()

    def wrong(self) -> int:
        tally = Tally()
        for case, wanted in zip(self.cases, self.made, strict=True):
            tally.add(products.chained(case, "torch-2.13.x86"), wanted, "a sum")
        return tally.wrong

    def check(self) -> None:
        assert self.wrong() <= self.right


def codes() -> None:
    for kind in whole.KINDS:
        whole.test_quantize_per_tensor_is_torchs_for_every_length_and_special_value(kind)


def channels() -> None:
    for kind in ("u8", "i8"):
        whole.test_quantize_per_channel_is_torchs(kind, 1)


def fakes() -> None:
    for many in (False, True):
        whole.test_fake_quantize_is_torchs(many, whole.FBGEMM)


def reals() -> None:
    for many in (False, True):
        whole.test_dequantize_is_torchs("u8", many)


def ranges(engine: str) -> None:
    engine = "fbgemm" if engine == "x86" else engine
    for kind, scheme in (("u8", "affine"), ("i8", "affine"), ("i8", "symmetric")):
        whole.test_scales_and_zero_points_are_those_of_torchs_observers(engine, kind, scheme)
    whole.test_scales_of_weights_are_those_of_torchs_observers()


def dynamic() -> None:
    whole.test_the_numbers_of_dynamic_layers_are_torchs(False)


def pools() -> None:
    for kind in elements.KINDS:
        for last in (False, True):
            elements.test_average_pools_are_torchs(kind, last)
            elements.test_global_means_are_torchs(kind, last)
        elements.test_means_of_parts_and_of_volumes_are_torchs(kind)


def unary(engine: str) -> None:
    for op in elements.UNARY:
        elements.test_activations_of_every_code_are_torchs(engine, op, "u8")


def two(engine: str, op: str) -> Check:
    def check() -> None:
        elements.test_sums_and_products_of_codes_are_torchs(engine, op, "u8", False)

    return check


def joined() -> None:
    for last in (False, True):
        elements.test_concat_is_torchs("u8", last, False)


def norms() -> None:
    for op in elements.NORMS:
        elements.test_norms_are_as_near_to_torchs_as_is_claimed(op, "u8")
    elements.test_softmax_is_as_near_to_torchs_as_is_claimed("u8")


def codes_alone() -> None:
    elements.test_batch_norm_is_torchs("u8")
    elements.test_prelu_is_torchs("u8")
    elements.test_greatest_codes_are_torchs("u8")


def transposed(engine: str) -> Check:
    def check() -> None:
        for rank in (1, 2, 3)[: 2 if engine == "qnnpack" else 3]:
            layers.test_transposed_convolutions_are_the_engines(engine, False, rank)

    return check


def tables() -> None:
    for kind in ("u8", "u4"):
        layers.test_bags_of_rows_of_codes_are_torchs(kind, True)
        layers.test_single_rows_of_codes_are_torchs(kind)


def resizes() -> None:
    for last in (False, True):
        for mode in ("bilinear", "nearest"):
            layers.test_resizes_are_torchs(mode, "u8", last)


def other_means(engine: str) -> Check:
    def check() -> None:
        means.test_means_along_lines_and_over_volumes_are_torchs(engine, "u8")
        if engine == "qnnpack":
            for last in (False, True):
                means.test_means_over_images_are_those_of_qnnpack(last)
        else:
            means.test_means_over_other_axes_are_as_near_as_is_claimed("u8")

    return check


def products_of_data() -> None:
    elements.test_products_of_two_tensors_are_as_near_to_torchs_as_is_claimed("u8")


def decomposed() -> None:
    for kind in ("u8", "i8", "i32"):
        whole.test_decomposed_quantize_and_dequantize_are_torchs(kind)


def decomposed_channels() -> None:
    whole.test_decomposed_quantize_per_channel_is_torchs(1)


def stated(name: str) -> Profile:
    """The profile without what it says of other processors, and without claiming it."""
    found = profile(name)
    kept = [r for r in found.rules if not r.when.isa]
    kept = [r for r in kept if r.fields.get(("", "claim")) != "unknown"]
    return replace(found, rules=tuple(kept))


def checks(engine: str, sums: Sums) -> Mapping[str, tuple[Check, ...]]:
    """What a change of a block, or of an op's rule, can show in."""
    shared: dict[str, tuple[Check, ...]] = {
        "choose": (lambda: ranges(engine),),
        "conv2d": (lambda: sums.check("conv2d"), lambda: sums.check("linear")),
        "linear": (lambda: sums.check("linear"),),
        "conv1d": (lambda: sums.check("conv1d"), lambda: sums.check("conv3d")),
        "add": (two(engine, "add"),),
        "hard_swish": (lambda: unary(engine),),
        "conv_transpose1d": (transposed(engine),),
    }
    if engine == "qnnpack":
        shared |= dict.fromkeys(("avg_pool1d", "avg_pool2d", "reduce_mean"), (other_means(engine),))
    if engine != "fbgemm":
        return shared
    return shared | {
        "quantize": (codes, channels, fakes),
        "dequantize": (reals,),
        "choose_qparams": (dynamic,),
        "fake_quantize": (fakes,),
        "mul": (two(engine, "mul"),),
        "sigmoid": (lambda: unary(engine),),
        "relu": (lambda: elements.test_bounds_are_torchs("u8"),),
        "concat": (joined,),
        "softmax": (norms,),
        "batch_norm": (codes_alone,),
        "prelu": (codes_alone,),
        "max_pool1d": (codes_alone,),
        **dict.fromkeys(
            ("avg_pool1d", "avg_pool2d", "avg_pool3d", "global_avg_pool", "reduce_mean"),
            (pools, other_means(engine)),
        ),
        "embedding": (tables,),
        "matmul": (products_of_data,),
        "thresholded_relu": (lambda: elements.test_thresholds_are_torchs("u8"),),
        **dict.fromkeys(("resize", "resize_nearest"), (resizes,)),
    }


@pytest.mark.parametrize("engine", products.ENGINES)
def test_a_changed_field_is_found_or_listed(engine: str, vnni: ProcessPoolExecutor) -> None:
    sums = Sums(engine, vnni)
    sums.check()
    table = dict(checks(engine, sums))
    if engine == "x86":
        table["conv2d"] += (Summands(vnni).check,)

    def agrees(mutant: Mutant) -> None:
        key = mutant.ops[0] if mutant.ops else mutant.block
        for check in table.get(key, (sums.check,)):
            check()

    name = f"torch-2.13.{engine}"
    left = survivors(stated(name), agrees)
    print("LEFT", name, sorted(left))
    assert left == same(name)


def test_a_changed_field_of_exported_programs_is_found_or_listed(
    vnni: ProcessPoolExecutor,
) -> None:
    name = "torch-2.13.pt2e"
    sums = Sums("pt2e", vnni)
    sums.check()

    def agrees(mutant: Mutant) -> None:
        key = mutant.ops[0] if mutant.ops else mutant.block
        if key == "choose":
            assert profile(name).resolve(whole.asked("u8")).choose.reduce == "none"
        elif key == "fake_quantize":
            for many in (False, True):
                whole.test_fake_quantize_is_torchs(many, name)
        elif key == "conv2d":
            sums.check()
        else:
            decomposed()
            decomposed_channels()

    left = survivors(stated(name), agrees)
    print("LEFT", name, sorted(left))
    assert left == same(name)
