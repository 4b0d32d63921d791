"""Larger networks of Gluon's zoo, made by MXNet with seeded weights: read, quantized, run there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

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
WORDS, LENGTH = 50, 7
WORD_LSTM = f"""
import sys, mxnet as mx
from mxnet.gluon import nn, rnn
mx.random.seed(7)
net = nn.HybridSequential()
net.add(nn.Embedding({WORDS}, 16), rnn.LSTM(24, num_layers=2, layout="NTC"))
net.add(nn.Dense({WORDS}, flatten=False))
net.initialize(mx.init.Xavier())
net.hybridize()
net(mx.nd.zeros((2, {LENGTH})))
net.export(sys.argv[1] + "/net")
"""
__all__ = ["mxnet"]


def make(folder: Path, script: str, *words: str) -> Path:
    """Makes a network in MXNet, and returns the path of its symbol."""
    made = subprocess.run(
        [str(PYTHON), "-W", "ignore", "-c", script, *words, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return folder / "net-symbol.json"


def require_equal(symbol: Path, graph: qir.Graph, x: NDArray[np.float32], least: int) -> None:
    """Compares a network with MXNet in float, and each integer of what QIR makes of it."""
    (ours,) = qir.run(graph, {"data": x}).values()
    (theirs,) = MxnetSession(symbol).run({"data": x}).values()
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
    int8 = quantized(graph, x)
    path = files(int8, symbol.parent, Ledger())
    tensors = of_mxnet(MxnetSession(path).run({"data": x}, all_nodes=True))
    assert len(tensors) >= least
    assert differing(integers(int8, x), tensors) == []


@pytest.mark.long
@pytest.mark.usefixtures("mxnet")
@pytest.mark.parametrize("name", SIDES)
def test_a_large_network_gives_the_integers_of_mxnet(name: str, tmp_path: Path) -> None:
    x = images(2, SIDES[name])
    symbol = make(tmp_path, SCRIPT, name, str(SIDES[name]))
    graph = qir.load(symbol, inputs=[("n", *x.shape[1:])])
    require_equal(symbol, graph, x, least=6)


@pytest.mark.long
@pytest.mark.usefixtures("mxnet")
def test_a_word_lstm_gives_the_integers_of_mxnet(tmp_path: Path) -> None:
    """MXNet has no int8 LSTM: the layer after it is quantized."""
    words = np.random.default_rng(7).integers(0, WORDS, (2, LENGTH)).astype(np.float32)
    symbol = make(tmp_path, WORD_LSTM)
    require_equal(symbol, qir.load(symbol, inputs=[words.shape]), words, least=2)
