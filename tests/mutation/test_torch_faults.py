"""One field of a profile of torch's engines changed: it is found, or listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import pytest

from qir.profiles import profile
from tests.differential import test_scale_rules
from tests.differential.torch import draws_of_torch as draws
from tests.differential.torch import pointwise_of_torch
from tests.differential.torch import test_torch_codes as whole
from tests.differential.torch import test_torch_depthwise as depth
from tests.differential.torch import test_torch_elements as elements
from tests.differential.torch import test_torch_layers as layers
from tests.differential.torch import test_torch_means as means
from tests.differential.torch import test_torch_moves as moves
from tests.differential.torch import test_torch_older as older
from tests.differential.torch import test_torch_plain as plain
from tests.differential.torch import test_torch_pointwise as pointwise
from tests.differential.torch import test_torch_products as products
from tests.differential.torch import test_torch_scales as scales
from tests.differential.torch.kernels import F, Held, Product, Tally, of, processor, product_of
from tests.differential.torch.profile_in_use import named
from tests.mutation import test_torch_versions_faults
from tests.mutation.fields import Mutant
from tests.mutation.indistinct import all_found, none_found
from tests.mutation.replay import Replay

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
    found = [products.linear(seed, many) for seed in range(10) for many in (False, True)]
    found += [products.conv(seed, many, 2) for seed in range(6) for many in (False, True)]
    found += [products.conv(seed, many, 1) for seed in range(10) for many in (False, True)]
    return [*found, *(long(seed) for seed in range(3))]


def of_engine(engine: str) -> list[Product]:
    """The sums of products that tell an engine's fields apart."""
    found, both = cases(), (False, True)
    if engine == "x86":
        found += [products.conv(seed, many, 2) for seed in range(6, 40) for many in both]
    if engine in ("x86", "fbgemm"):
        count = 30 if engine == "x86" else 8
        found += [products.conv(seed, many, 3) for seed in range(count) for many in both]
    seeds = [2, 8, 14, 1, 7, 13, 19, 25, 31, 37, 43]
    found += [depth.depthwise(s, rank, many) for s in seeds for rank in (2, 3) for many in both]
    found += [depth.full(seed, rank) for seed in range(3) for rank in (1, 2, 3)]
    found += beyond(engine)
    if engine == "fbgemm":
        found += [depth.large(seed) for seed in (6, 9, 11, 12)]
    if engine == "qnnpack":
        found += [depth.volume(seed) for seed in range(40)]
        found += [one for op in OPS for seed in range(8) for one in depth.between(op, seed)]
        found += [one for op in OPS for seed in range(4) for one in depth.far(op, seed)]
    if engine == "pt2e":
        found = [c for c in found if c.op in ("linear", "conv2d") and many_scales(c)]
    return found


OPS = ("linear", "conv1d", "conv2d", "conv3d")


def beyond(engine: str) -> list[Product]:
    """Layers that x86 leaves to fbgemm, and onednn does not."""
    if engine not in ("x86", "onednn"):
        return []
    count = {1: 24, 2: 96, 3: 12}
    shifted = engine == "x86"
    return [depth.beyond(s, rank, shifted=shifted) for rank in count for s in range(count[rank])]


def many_scales(case: Product) -> bool:
    return case.w.map is not None and case.w.map.scale.ndim > 0


def sums(engine: str, pool: ProcessPoolExecutor) -> Check:
    """Sums of products, every byte."""

    def check() -> None:
        tally, asked = Tally(), of_engine(engine)
        for case, wanted in zip(asked, products.made_by(pool, engine, asked), strict=True):
            tally.add(product_of(case, named(engine)), wanted, case.op)
        tally.exact()

    return check


def summands(pool: ProcessPoolExecutor) -> Check:
    """Convolutions with a summand: no change may bring them as near to the engine's."""

    def check() -> None:
        tally, asked = Tally(), [products.summed(seed) for seed in range(16)]
        for case, wanted in zip(asked, products.made_by(pool, "onednn", asked), strict=True):
            tally.add(products.chained(case, named("x86")), wanted, "a sum")

    return check


def summands_beyond(pool: ProcessPoolExecutor) -> Check:
    """Convolutions of more than 100 groups with a summand, by oneDNN."""
    plain_ones = [depth.beyond(seed, 2, shifted=False) for seed in range(24)]
    asked = [products.added_to(case, seed) for seed, case in enumerate(plain_ones)]

    def check() -> None:
        tally = Tally()
        for case, wanted in zip(asked, products.made_by(pool, "onednn", asked), strict=True):
            tally.add(products.chained(case, named("onednn")), wanted, "a sum")

    return check


def quantize_check(kind: str) -> Check:
    return lambda: whole.test_quantize_per_tensor_is_torchs_for_every_length_and_special_value(kind)


def channels() -> None:
    for kind in whole.KINDS:
        whole.test_quantize_per_channel_is_torchs(kind, 1)


def fakes() -> None:
    for many in (False, True):
        whole.test_fake_quantize_is_torchs(many, whole.FBGEMM, "i8")


