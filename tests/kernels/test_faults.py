"""A kernel with a planted fault is found by the tests beside this one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .one import ISAS

ROOT = Path(__file__).parents[2]
COPIED = ("qir", "frontends", "backends", "tests", "pyproject.toml", "setup.py", "README.md")
FINDERS = {
    "QIR_FAULT_TAIL": (
        "test_convolution.py::test_every_size_up_to_seventy_is_exact",
        "test_convolution.py::test_float_results_keep_all_their_bits",
        "test_onnxruntime.py::test_linear_is_qgemm",
    ),
    "QIR_FAULT_TAIL_CODES": (
        "test_quantize_kernels.py::test_integers_are_rounded_and_held_in_their_bounds",
        "test_quantize_kernels.py::test_floats_are_made_in_the_order_that_is_said",
        "test_quantize_kernels.py::test_bytes_may_stand_for_numbers_of_a_table",
    ),
    "QIR_FAULT_TAIL_DEPTHWISE": (
        "test_convolution.py::test_every_number_of_channels_up_to_seventy_is_exact_in_depthwise",
        "test_convolution.py::test_random_depthwise_convolutions_are_exact",
    ),
    "QIR_FAULT_TAIL_ELEMENTWISE": (
        "test_elementwise.py::test_one_operand_may_be_shared_by_rows",
        "test_elementwise.py::test_lookup_reads_the_table_by_byte",
        "test_elementwise.py::test_quantize_divides_rounds_to_even_and_saturates",
        "test_elementwise.py::test_dequantize_subtracts_in_integers",
        "test_onnxruntime.py::test_sums_and_products_are_those_of_qlinear",
    ),
    "QIR_FAULT_TAIL_GROUPED": (
        "test_convolution.py::test_every_number_of_narrow_groups_is_exact",
        "test_convolution.py::test_random_convolutions_of_narrow_groups_are_exact",
    ),
    "QIR_FAULT_TAIL_MATMUL": ("test_matmul.py::test_every_size_up_to_seventy_is_exact",),
    "QIR_FAULT_TAIL_POOLING": (
        "test_pooling.py::test_max_pool_takes_the_largest_code_of_what_there_is",
        "test_pooling.py::test_avg_pool_adds_floats_in_the_order_of_the_window",
        "test_pooling.py::test_global_avg_pool_sums_exactly",
        "test_pooling.py::test_a_mean_of_floats_is_rounded_once",
        "test_onnxruntime.py::test_averages_are_those_of_qlinear",
    ),
    "QIR_FAULT_TAIL_RESIZE": ("test_resize.py::test_a_result_is_between_four_neighbours",),
    "QIR_FAULT_TAIL_ROWS": (
        "test_rows.py::test_layer_norm_adds_in_lanes",
        "test_rows.py::test_softmax_of_floats_is_within_a_unit_of_the_last_place",
    ),
    "QIR_FAULT_TAIL_SUMS": (
        "test_sums.py::test_a_result_is_the_number_of_levels_that_its_sum_reaches",
        "test_sums.py::test_every_sum_of_a_line_has_its_result",
    ),
    "QIR_FAULT_TAIL_SOFTMAX": (
        "test_pooling.py::test_softmax_is_a_table_and_one_division",
        "test_onnxruntime.py::test_softmax_is_what_was_recorded_of_qlinearsoftmax",
    ),
}
"""Where a family skips one element of a tail, and who has to see it: each runs that family only."""


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """For each finder the outcome and the parameters of its tests, in a build with all faults."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("faulty")
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    flags = " ".join(f"-D{fault}" for fault in FINDERS)
    built = run(folder, "setup.py", "-q", "build_ext", "--inplace", CFLAGS=flags)
    assert built.returncode == 0, built.stderr[-2000:]
    where = run(folder, "-c", "import qir._kernels._cpu as k; print(k.__file__)").stdout
    assert where.startswith(str(folder)), where
    finders = [f"tests/kernels/{finder}" for many in FINDERS.values() for finder in many]
    options = ("-q", "-p", "no:xdist", "--tb=no", "-rfEp")
    tested = run(folder, "-m", "pytest", *options, *finders).stdout
    found: dict[str, list[tuple[str, str]]] = {}
    line = re.compile(r"^(\w+) tests/kernels/(\w+\.py::\w+)(\[.*?\])?", re.MULTILINE)
    for outcome, finder, given in line.findall(tested):
        found.setdefault(finder, []).append((outcome, given))
    return found


def test_finders_are_tests() -> None:
    # A name that is stale stops the whole run of all finders below, which is long and seldom run.
    for finder in (finder for many in FINDERS.values() for finder in many):
        file, _, name = finder.partition("::")
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(), finder


@pytest.mark.long
@pytest.mark.parametrize("fault", FINDERS)
def test_a_skipped_tail_element_turns_the_tests_of_its_family_red(
    fault: str, outcomes: dict[str, list[tuple[str, str]]]
) -> None:
    for finder in FINDERS[fault]:
        seen = outcomes[finder]
        failed = [given for outcome, given in seen if outcome == "FAILED"]
        assert failed, f"{finder} missed {fault}: {seen}"
        assert all(outcome in ("FAILED", "PASSED") for outcome, _ in seen), seen
        if any(isa in given for isa in ISAS for _, given in seen):
            missed = [isa for isa in ISAS if not any(isa in given for given in failed)]
            assert not missed, f"{finder} missed {fault} in the kernels of {missed}"
