"""Records what Intel's extension for PyTorch computes by recipes of QIR.

`QIR_IPEX=PYTHON python -m tests.oracles.ipex_recipes` writes `recorded/recipes.json` beside the
tests of the backend; `make oracle-ipex` does it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.backends.ipex import networks
from tests.backends.ipex.recorded_recipes import FILE, FORMS, digest, graph_of, written

CHILD = Path(__file__).with_name("ipex_recipe_child.py")


def main() -> None:
    """Runs each module by its recipe and writes the results."""
    held = {}
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
    for name, target in FORMS:
        with tempfile.TemporaryDirectory() as name_of_folder:
            folder = Path(name_of_folder)
            net, x = networks.made(name)
            torch.save(net.state_dict(), folder / "weights.pt")
            np.save(folder / "x.npy", x.numpy())
            text = written(name, graph_of(name, target))
            (folder / "recipe.json").write_text(text)
            line = [os.environ["QIR_IPEX"], "-W", "ignore", str(CHILD), str(networks.__file__)]
            subprocess.run([*line, name, str(folder)], check=True, env=environment)
            y, kernels = np.load(folder / "y.npy"), (folder / "kernels.txt").read_text()
        held[f"{name} {target}"] = {
            "recipe": digest(text),
            "kernels": kernels,
            "shape": list(y.shape),
            "result": y.tobytes().hex(),
        }
    FILE.write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
