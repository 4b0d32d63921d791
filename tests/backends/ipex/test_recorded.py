"""What IPEX 2.8 computed by recipes of QIR, and that QIR predicts it."""

from __future__ import annotations

import numpy as np
import pytest

import qir
from qir.backends.ipex.edges import kept
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes

from .networks import made
from .recorded_recipes import FORMS, digest, graph_of, recorded, written


@pytest.mark.parametrize(("name", "target"), FORMS)
def test_the_recipe_is_the_one_that_ipex_loaded(name: str, target: str) -> None:
    said, _ = recorded(name, target)
    assert digest(written(name, graph_of(name, target))) == said


@pytest.mark.parametrize(("name", "target"), FORMS)
def test_the_prediction_is_what_ipex_computed(name: str, target: str) -> None:
    """Sums of integers decide every bit of the convolutional network's result."""
    _, wanted = recorded(name, target)
    grouped = run_passes(kept(graph_of(name, target), Ledger()), [Group("ipex-2.8")], Ledger())
    (found,) = qir.run(grouped, {grouped.inputs[0].name: made(name)[1].numpy()}).values()
    if name == "bert":  # softmax and layer norm add floats in an order of their own
        assert np.abs(np.asarray(found) - wanted).max() <= 1e-2 * np.abs(wanted).max()
    else:
        assert np.array_equal(np.asarray(found), wanted)
