"""Packages whose names are imported when they are asked for."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from qir.lazy_exports import lazy_exports

PACKAGES = (
    "qir",
    "qir.rewrite",
    "qir.workflows",
    "qir.backends.ipex",
    "qir.backends.mxnet",
    "qir.backends.tensorflow",
    "qir.backends.torch",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_that_of_the_module_which_defines_it(package: str) -> None:
    module = import_module(package)
    assert set(module._HOMES) <= set(module.__all__)
    for name, home in module._HOMES.items():
        assert getattr(module, name) is getattr(import_module(home), name), name
    # A module of the package would take the place of what the package exports by its name.
    assert not [name for name in module._HOMES if find_spec(f"{package}.{name}")]
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'no_name'"):
        _ = module.no_name


def test_a_name_that_no_table_has_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'a' has no attribute 'c'"):
        lazy_exports("a", {"b": "sys"})("c")


FIRST_RESULT = """
import sys
import onnx
from onnx import TensorProto, helper
info = helper.make_tensor_value_info
scalar = lambda name, kind, value: helper.make_tensor(name, kind, (), [value])
nodes = [
    helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
    helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
    helper.make_node("MaxPool", ["d"], ["m"], kernel_shape=[2, 2]),
    helper.make_node("QuantizeLinear", ["m", "s", "z"], ["n"]),
    helper.make_node("DequantizeLinear", ["n", "s", "z"], ["y"]),
]
graph = helper.make_graph(
    nodes,
    "pool",
    [info("x", TensorProto.FLOAT, [1, 1, 4, 4])],
    [info("y", TensorProto.FLOAT, [1, 1, 3, 3])],
    [scalar("s", TensorProto.FLOAT, 0.1), scalar("z", TensorProto.UINT8, 3)],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "pool.onnx")
import qir
qir.compile(qir.load("pool.onnx"), threads=1)
print(*sorted(name for name in sys.modules if name.startswith("qir.")))
"""


def test_the_first_result_of_a_file_needs_nothing_that_quantizes(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FIRST_RESULT],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    loaded = set(run.stdout.split())
    assert {"qir.backends.cpu.lower", "qir.profiles.library"} <= loaded
    others = ("calibration", "pipeline", "quantizing", "inspect", "query.expression", "workflows")
    assert not [n for n in loaded if n.removeprefix("qir.").startswith(others)]
    targets = {f"qir.backends.{b}.target" for b in ("ipex", "mxnet", "tensorflow", "torch")}
    kernels = {f"qir.backends.{b}.kernels" for b in ("ipex", "mxnet", "tensorflow", "torch")}
    assert not (targets | kernels) & loaded
