"""Transposed convolutions: integers on fbgemm and QNNPACK, byte for byte, and float elsewhere."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qir
from qir.ledger import Ledger
from qir.target import target

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
def test_transposed_convolutions_are_integers_and_pytorchs(engine: str, axes: int) -> None:
    name, seed = f"pytorch-{engine}", random.randrange(1000)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    draw = random.Random(seed)
    stride = draw.choice([1, 2])
    more = {"stride": stride, "padding": draw.choice([0, 1]), "output_padding": stride - 1}
    groups = draw.choice([1, 2, 4])
    layers: Any = (nn.Conv1d, nn.ConvTranspose1d) if axes == 1 else (nn.Conv2d, nn.ConvTranspose2d)
    plain, transposed = layers
    first, last = plain(8, 8, 3, padding=1), plain(16, 4, 1)
    net = nn.Sequential(first, nn.ReLU(), transposed(8, 16, 3, groups=groups, **more), last)
    x = torch.randn(2, 8, *(draw.randint(4, 9) for _ in range(axes)))
    graph = qir.load(net.eval(), inputs=(x,))
    assert qir.plan(graph, target=name).integer_macs == 1
    made = qir.quantize(graph, qir.calibrate(graph, x.numpy()), target=name)
    backend, feeds = target(name), {graph.inputs[0].name: x.numpy()}
    grouped = backend.computed(made, Ledger())
    assert grouped is not None
    (ours,) = qir.run(grouped, feeds, profile=backend.profile).values()
    (theirs,) = backend.compile(made)(**feeds).values()
    assert np.array_equal(ours, np.asarray(theirs))


def test_volumes_stay_float_on_qnnpack_and_the_plan_says_why() -> None:
    net = nn.Sequential(nn.ConvTranspose3d(2, 2, 2)).eval()
    graph = qir.load(net, inputs=(torch.randn(1, 2, 3, 3, 3),))
    (one,) = (d for d in qir.plan(graph, target="pytorch-qnnpack").decisions if d.macs)
    assert (one.becomes, one.reason) == (
        "float",
        "QNNPACK computes the first slice of the first image alone",
    )
