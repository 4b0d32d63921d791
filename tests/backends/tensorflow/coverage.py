"""TensorFlow op by op: what is read and written, and the test that compares numbers.

`python -m tests.backends.tensorflow.coverage` writes docs/reference/tensorflow-coverage.md from the
tables of the frontend and from the nodes that the tests of the writer write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import qir
from qir.backends.tensorflow.writer.forms import converted
from qir.backends.tensorflow.writer.graphdef import to_graphdef
from qir.frontends.tensorflow import kernels, loops, quantization
from qir.frontends.tensorflow.graphdef import BRANCH_OPS, CALL_OPS, FRAME_OPS, LOOP_OPS
from qir.frontends.tensorflow.messages import GraphDefMessage
from qir.frontends.tensorflow.operators import OPS

from .networks import branches, inverted, residual
from .written import quantized

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "tensorflow-coverage.md"
READ = "tests/frontends/tensorflow"
WRITTEN = "tests/backends/tensorflow"
REASONS: Mapping[str, str] = {
    "QuantizeAndDequantize": "deprecated since 2016; its range may be computed from its data",
    "QuantizeDownAndShrinkRange": "its range is computed from its data",
    "RequantizationRange": "its range is computed from its data",
    "Requantize": "reads 32-bit sums, which fused kernels do not give",
    "QuantizedReluX": "has no kernel in TensorFlow, and fails when it runs",
    "QuantizedConcat": "older form of QuantizedConcatV2, which is read",
    "QuantizedConv2DWithBiasSumAndRelu": "gives 32-bit sums; the form with Requantize is read",
    "QuantizedMatMul": "older form of _QuantizedMatMul, which is read",
    "Quantized": "no kernel of oneDNN; the profile tf-2.21.core has its numbers",
    "Uniform": "no kernel of oneDNN; the profile tf-2.21.uniform has its numbers",
}
"""Why an op is not read, by how its name begins; the longest beginning holds."""
KEPT = "TensorFlow runs them, as it does forms of ops that are not read (`test_quantize_modes.py`)."
_QUANTIZES = re.compile("[Qq]uantiz|FakeQuant")
HEAD = """# TensorFlow, op by op

Made by `python -m tests.backends.tensorflow.coverage`. *Read*: the test that reads a graph with the
op and compares what the reference computes with TensorFlow: floats within 1e-4 of the largest,
integers by `==`. *Written*: the test that writes the op and compares what TensorFlow computes with
the reference in the same way. `test_intel.py` compares with TensorFlow's float ops, since no public
build has those kernels. Other ops are kept as they are where
TensorFlow is installed, and run by it ([guide](../guide/tensorflow.md)); those with a state are
refused by name.

"""


def read() -> dict[str, str]:
    """Returns the test that compares each op that is read."""
    found = dict.fromkeys(OPS, "test_operators.py")
    found |= dict.fromkeys(quantization.OPS, "test_quantization.py")
    found |= dict.fromkeys(kernels.OPS, "test_kernels.py")
    found |= dict.fromkeys(
        ("QuantizeV2", "Dequantize", *kernels.LEGACY_MATMULS), "test_quantize_modes.py"
    )
    found |= dict.fromkeys(kernels.INTEL, "test_intel.py")
    found |= dict.fromkeys((*loops.OPS, *LOOP_OPS, *BRANCH_OPS, *FRAME_OPS), "test_loops.py")
    found |= dict.fromkeys(CALL_OPS, "test_networks.py")
    return found | dict.fromkeys(("Const", "Placeholder"), "test_networks.py")


def _ops(graph: qir.Graph) -> set[str]:
    made = to_graphdef(converted(graph, qir.Ledger(), kernels=True))
    return {node.op for node in GraphDefMessage.FromString(made.data).node}


def written() -> dict[str, str]:
    """Returns the test that compares each op that is written; the graphs are those of the tests."""
    from .test_control import CASES as CONTROL
    from .test_float_ops import CASES, build

    def made() -> Iterator[tuple[str, qir.Graph]]:
        for net in (residual(7), inverted(7), branches(7)):
            yield "test_written.py", quantized(net.graph, net.feeds(2))
        for text, _ in CONTROL.values():
            yield "test_control.py", qir.parse(text)
        for case in CASES.values():
            yield "test_float_ops.py", build(case)[0]

    found: dict[str, str] = {}
    for test, graph in made():
        for op in _ops(graph):
            found.setdefault(op, test)
    return found


def unread() -> list[str]:
    """Returns TensorFlow's ops on quantized values that are not read."""
    import tensorflow as tf

    return [n for n in dir(tf.raw_ops) if _QUANTIZES.search(n) and n not in read()]


def reason(name: str) -> str:
    """Returns why an op is not read; ValueError for one that nobody has thought of."""
    if name.endswith(("Grad", "Gradient")):
        return "gradients: training is not read"
    return REASONS[max((part for part in REASONS if name.startswith(part)), key=len)]


def page() -> str:
    """Returns the page."""
    given, made = read(), written()
    names = sorted(given.keys() | made.keys(), key=str.lower)
    lines = [f"{len(given)} ops are read, {len(made)} are written.\n"]
    lines += ["| op | read | written |", "|---|---|---|"]
    for name in names:
        tests = (f"`{held[name]}`" if name in held else "-" for held in (given, made))
        lines.append(f"| `{name}` | {' | '.join(tests)} |")
    lines += [f"\nTests that read stand in `{READ}`, those that write in `{WRITTEN}`.\n"]
    lines += [
        "## Kept, though they quantize\n",
        f"{KEPT}\n",
        "| op | why it is not read |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {reason(name)} |" for name in unread()]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
