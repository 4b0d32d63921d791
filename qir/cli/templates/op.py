"""A new op."""

from __future__ import annotations

from collections.abc import Mapping

FILES: Mapping[str, str] = {
    "=points": """\
[project.entry-points."qir.ops"]
$entry = "$module:OP"
""",
    "=about": """\
An op for QIR's language: a type rule, a reference that says what it computes, and a name in ONNX.
This one keeps the elements whose size is above a threshold, and gives 0 for all others.""",
    "=use": """\
Then write it in a program, or read it from an ONNX file that has the operator:

```text
%y = $entry(%x) {threshold = 1.0} : 2x3xf32
```""",
    "$module/__init__.py": '''\
"""An op that keeps elements above a threshold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from qir.ir.ops import AttrSpec, Call, Elsewhere, OpSpec, PluginOp, Slot, Traits
from qir.ir.types import TensorType

qir_api = 1


def rule(call: Call) -> tuple[TensorType, ...]:
    """The type of the result: that of x, which must be float. Sizes may be symbols."""
    if not call.express("x").is_float:
        raise call.fail(f"x holds {call.express('x')}; it takes floats")
    return (TensorType(call.shape("x"), call.express("x")),)


def reference(x: NDArray[np.floating], threshold: float) -> NDArray[np.floating]:
    """What the op computes: in float64, rounded once to the type of x."""
    wide = x.astype(np.float64)
    return np.where(np.abs(wide) > threshold, wide, 0.0).astype(x.dtype)


OP = PluginOp(
    OpSpec(
        "$entry",
        (Slot("x"),),
        rule,
        (AttrSpec("threshold", "float", 0.5),),
        Traits(elementwise=True),
        doc="x where its size is above the threshold, else 0.",
    ),
    reference,
    elsewhere={"onnx": Elsewhere("com.example", "$Class", version=1)},
)
''',
    "tests/test_$module.py": '''\
"""The op computes what it says, and keeps the contract of ops."""

import numpy as np
import qir
from qir import registry
from qir.testing import check_op, require

from $module import OP

TEXT = """\\
graph main as native {
  %x = input() : 2x3xf32
  %y = $entry(%x) {threshold = 1.0} : 2x3xf32
  output(y=%y)
}
"""


def test_elements_above_the_threshold_are_kept() -> None:
    x = np.array([[0.5, -1.0, 2.0], [-3.0, 0.0, 1.5]], np.float32)
    with registry.offer("qir.ops", "$entry", OP):
        graph = qir.parse(TEXT)
        assert str(graph) == TEXT
        assert qir.verify(graph) == []
        assert qir.run(graph, {"x": x})["y"].tolist() == [[0, 0, 2], [-3, 0, 1.5]]


def test_it_keeps_the_contract_of_ops() -> None:
    require(check_op(OP))
''',
}
