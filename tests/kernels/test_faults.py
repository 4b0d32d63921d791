"""A kernel with a planted fault is found by the tests beside this one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("qir", "frontends", "backends", "tests", "pyproject.toml", "setup.py", "README.md")
FINDERS = (
    "test_convolution.py::test_every_size_up_to_seventy_is_exact",
    "test_convolution.py::test_float_results_keep_all_their_bits",
    "test_onnxruntime.py::test_linear_is_qgemm",
)


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler")
def test_a_skipped_tail_element_turns_the_kernel_tests_red(tmp_path: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(source, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(source, tmp_path / name)
    built = run(tmp_path, "setup.py", "-q", "build_ext", "--inplace", CFLAGS="-DQIR_FAULT_TAIL")
    assert built.returncode == 0, built.stderr[-2000:]
    for finder in FINDERS:
        tested = run(
            tmp_path, "-m", "pytest", "-q", "-x", "-p", "no:xdist", f"tests/kernels/{finder}"
        )
        assert tested.returncode == 1, f"{finder} missed it:\n{tested.stdout[-2000:]}"
        assert (
            str(tmp_path) in run(tmp_path, "-c", "import qir._kernels._cpu as k; print(k)").stdout
        )
