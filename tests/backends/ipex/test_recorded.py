"""What IPEX 2.8 computed by recipes of QIR, and that QIR predicts it."""

from __future__ import annotations

import numpy as np
import pytest

import qir
from qir.backends.ipex.edges import only_read_by_layers
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from tests.differential.ipex.test_ipex_groups import predicted
from tests.differential.ipex.test_ipex_groups import recorded as quantized_kernels

from .networks import made
from .recorded_recipes import FORMS, digest, graph_of, recorded, written

LAYERS = ("_convolution", "linear", "max_pool2d", "adaptive_avg_pool2d", "flatten")


def grouped(name: str, target: str) -> Graph:
    """Returns a network with the kernels that IPEX makes of its recipe."""
    held = only_read_by_layers(graph_of(name, target), Ledger())
    return run_passes(held, [Group("ipex-2.8")], Ledger())


@pytest.mark.parametrize(("name", "target"), FORMS)
def test_the_recipe_is_the_one_that_ipex_loaded(name: str, target: str) -> None:
    said, _, _ = recorded(name, target)
    assert digest(written(name, graph_of(name, target))) == said


@pytest.mark.parametrize(("name", "target"), [form for form in FORMS if form[0] != "inplace"])
def test_the_kernels_are_those_that_ipex_made(name: str, target: str) -> None:
    """Of what IPEX computes, what reads integers: attention and its shapes are real.

    A sum whose result stays real is one kernel there, predicted op by op.
    """
    _, said, _ = recorded(name, target)
    wanted = [kernel for kernel in quantized_kernels(said) if kernel.split()[0] in LAYERS]
    assert list(predicted(grouped(name, target))) == wanted


@pytest.mark.parametrize(("name", "target"), FORMS)
def test_the_prediction_is_what_ipex_computed(name: str, target: str) -> None:
    """Sums of integers decide every bit of the convolutional network's result."""
    _, _, wanted = recorded(name, target)
    held = grouped(name, target)
    (found,) = qir.run(held, {held.inputs[0].name: made(name)[1].numpy()}).values()
    if name in (
        "bert",
        "recurrent",
    ):  # softmax, layer norm and LSTMs add floats in an order of their own
        assert np.abs(np.asarray(found) - wanted).max() <= 1e-2 * np.abs(wanted).max()
    else:
        assert np.array_equal(np.asarray(found), wanted)