def dequantize_check() -> None:
    for many in (False, True):
        for kind in ("u8", "i32"):
            whole.test_dequantize_is_torchs(kind, many)


def recoded() -> None:
    whole.test_codes_pass_to_another_map_by_way_of_reals_as_torchs_do("u8", "i8", whole.FBGEMM)


def ranges(engine: str) -> None:
    engine = "fbgemm" if engine == "x86" else engine
    for kind, scheme in (("u8", "affine"), ("i8", "affine"), ("i8", "symmetric")):
        whole.test_scales_and_zero_points_are_those_of_torchs_observers(engine, kind, scheme)
        about = scheme == "symmetric"
        test_scale_rules.test_torchs_observers(named(engine), kind, about)
    whole.test_scales_of_weights_are_those_of_torchs_observers()


def dynamic() -> None:
    whole.test_the_numbers_of_dynamic_layers_are_torchs(False)
    test_scale_rules.test_torchs_dynamic_layers(False)


def pools() -> None:
    for kind in draws.KINDS:
        for last in (False, True):
            elements.test_average_pools_are_torchs(kind, last)
            elements.test_global_means_are_torchs(kind, last)
        elements.test_means_of_parts_and_of_volumes_are_torchs(kind)


def unary(engine: str) -> None:
    for op in scales.UNARY:
        scales.functions(engine, op, "u8", 48)


def two(engine: str, op: str) -> Check:
    def check() -> None:
        elements.test_sums_and_products_of_codes_are_torchs(engine, op, "u8", False)

    return check


def joined() -> None:
    for last in (False, True):
        elements.test_concat_is_torchs("u8", last, False, "fbgemm")


def softmax() -> None:
    elements.test_softmax_is_as_near_to_torchs_as_is_claimed("u8", "fbgemm")


def integer_only_check() -> None:
    scales.test_batch_norms_of_any_ratio_of_scales("u8", 2, False)
    elements.test_greatest_codes_are_torchs("u8")


def by_scales(engine: str) -> Iterator[Check]:
    """Elements by scales of every kind."""
    if engine == "qnnpack":
        yield partial(scales.test_operands_of_two_shapes_are_left_to_vectors_by_qnnpack, SPREAD)
        return
    yield partial(scales.test_products_beyond_32_bits_turn_round_in_vectors_alone, engine, "u8")
    yield partial(scales.test_slopes_by_any_scales, "u8")
    yield partial(scales.test_batch_norms_of_any_ratio_of_scales, "u8", 2, True)
    for shape in ("channels", "one element each"):
        yield partial(scales.test_concat_along_all_axes_but_the_last_of_images, "u8", shape)
    yield partial(scales.test_concat_along_the_last_axis_of_images, "u8")


SPREAD = scales.SPREADS[0]


def transposed(engine: str) -> Check:
    def check() -> None:
        for rank in (1, 2, 3)[: 2 if engine == "qnnpack" else 3]:
            layers.test_transposed_convolutions_are_the_engines(engine, False, rank)
            older.test_with_vnni_or_by_qnnpack_pairs_are_exact(engine, rank)
            if engine == "qnnpack":
                layers.test_a_bias_half_way_between_two_sums_becomes_that_of_qnnpack(rank)

    return check


def misread(pool: ProcessPoolExecutor) -> Check:
    def check() -> None:
        for rank in (1, 2, 3):
            layers.test_transposed_convolutions_of_onednn_multiply_misread_weights(
                "x86", rank, pool
            )

    return check


def many_groups(pool: ProcessPoolExecutor) -> Iterator[Check]:
    for rank in (1, 2, 3):
        yield partial(
            layers.test_transposed_convolutions_of_many_groups_are_fbgemms_or_onednns,
            "onednn",
            rank,
            pool,
        )


def tables() -> None:
    for kind in ("u8", "u4"):
        layers.test_bags_of_rows_of_codes_are_torchs(kind, True)
        layers.test_single_rows_of_codes_are_torchs(kind)


def resizes() -> None:
    for last in (False, True):
        for mode in ("bilinear", "nearest"):
            layers.test_resizes_are_torchs(mode, "u8", last, "fbgemm")


def along_lines(engine: str) -> Check:
    return lambda: means.test_means_along_lines_and_over_volumes_are_torchs(engine, "u8")


def ties_of_means() -> None:
    for kind in ("u8", "i8"):
        means.test_ties_of_means_are_torchs("fbgemm", kind)


def ties_of_parts(engine: str) -> Check:
    return lambda: means.test_ties_of_parts_are_torchs(engine, "i8")


def over_images() -> None:
    for last in (False, True):
        means.test_means_over_images_are_those_of_qnnpack(last)


def over_other_axes() -> None:
    means.test_means_over_other_axes_are_as_near_as_is_claimed("u8")


def products_of_data() -> None:
    elements.test_products_of_two_tensors_are_as_near_to_torchs_as_is_claimed("u8")


def decomposed(kind: str) -> Check:
    return lambda: whole.test_decomposed_quantize_and_dequantize_are_torchs(kind)


