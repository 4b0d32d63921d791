"""Runs quantized graphs in Intel's extension, in a Python of its own, which `QIR_IPEX` names."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np

from qir.errors import InputError, OpError, PluginError, Refused
from qir.ir.graph import Graph
from qir.ir.layer_channels import layer_data
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.open_groups import OpenGroups
from qir.rewrite import run_passes
from qir.target import Executable

from .edges import only_read_by_layers
from .probe import Ipex, program_of


class IpexSession(Executable):
    """A graph, ready to run as a traced and frozen module."""

    def __init__(self, graph: Graph) -> None:
        qdq = run_passes(graph, [ExpandQdq(), OpenGroups(chains=True)], Ledger())
        self.graph = only_read_by_layers(qdq, Ledger())
        if (name := overwritten_summand(self.graph)) is not None:
            reason = (
                "IPEX adds the data of a float convolution to its result in place, and overwrites"
            )
            raise Refused(f"{name}: {reason} what the convolution still reads; run it elsewhere")
        self.runtime = _runtime(os.environ.get(Ipex.elsewhere, ""))

    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs it; raises InputError with what the extension says where it refuses."""
        feeds = {name: np.asarray(data) for name, data in inputs.items()}
        results: dict[str, object] = {}
        # The child computes one result for each request.
        for name, value in self.graph.outputs.items():
            try:
                results[name] = self.runtime.ask(program_of(self.graph, feeds, value.name))
            except OpError as error:
                raise InputError(f"{self.graph.name}: IPEX does not run it: {error}") from error
        return results


def overwritten_summand(graph: Graph) -> str | None:
    """Returns the name of a sum that adds a convolution's own float data to its result."""
    for node in graph:
        values = list(node.operands.values()) if node.op == "add" else []
        for value, other in zip(values, reversed(values), strict=True):
            data = layer_data(value.node)
            if data is other and len(value.uses) == 1 and data.type.quant is None:
                return node.name
    return None


@lru_cache(maxsize=1)
def _runtime(_python: str) -> Ipex:
    """Returns the extension of this process; raises PluginError where there is none."""
    runtime = Ipex()
    if runtime.version is None:
        message = "IPEX runs in a Python that the environment variable QIR_IPEX names"
        raise PluginError(f"{message}; {runtime.python} has no intel-extension-for-pytorch 2.8")
    return runtime
