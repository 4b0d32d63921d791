"""QLinearMatMul with scales of 16 bits, fed or constant, is what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from qir.ir.verify import check
from qir.reference.interpreter import run
from tests.differential.onnxruntime.contrib import kept, loaded
from tests.differential.runtime import run as judged
from tests.frontends.onnx.models import model

KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_codes_with_scales_of_sixteen_bits(kind: str, fed: bool) -> None:
    carrier, number = KINDS[kind]
    ends = np.iinfo(carrier)
    for seed in range(12):
        rng = np.random.default_rng(seed)

        def random_integers(*shape: int, rng: np.random.Generator = rng) -> Any:
            return rng.integers(ends.min, ends.max + 1, shape).astype(carrier)

        sizes = {"as": rng.uniform(0.01, 0.1), "bs": rng.uniform(0.01, 0.1)}
        sizes["ys"] = 500 * sizes["as"] * sizes["bs"] * rng.uniform(0.8, 1.3)
        scales = {n: np.array(s, np.float16) for n, s in sizes.items()}
        middle = (int(ends.min) + int(ends.max)) // 2
        zeros = {n: np.array(middle + rng.integers(-9, 10), carrier) for n in ("az", "bz", "yz")}
        held: dict[str, Any] = {"b": random_integers(29, 17), **zeros}
        feeds: dict[str, Any] = {"a": random_integers(13, 29), **(scales if fed else {})}
        held |= {} if fed else scales
        node = helper.make_node("QLinearMatMul", "a as az b bs bz ys yz".split(), ["y"], "it")
        inputs = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()}
        made = model([node], inputs, {"y": (number, [13, 17])}, held, opset=21)
        made.ir_version = 10
        graph = loaded(made)
        assert not kept(graph)
        check(graph)
        wanted = judged(made, feeds, optimize=False)["y"]
        found = run(graph, feeds)["y"]
        assert np.array_equal(found, wanted), f"seed {seed}: {np.sum(found != wanted)} differ"
        assert len(np.unique(wanted)) > 40, f"seed {seed}"
