"""Loads a recipe of QIR in Intel's extension, for a module, and runs it; without QIR.

`python ipex_recipe_child.py NETWORKS NAME FOLDER`, with the file of the modules, the one to run,
and a folder with its weights, data and recipe, where the result and the kernels are written.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import intel_extension_for_pytorch as ipex
import numpy as np
import torch


def main(networks: str, name: str, folder: Path) -> None:
    """Prepares, loads, converts, traces, freezes and runs."""
    torch.set_num_threads(1)
    net, _ = runpy.run_path(networks)["made"](name)
    net.load_state_dict(torch.load(folder / "weights.pt"))
    x = torch.from_numpy(np.load(folder / "x.npy"))
    asked = ipex.quantization.default_static_qconfig_mapping
    prepared = ipex.quantization.prepare(net, asked, example_inputs=x, inplace=False)
    prepared.load_qconf_summary(qconf_summary=str(folder / "recipe.json"))
    converted = ipex.quantization.convert(prepared)
    trace: Any = torch.jit.trace
    with torch.no_grad():
        frozen = torch.jit.freeze(trace(converted, x, check_trace=False))
        for _ in range(2):  # the first run is profiled, the second is made into kernels
            frozen(x)
        made = frozen(x)
        graph = str(frozen.graph_for(x))
    np.save(folder / "y.npy", made.numpy())
    kernels: Any = runpy.run_path(str(Path(__file__).with_name("ipex_graphs.py")))["kernels"]
    (folder / "kernels.txt").write_text(kernels(graph))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
