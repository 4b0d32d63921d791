"""Other doors to torch's linear layers: what they give is what the layers of the profiles give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.differential.torch.kernels import (
    Array,
    Asked,
    F,
    Held,
    Map,
    Tally,
    claim,
    computed,
    engine,
    of,
    random_integers,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from .draws_of_torch import odd
from .test_torch_elements import pytestmark as pytestmark

NAME = named("fbgemm")
OPS = torch.ops


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of one scale, and real data that are quantized before it."""

    data: Array
    x: Map
    w: Held
    bias: Array
    out: Map

    @property
    def weights(self) -> torch.Tensor:
        return tensor(self.w)

    @property
    def floats(self) -> torch.Tensor:
        return torch.from_numpy(self.bias)

    @property
    def coded(self) -> torch.Tensor:
        scale, zero = float(self.x.scale), int(self.x.zero)
        return torch.quantize_per_tensor(torch.from_numpy(self.data), scale, zero, torch.quint8)

    def predicted(self, *, real: bool = False, relu: bool = False) -> Array:
        operands = {"x": Held(taken(self.coded), self.x), "w": self.w, "bias": Held(self.bias)}
        asked = Asked("linear", operands, None if real else self.out, tails=("relu",) * relu)
        return computed(asked, NAME)


def layers(count: int) -> Iterator[Layer]:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        rows, terms, outs = (int(v) for v in rng.integers(1, (20, 18, 9)))
        w = of("i8", F(rng.uniform(0.01, 0.05)))
        yield Layer(
            rng.normal(size=(rows, 4 * terms)).astype(F) * F(2),
            of("u8", F(rng.uniform(0.01, 0.05)), odd(rng, "u8")),
            Held(random_integers(rng, "i8", 8 * outs, 4 * terms), w),
            rng.normal(size=8 * outs).astype(F),
            of("u8", F(rng.uniform(0.02, 0.2)), odd(rng, "u8")),
        )


@pytest.mark.parametrize("relu", [False, True])
def test_layers_that_quantize_their_data_give_reals(relu: bool) -> None:
    tally = Tally()
    run = OPS.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    run = OPS.quantized.linear_with_input_q_dq_qweight_dq_relu_output_fp32 if relu else run
    with engine("fbgemm"):
        for layer in layers(40):
            packed = OPS.quantized.linear_prepack(layer.weights, layer.floats)
            at = float(layer.x.scale), int(layer.x.zero)
            made = run(torch.from_numpy(layer.data), *at, packed).numpy()
            found = layer.predicted(real=True)
            tally.add(np.maximum(found, 0) if relu else found, made, "reals")
    tally.exact()


def test_a_wrapped_layer_quantizes_weights_and_data() -> None:
    tally = Tally()
    with engine("fbgemm"):
        for layer in layers(40):
            assert layer.w.map is not None
            ends = [torch.tensor(float(m.scale)) for m in (layer.x, layer.w.map, layer.out)]
            zeros = [torch.tensor(int(m.zero)) for m in (layer.x, layer.w.map, layer.out)]
            real = layer.weights.dequantize()
            x, w, y = zip(ends, zeros, strict=True)
            run = OPS._quantized.wrapped_quantized_linear
            made = run(torch.from_numpy(layer.data), *x, real, *w, layer.floats, *y, len(real))
            steps = layer.predicted().astype(np.int32) - int(layer.out.zero)
            tally.add(np.asarray(steps.astype(F) * layer.out.scale), made.numpy(), "wrapped")
    tally.exact()


def test_layers_before_packed_parameters_are_dynamic_layers() -> None:
    """torch.fbgemm_linear_int8_weight, of eight bits."""
    tally = Tally()
    with engine("fbgemm"):
        for layer in layers(40):
            x, real = torch.from_numpy(layer.data), layer.weights.dequantize()
            whole, sums, scale, zero = torch.fbgemm_linear_quantize_weight(real)
            packed = torch.fbgemm_pack_quantized_matrix(whole)
            made = torch.fbgemm_linear_int8_weight(
                x, whole, packed, sums, scale, zero, layer.floats
            )
            held = torch._make_per_tensor_quantized_tensor(whole.to(torch.int8), scale, int(zero))
            again = OPS.quantized.linear_prepack(held, layer.floats)
            wanted = OPS.quantized.linear_dynamic(x, again, False)
            tally.add(wanted.numpy(), made.numpy(), "dynamic")
    assert claim(NAME, Asked("linear", {}, None)) == "exact"
    tally.exact()


def test_layers_of_sparse_weights_saturate_pairs_of_terms() -> None:
    """sparse::qlinear, which only engine fbgemm has: not what the profile says of a layer."""
    tally, apart = Tally(), 0
    with engine("fbgemm"):
        for layer in layers(40):
            packed = OPS.sparse.qlinear_prepack(layer.weights, None, 1, 4)
            at = float(layer.out.scale), int(layer.out.zero)
            made = taken(OPS.sparse.qlinear(layer.coded, packed, *at))
            plain = OPS.quantized.linear_prepack(layer.weights, None)
            apart += int((made != taken(OPS.quantized.linear(layer.coded, plain, *at))).sum())
            x, w = taken(layer.coded).astype(np.int32), layer.w.data.astype(np.int32)
            terms = x[:, None, :] * w[None]
            pairs = np.clip(terms[..., ::2] + terms[..., 1::2], -(2**15), 2**15 - 1)
            total = pairs.sum(-1) - int(layer.x.zero) * w.sum(-1)
            assert layer.w.map is not None
            factor = layer.x.scale * layer.w.map.scale / layer.out.scale
            steps = np.rint(total.astype(F) * F(factor)).astype(np.int64) + int(layer.out.zero)
            tally.add(np.clip(steps, 0, 255).astype(np.uint8), made, "sparse")
    assert apart > 0.02 * tally.total
    tally.exact()
