"""Packs what `ipex_vectors` recorded into the files that the tests read: NumPy alone.

One file a case: the arrays of each setting and plan, and in `said` the scales, zero points and ops.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

VECTORS = Path(__file__).parents[1] / "differential" / "vectors" / "ipex"
CASES = (
    "quantize",
    "quantize_random",
    "weight_quantize",
    "dequantize",
    "conv",
    "conv_wide",
    "conv_nobias",
    "conv_relu",
    "depthwise",
    "conv_float",
    "linear",
    "linear_wide",
    "linear_relu",
    "linear_float",
    "linear_gelu",
    "linear_add",
    "conv_add",
    "conv_add_relu",
    "matmul",
    "bmm_requant",
    "bmm_float",
    "add",
    "maxpool",
    "avgpool",
    "avgpool_pad",
    "avgpool_pad_valid",
    "adaptive_avgpool",
    "adaptive_avgpool1",
)
_ARRAYS = ("x0", "x1", "codes")


def pack(folder: Path) -> None:
    """Writes a file for each case."""
    index = json.loads((folder / "index.json").read_text())
    VECTORS.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
        said = {}
        for entry in (e for e in index["cases"] if e["case"] == case):
            key = f"{entry['setting']}.{entry['plan']}"
            said[key] = {"tensors": entry["tensors"], "ops": entry["ops"]}
            with np.load(folder / entry["file"]) as file:
                wanted = [n for n in file.files if n in _ARRAYS or n.startswith("p.")]
                wanted += [] if "codes" in file.files else ["y_traced"]
                arrays.update({f"{key}/{name}": file[name] for name in wanted})
        told = {name: index[name] for name in ("torch", "ipex", "onednn_of_torch")}
        text = json.dumps({"runtime": told, "cases": said})
        np.savez_compressed(VECTORS / f"{case}.npz", said=np.array(text), **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Packs recorded results of IPEX for the tests.")
    parser.add_argument("folder", type=Path, help="where ipex_vectors wrote: out/ipex")
    given = parser.parse_args().folder
    if not (given / "index.json").is_file():
        parser.error(f"{given} has no index.json, which ipex_vectors writes last")
    pack(given)
