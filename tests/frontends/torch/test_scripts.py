"""The scripts of examples/torch, each as it stands; they assert what they say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from qir.backends.torch.session import engine
from tests.processors import has

SCRIPTS = sorted((Path(__file__).parents[3] / "examples" / "torch").glob("*.py"))
MODES = {f"{mode}_{when}" for mode in ("eager", "fx", "pt2e") for when in ("static", "dynamic")}


def test_there_is_a_script_of_every_mode() -> None:
    assert {path.stem for path in SCRIPTS} == MODES
    assert all(len(path.read_text().splitlines()) < 60 for path in SCRIPTS)


def test_no_two_scripts_write_the_same_file() -> None:
    files = re.findall(r'save\(\w+, "(.+?)"', "".join(path.read_text() for path in SCRIPTS))
    assert len(files) == len(set(files)) >= len(SCRIPTS)


@pytest.mark.skipif(not has("vnni"), reason="profiles of PyTorch speak of VNNI")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs_twice(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with engine("x86"), torch.random.fork_rng():
        runpy.run_path(str(path))
        runpy.run_path(str(path))  # over the files of the first run
