"""The rules of `mxnet-1.9` against what MXNet 1.9.1 made of inputs that are rich in ties.

`make oracle-mxnet` records again, in an environment of its own; where that lies here, recorded and
live results are compared too.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from qir.ir.dtype import dtype
from qir.ir.scheme import Scheme
from qir.profiles import Query, parameters_for_range, profile
from tests.differential.mxnet.recorded import (
    PREDICTED,
    PROFILE,
    VECTORS,
    cases,
    in_steps,
    whole_means,
)
from tests.differential.predictions import Array, Count, F, Held, predicted

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("QIR_MXNET", ROOT / "build/oracles/mxnet/bin/python"))


STORED = {
    "fused_linear_codes": {"bias": "i8"},
    "mul": {"a": "i8", "b": "i8"},
    "embedding": {"w": "i8"},
}
"""What a rule asks for, where it asks."""


def rule_of(name: str) -> str:
    """The op whose rule a file of recorded results holds."""
    known = {"quantize_v2": "quantize", "fused_conv": "conv2d", "conv": "conv2d", "act": "relu"}
    known |= {"fused_linear": "linear", "fused_linear_codes": "linear", "pooling": "avg_pool2d"}
    known |= {"pooling_full": "avg_pool2d", "pooling_wide": "avg_pool2d", "sums": "add"}
    known |= {"fused_conv_odd": "conv2d", "fused_conv_sum": "conv2d"}
    return known.get(name, name)


def asked(op: str, stored: Mapping[str, str]) -> Query:
    """What a rule is looked up by: the kernel of concat makes a range that holds all operands'."""
    return Query(op, stored, forms=("held_ranges",) if op == "concat" else ())


def close(found: Array, wanted: Array, tolerance: str) -> bool:
    """Whether floats agree to what a rule says: exactly, or to units in the last place."""
    word, _, many = tolerance.partition(":")
    steps = int(many) if word == "ulp" else 0
    return bool((np.abs(found - wanted) <= steps * np.spacing(np.abs(wanted))).all())


@pytest.mark.parametrize("name", PREDICTED)
def test_recorded_results_are_predicted(name: str) -> None:
    quantized, active = Count(), Count()
    rule = profile(PROFILE).resolve(asked(rule_of(name), STORED.get(name, {})))
    for i, (said, arrays) in enumerate(cases(name)):
        found, wanted = PREDICTED[name](said, arrays), arrays["y"]
        if wanted.dtype == np.float32 and name != "dequantize":
            assert close(found, wanted, rule.float), f"{name} {i} {dict(said)}"
        else:
            count = active if "linear" in name and said["relu"] else quantized
            count.add(found, wanted, f"{name} {i} {dict(said)}")
    quantized.holds(rule.claim)
    if active.total:
        chain = ("linear", "relu")
        active.holds(next(g.claim for g in profile(PROFILE).groups if g.chain == chain))


def test_scales_are_chosen_from_ranges_of_six_decimals() -> None:
    rng = np.random.default_rng(3)
    for kind, level in (("i8", 127.5), ("u8", 255.5)):
        high = (10.0 ** rng.uniform(-3, 3, 400)).astype(F)
        low = np.asarray(-high * rng.uniform(0, 2, 400) if kind == "i8" else high * 0.1, F)
        printed = [[float(f"{v:f}") for v in end] for end in (low, high)]
        reach = np.abs(np.array(printed)).max(0).astype(F)
        scheme = Scheme(dtype(kind), symmetric=True)
        scale, zero = parameters_for_range(profile(PROFILE), low, high, scheme)
        assert scale.dtype == F
        assert not zero.any()
        assert np.array_equal(scale, reach / F(level)), kind


RICH = ("quantize_v2", "requantize", "add", "fused_conv", "fused_conv_sum", "fused_linear")


@pytest.mark.parametrize("name", RICH)
def test_recorded_inputs_are_rich_in_ties_and_ends(name: str) -> None:
    count = Count()
    for said, arrays in cases(name):
        low, high = (-128, 127) if arrays["y"].dtype == np.int8 else (0, 255)
        count.see(in_steps(name, said, arrays), low, high)
    count.rich()


def test_means_of_whole_images_are_mxnets() -> None:
    count = Count()
    for kind, images, means in whole_means():
        x = Held(images, kind)
        made = predicted(PROFILE, "global_avg_pool", {"x": x}, kind, means.shape)
        count.add(made, means, f"{images.shape}")
    count.holds("exact")


