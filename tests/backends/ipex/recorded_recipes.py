"""Recipes that QIR wrote and IPEX 2.8 loaded: which ones, and what IPEX computed."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import qir
from qir.ir.graph import Graph

from .networks import made

FILE = Path(__file__).with_name("recorded") / "recipes.json"
NAMES = ("sample", "bert", "inplace", "functions", "recurrent")
FORMS = tuple((name, "ipex-onednn") for name in NAMES)


@cache
def float_graph(name: str) -> Graph:
    """Returns a module as QIR reads it."""
    net, x = made(name)
    return qir.load(net, inputs=(x,))


@cache
def graph_of(name: str, target: str) -> Graph:
    """Returns a module quantized for a target."""
    held = float_graph(name)
    return qir.quantize(held, qir.calibrate(held, made(name)[1].numpy()), target=target)


def written(name: str, held: Graph) -> str:
    """Returns the recipe of a graph; torch.fx does not trace BERT."""
    form = "recipe-nested" if name == "bert" else "recipe"
    found = qir.build(held, target="ipex-onednn", format=form)
    assert isinstance(found, str)
    return found


def digest(text: str) -> str:
    """Returns what tells a recipe from others."""
    return hashlib.sha256(text.encode()).hexdigest()


def recorded(name: str, target: str) -> tuple[str, str, NDArray[np.float32]]:
    """Returns the digest of the recipe, the kernels that were made and the result."""
    held = json.loads(FILE.read_text())[f"{name} {target}"]
    result = np.frombuffer(bytes.fromhex(held["result"]), np.float32).reshape(held["shape"])
    return str(held["recipe"]), str(held["kernels"]), result
