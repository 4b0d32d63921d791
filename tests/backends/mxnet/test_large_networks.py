"""Larger networks of Gluon's zoo, made by MXNet with seeded weights: read, quantized, run there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.mxnet.session import MxnetSession
from qir.ledger import Ledger
from tests.oracles.mxnet_weights import images

from .test_int8 import PYTHON, mxnet
from .written import differing, files, integers, of_mxnet, quantized

SIDES = {"alexnet": 224, "densenet121": 224, "inceptionv3": 299, "vgg11": 64}
"""Pixels: the least, or near it, that each network takes."""
SCRIPT = """
import sys, mxnet as mx
from mxnet.gluon.model_zoo import vision
name, side, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
mx.random.seed(7)
net = vision.get_model(name, pretrained=False)
net.initialize(mx.init.Xavier(magnitude=2.24))
net.hybridize()
net(mx.nd.zeros((1, 3, side, side)))
net.export(folder + "/net")
"""
__all__ = ["mxnet"]


@pytest.mark.long
@pytest.mark.usefixtures("mxnet")
@pytest.mark.parametrize("name", SIDES)
def test_a_large_network_gives_the_integers_of_mxnet(name: str, tmp_path: Path) -> None:
    side = SIDES[name]
    made = subprocess.run(
        [str(PYTHON), "-c", SCRIPT, name, str(side), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert made.returncode == 0, made.stderr
    x = images(2, side)
    graph = qir.load(tmp_path / "net-symbol.json", inputs=[("n", *x.shape[1:])])
    (ours,) = qir.run(graph, {"data": x}).values()
    (theirs,) = MxnetSession(tmp_path / "net-symbol.json").run({"data": x}).values()
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
    made_int8 = quantized(graph, x)
    path = files(made_int8, tmp_path, Ledger())
    tensors = of_mxnet(MxnetSession(path).run({"data": x}, every=True))
    assert len(tensors) > 5
    assert differing(integers(made_int8, x), tensors) == []
