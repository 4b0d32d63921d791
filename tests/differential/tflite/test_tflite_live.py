"""LiteRT, installed into an environment of its own, gives the bytes that its profiles say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.differential.tflite.test_tflite_vectors import NEWER, agree, recorded, reference
from tests.oracles.tflite_cases import SUITES
from tests.oracles.tflite_dynamic import WITHOUT_DELEGATE
from tests.oracles.tflite_more import WITHOUT_REFERENCE

ROOT = Path(__file__).parents[3]
LAB = ROOT / "build" / "oracles" / "ai-edge-litert"
WHEEL = "ai-edge-litert==2.3.0"
pytestmark = pytest.mark.long


def quiet(*command: str | Path) -> None:
    """Runs a command without a sound; CalledProcessError where it fails."""
    free = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run(list(map(str, command)), check=True, capture_output=True, cwd=ROOT, env=free)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results that LiteRT has just computed."""
    python = LAB / "bin" / "python"
    try:
        if not python.exists():
            quiet(sys.executable, "-m", "venv", LAB)
        quiet(python, "-m", "pip", "install", "-q", WHEEL)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{WHEEL} cannot be installed here; its recorded results are checked")
    folder = tmp_path_factory.mktemp("litert")
    quiet(python, "-m", "tests.oracles.tflite_vectors", "--to", folder, *SUITES)
    return folder


@pytest.mark.parametrize("name", SUITES)
def test_litert_gives_the_bytes_of_its_profiles(live: Path, name: str) -> None:
    if name not in WITHOUT_REFERENCE:
        agree(recorded(live, name, "ref"), reference(name))
    if name not in WITHOUT_DELEGATE:
        agree(recorded(live, name, "xnnpack"), NEWER)