def decomposed_channels(kind: str) -> Check:
    return lambda: whole.test_decomposed_quantize_and_dequantize_per_channel_are_torchs(kind, 1)


def replayed(engine: str, pool: ProcessPoolExecutor) -> Replay:
    """The comparisons whose programs a changed profile runs again."""
    found: list[Check] = [sums(engine, pool), two(engine, "add"), transposed(engine)]
    found.append(lambda: unary(engine))
    if engine == "x86":
        found = [sums(engine, pool), summands(pool), misread(pool)]
        found.append(
            lambda: layers.test_transposed_convolutions_of_weights_with_zero_points_are_fbgemms(1)
        )
    elif engine == "onednn":
        found = [sums(engine, pool), summands_beyond(pool), *many_groups(pool)]
    elif engine == "pt2e":
        found = [sums(engine, pool)]
    elif engine == "qnnpack":
        found += [along_lines(engine), ties_of_parts(engine), over_images]
        found += by_scales(engine)
    else:
        found += [pools, joined, softmax, integer_only_check, tables, resizes, products_of_data]
        found += by_scales(engine)
        found += [two(engine, "mul"), along_lines(engine), over_other_axes, ties_of_means]
        found.append(ties_of_parts(engine))
        found.append(lambda: elements.test_bounds_are_torchs("fbgemm", "u8"))
        found.append(lambda: moves.test_codes_are_moved_as_torch_moves_them(moves.surrounded, "u8"))
        found.append(lambda: moves.test_codes_are_compared_as_reals("greater", "u8"))
        found.append(moves.test_grids_are_as_near_to_torchs_as_is_claimed)
        found.append(lambda: elements.test_thresholds_are_torchs("u8"))
    replay = Replay()
    for check in found:
        replay.add(check)
    if engine == "pt2e":
        for kernel in ("qadd", "qmul"):
            replay.add(
                lambda kernel=kernel: plain.test_sums_and_products_of_plain_tensors_are_onednns(  # type: ignore[misc]
                    kernel
                )
            )
        for rank in (1, 3):
            replay.add(
                lambda rank=rank: plain.test_convolutions_of_lines_and_volumes_are_onednns(  # type: ignore[misc]
                    rank, pool
                )
            )
        for op in ("conv2d", "linear"):
            replay.add(
                lambda op=op: pointwise.test_summands(op, "relu", pool),  # type: ignore[misc]
                pointwise_of_torch,
            )
        curve = "linear", "silu"
        replay.add(lambda: pointwise.test_activations(*curve, pool), pointwise_of_torch)
    return replay


def whole_checks(engine: str) -> Mapping[str, Sequence[Check]]:
    """What a change of a block, or of an op's rule, can show in besides; these run whole."""
    if engine == "pt2e":
        name = named(engine)

        def kept() -> None:
            assert profile(name).resolve(whole.asked("u8")).choose.reduce == "none"

        coded = [run(kind) for kind in whole.KINDS for run in (decomposed_channels, decomposed)]
        both = [
            lambda many=many: whole.test_fake_quantize_is_torchs(many, name, "i8") for many in BOTH
        ]
        return {"choose": [kept], "fake_quantize": both, "quantize": coded, "dequantize": coded}
    found: dict[str, Sequence[Check]] = {"choose": [lambda: ranges(engine)]}
    if engine == "fbgemm":
        kinds = [quantize_check(kind) for kind in whole.KINDS]
        found |= {"quantize": [*kinds, channels, fakes], "dequantize": [dequantize_check]}
        found |= {"choose_qparams": [dynamic], "fake_quantize": [fakes], "requantize": [recoded]}
    return found


BOTH = (False, True)


def agreeing(engine: str, pool: ProcessPoolExecutor) -> Callable[[Mutant], None]:
    """Whether a changed profile still gives what the engine gave."""
    replay = replayed(engine, pool)
    whole_ones = {what: list(checks) for what, checks in whole_checks(engine).items()}

    def agrees(mutant: Mutant) -> None:
        checks = whole_ones.get(mutant.ops[0] if mutant.ops else mutant.block, [])
        for number, check in enumerate(checks):
            try:
                check()
            except Exception:
                checks.insert(0, checks.pop(number))  # it finds the next one too, often
                raise
        if mutant.block != "choose":
            replay.agrees()

    return agrees


ALL = (*products.ENGINES, "pt2e")


def require_whole_profile(engine: str) -> None:
    """Skips for a profile of a later torch, which states only what differs from 2.13."""
    if named(engine) in test_torch_versions_faults.NAMES:
        pytest.skip("recorded results hold its fields: test_torch_versions_faults.py")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ALL)
def test_a_changed_field_is_found_or_listed(engine: str, vnni: ProcessPoolExecutor) -> None:
    require_whole_profile(engine)
    all_found(named(engine), agreeing(engine, vnni))


@pytest.mark.long
@pytest.mark.parametrize("engine", ALL)
def test_what_is_listed_is_not_found(engine: str, vnni: ProcessPoolExecutor) -> None:
    require_whole_profile(engine)
    none_found(named(engine), agreeing(engine, vnni))