def test_recorded_means_tell_a_product_from_a_quotient() -> None:
    count, telling = Count(), 0
    for said, arrays in cases("pooling_wide"):
        if any(said["pad"]):
            continue
        tall, wide = said["size"]
        windows = np.lib.stride_tricks.sliding_window_view(arrays["x"], (tall, wide), (2, 3))
        sums = windows.sum((-2, -1), np.int64)
        count.see(sums / (tall * wide), -128, 255)
        even = np.rint(sums / (tall * wide))
        telling += int((np.rint(sums.astype(F) * (F(1) / F(tall * wide))) != even).sum())
    assert count.ties >= 0.05 * count.seen
    assert telling > 20


CLAIMED = {
    "_contrib_dequantize": "dequantize",
    "_contrib_quantize_v2": "quantize",
    "_contrib_quantized_act": "relu",
    "_contrib_quantized_batch_norm": "batch_norm",
    "_contrib_quantized_concat": "concat",
    "_contrib_quantized_conv": "conv2d",
    "_contrib_quantized_elemwise_add": "add",
    "_contrib_quantized_elemwise_mul": "mul",
    "_contrib_quantized_embedding": "embedding",
    "_contrib_quantized_flatten": "flatten",
    "_contrib_quantized_pooling": "avg_pool2d",
    "_contrib_requantize": "requantize",
    "_sg_mkldnn_conv": "conv2d",
    "_sg_mkldnn_fully_connected": "linear",
}
"""Operators on integers, and the ops whose rules speak of them."""
UNCLAIMED = {
    "_contrib_quantize": "the first version, which writes weights into files; a note says how",
    "_contrib_quantize_asym": "makes data of _contrib_quantized_rnn alone",
    "_contrib_quantized_fully_connected": "quantize_model puts _sg_mkldnn_fully_connected in its "
    "place; a note says how its bias differs",
    "_contrib_quantized_rnn": "quantizes real weights gate by gate, and keeps its state in reals",
    "_sg_mkldnn_selfatt_qk": "reads three projections that lie in one tensor: no op of QIR",
    "_sg_mkldnn_selfatt_valatt": "reads three projections that lie in one tensor: no op of QIR",
}
"""Operators of which nothing is claimed, and why not."""


def test_every_operator_on_integers_is_claimed_or_named() -> None:
    """All that MXNet 1.9.1 had registered when its results were recorded."""
    known = (VECTORS / "operators.txt").read_text(encoding="utf-8").split()
    assert sorted((*CLAIMED, *UNCLAIMED)) == known
    for name, op in CLAIMED.items():
        stored = STORED.get(op, {"x": "i8"})
        claim = profile(PROFILE).resolve(asked(op, stored)).claim
        assert claim == "exact", f"{name}: {op} is {claim}"


def test_recorded_results_are_what_mxnet_makes_today(tmp_path: Path) -> None:
    if not PYTHON.exists():
        told = f"MXNet is not at {PYTHON} (make oracle-mxnet): recorded results alone are held"
        warnings.warn(told, stacklevel=1)
        pytest.skip(told)
    record = [str(PYTHON), "-W", "ignore", "-m", "tests.oracles.mxnet_vectors", str(tmp_path)]
    subprocess.run(record, check=True, cwd=ROOT)
    for name in ("operators.txt", "kernels_made.txt"):
        assert (tmp_path / name).read_text() == (VECTORS / name).read_text(), name
    for path in sorted(VECTORS.glob("*.npz")):
        held, live = np.load(path), np.load(tmp_path / path.name)
        assert sorted(held.files) == sorted(live.files), path.name
        for key in held.files:
            assert np.array_equal(held[key], live[key]), f"{path.name} {key}"


def test_a_batch_norm_beside_a_tie_divides_by_a_root_of_doubles() -> None:
    """Of ResNet-18 v2: 12.5000005 in float64 and where roots are float32; MXNet gives 12."""
    numbers = {"gamma": 1.118873, "beta": 0.05875849, "mean": -0.19112594, "var": 1.4515073}
    said = {"kind": "uint8", "high": 6.003194, "top": 8.653871, "eps": 1e-5}
    arrays = {slot: np.array([number], F) for slot, number in numbers.items()}
    arrays |= {"x": np.full((1, 1, 1, 1), 28, np.uint8), "y": np.full((1, 1, 1, 1), 12, np.int8)}
    assert np.array_equal(PREDICTED["batch_norm"](said, arrays), arrays["y"])
