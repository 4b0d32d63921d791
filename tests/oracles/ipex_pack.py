"""Packs what `ipex_vectors` recorded into the files that the tests read: NumPy alone.

One file a case: the arrays of each setting and plan, and in `said` the scales, zero points and ops.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
    "relu",
    "flatten",
    "avgpool",
    "avgpool_pad",
    "avgpool_pad_valid",
    "avgpool_oblong",
    "adaptive_avgpool",
    "adaptive_avgpool1",
    "adaptive_avgpool_oblong",
)
_ARRAYS = ("x0", "x1", "codes")

Arrays = dict[str, NDArray[np.generic]]


def pack(folder: Path) -> None:
    """Writes a file for each case; those that say what they said already stay as they are."""
    index = json.loads((folder / "index.json").read_text())
    VECTORS.mkdir(parents=True, exist_ok=True)
    arrays_same = arrays_all = 0
    for case in CASES:
        arrays: Arrays = {}
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
        path = VECTORS / f"{case}.npz"
        same, alike = compared(path, text, arrays)
        arrays_same, arrays_all = arrays_same + same, arrays_all + len(arrays)
        if not alike:
            np.savez_compressed(path, said=np.array(text), **arrays)  # type: ignore[arg-type]
            print(f"{case}: {same} of {len(arrays)} arrays as before, written anew")
    print(f"{len(CASES)} cases: {arrays_same} of {arrays_all} arrays are those that were here")


def compared(path: Path, text: str, arrays: Arrays) -> tuple[int, bool]:
    """How many arrays a file holds with the same bytes, and whether it holds nothing else."""
    if not path.exists():
        return 0, False
    with np.load(path) as held:
        names = set(held.files) - {"said"}
        same = sum(n in names and held[n].tobytes() == a.tobytes() for n, a in arrays.items())
        said = json.loads(str(held["said"])) == json.loads(text)
    return same, said and same == len(arrays) == len(names)


def missing(folder: Path) -> list[str]:
    """The cases of which a folder has nothing."""
    cases = {entry["case"] for entry in json.loads((folder / "index.json").read_text())["cases"]}
    return [case for case in CASES if case not in cases]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Packs recorded results of IPEX for the tests.")
    parser.add_argument("folder", type=Path, help="where ipex_vectors wrote: out/ipex")
    given = parser.parse_args().folder
    if not (given / "index.json").is_file():
        parser.error(f"{given} has no index.json, which ipex_vectors writes last")
    if lacks := missing(given):
        parser.error(
            f"{given} has nothing of {lacks[0]} and {len(lacks) - 1} more: what is held stays"
        )
    pack(given)
