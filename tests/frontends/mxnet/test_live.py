"""What is recorded is what MXNet computes today, where `make oracle-mxnet` has put it."""

from __future__ import annotations

import os
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.frontends.comparison import difference

from .recorded_cases import RECORDED

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("QIR_MXNET", ROOT / "build/oracles/mxnet/bin/python"))
PARTS = {
    "operators": ["layers.npz", "moves.npz", "points.npz"],
    "quantized": ["quantized.npz", "uncalibrated.npz", "modes.npz"],
    "files": ["files.npz"],
    "zoo": ["zoo.npz"],
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_recorded_results_are_what_mxnet_computes_today(part: str, tmp_path: Path) -> None:
    if not PYTHON.exists():
        told = f"MXNet is not at {PYTHON} (make oracle-mxnet): recorded results alone are held"
        warnings.warn(told, stacklevel=1)
        pytest.skip(told)
    command = [str(PYTHON), "-W", "ignore", "-m", f"tests.oracles.mxnet_{part}", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    for name in PARTS[part]:
        with np.load(RECORDED / name) as held, np.load(tmp_path / name) as live:
            assert sorted(held.files) == sorted(live.files)
            for key in held.files:
                if held[key].dtype.kind == "U":
                    assert str(held[key]) == str(live[key]), f"{name} {key}"
                else:
                    assert difference(live[key], held[key], 1e-5) == "", f"{name} {key}"
    for path in RECORDED.glob("*.params") if part == "files" else ():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
