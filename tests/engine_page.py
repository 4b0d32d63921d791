"""The page of the engine's kernels: which elements and instruction sets each has, op by op.

Made from the tables of `backends/cpu`: `python -m tests.engine_page`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from qir._kernels import _cpu
from qir.backends.cpu import (
    bodies,
    elementwise,
    floats,
    lookup_tables,
    lower,
    normalizations,
    recurrent,
)
from qir.backends.cpu.program import kernel_sets
from qir.backends.cpu.program_file import STEPS
from qir.ir.ops import OPS
from qir.ir.ops.graph import STATED_TYPE_OPS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "engine-kernels.md"
HEAD = """# Kernels of QIR's engine

What `cpu` computes in compiled code, for which elements, with which instruction sets. Made from
the engine's tables by `python -m tests.engine_page`. A kernel may refuse a case, such as an
operand that it wants constant: then the next one takes the op, and at last the reference, which
`qir bench` lists with the reason and `--strict` refuses with status 3.

## Kernels

A kernel is chosen when a model is compiled or a program file is loaded: that of the best
instruction set in use. `QIR_ISA` in the environment names the best that may be used; `qir doctor`
lists those in use. All sets give the same bytes.

| set | what the processor needs | used |
|---|---|---|
| avx512vbmi | avx512 and AVX512-VBMI | always |
| avx512vnni | avx512 and AVX512-VNNI | always |
| avx512 | AVX-512 F, DQ, BW and VL, and FMA | always |
| avxvnni_evex | avx512vnni | if `QIR_ISA` names it |
| avxvnni | avx2 and AVX-VNNI | if `QIR_ISA` names it |
| avx2 | AVX2 and FMA | always |
| neondot | 64-bit Arm with dot products (FEAT_DotProd) | always |
| neon | 64-bit Arm | always |
| scalar | nothing: C without intrinsics | always |

`avxvnni` multiplies bytes on 256 bits, and `avxvnni_evex` does the same in the encoding of AVX-512;
[performance](../performance.md#instruction-sets) says what they gain.

Kernels of Arm are compared with those of `scalar` under emulation (`tests/kernels/test_twins.py`);
their speed on Arm hardware was never measured.

| step | elements | instruction sets |
|---|---|---|
"""
OPS_HEAD = """
## Ops

- **8 bits**: quantized values of 8 bits with one scale. `table`: 256 entries, which the reference
  computes when the model is compiled. `by rule`: not in ONNX's profiles, but by methods of others,
  such as those of TensorFlow Lite, which are in whole numbers.
- **f32 alone**: float32 in a model without quantized values, by float32 sums of one documented
  order.
- **f32 mixed**: float32 next to quantized values: exact, or computed in float64 and rounded
  once, as the reference does. Another order of a float64 sum, or the last bit of a function of
  the C library, changes a result where it lies next to a tie of float32; the tests met none.
- **others**: what else the loops take. Quantize and dequantize also know 16 bits and a scale for
  each channel; weights of 4 and 8 bits in blocks stay integers in matmul, gemm and linear.

| op | 8 bits | f32 alone | f32 mixed | others |
|---|---|---|---|---|
"""
CODES, FLOAT, ANY = "u8, i8", "f32", "any"
ELEMENTS: Mapping[str, str] = {
    "apply": "by operation, below",
    "where": ANY,
    "function": FLOAT,
    "cast": ", ".join(_cpu.KINDS),
    "reduce": ", ".join(_cpu.ORDERED),
    "place": ", ".join(_cpu.ORDERED),
    "top_k": ", ".join(_cpu.ORDERED),
    "encode": "f32 to u8, i8, u16, i16",
    "pointwise": FLOAT,
    "dynamic_linear": "u8, i8 to f32",
    "dynamic_conv2d": "u8, i8 to f32",
    "decode": "u8, i8, u16, i16, i32 to f32",
    "choose": "f32 to u8, i8",
    "wide_product": "f32; weights of 4 and 8 bits in blocks",
    "wide_conv": FLOAT,
    "quantize": "f32 to u8, i8",
    "dequantize": "u8, i8 to f32",
    "conv2d": CODES,
    "linear": CODES,
    "matmul": CODES,
    "add": CODES,
    "mul": CODES,
    "whole_add": CODES,
    "real": FLOAT,
    "lookup": "u8, i8 to 1, 2, 4 or 8 bytes",
    "lookup_runs": CODES,
    "lookup_pairs": CODES,
    "code_means": CODES,
    "lookup_sums": CODES,
    "resize_linear": CODES,
    "quantize_by": "f32 to u8, i8",
    "max_pool2d": CODES,
    "avg_pool2d": CODES,
    "global_avg_pool": CODES,
    "mean": "u8, i8 to f32",
    "softmax": CODES,
    "layer_norm": FLOAT,
    "real_softmax": FLOAT,
    "copy": ANY,
    "fill": ANY,
    "strided": ANY,
    "transpose": ANY,
    "gather": ANY,
    "recurrent": FLOAT,
}
"""Of the steps whose name does not say it."""
FLOAT_ONLY = frozenset({elementwise.float_binary, normalizations.layer_norm})
"""Lowerings that take float32 alone, beside those of quantized values."""
MIXED_OPS = frozenset(
    {"add", "mul", "sub", "div", "softmax", "layer_norm", "quantize", "dequantize"}
)
"""Ops with an older kernel for float32 beside quantized values."""


BY_RULE = frozenset({*lower.RULED_LOWERINGS, *lower.by_rule.sums.OPS, "resize"})
"""Ops that kernels compute by the rules of other profiles than their own."""


def sets(step: str) -> str:
    """Returns the instruction sets of a step's kernels."""
    of_unary = f"float_{_cpu.UNARY[0]}"
    return ", ".join(kernel_sets(of_unary if step == "float_unary" else step))


def elements(step: str) -> str:
    """Returns the elements of a step's operands."""
    return FLOAT if step.startswith("float_") else ELEMENTS[step]


def others(op: str) -> str:
    """Returns the element types other than float32 that the loops on tensors take."""
    applied, name = _cpu.applied(), lower.plain_elements.KERNEL_NAMES.get(op, op)
    if op in lower.MOVE_METHOD_OPS or op in (
        "reshape",
        "flatten",
        "transpose",
        "concat",
        "pad",
        "where",
    ):
        return ANY
    if op == "cast":
        return ", ".join(_cpu.KINDS)
    if op in ("arg_max", "arg_min", "top_k", *(f"reduce_{r}" for r in _cpu.REDUCTIONS[:4])):
        return ", ".join(kind for kind in _cpu.ORDERED if kind != FLOAT)
    if op in ("matmul_integer", "conv_integer", "recode"):
        return CODES
    # The kernel computes it as an exclusive or with all bits set.
    if op == "bit_not":
        name = "xor"
    if op == "logical_not":
        return "bool"
    return ", ".join(kind for kind in applied.get(name, ()) if kind != FLOAT)


def floating(op: str) -> bool:
    """Whether the kernels of an op take float32."""
    applied = _cpu.applied()
    if op in ("matmul_integer", "conv_integer", "recode", "bit_not", "logical_not"):
        return False
    name = lower.plain_elements.KERNEL_NAMES.get(op, op)
    return name not in applied or FLOAT in applied[name]


def row(op: str) -> tuple[str, str, str, str] | None:
    """Returns the cells of an op; None where there is no kernel."""
    if op in bodies.CONTROL_OPS:
        return "bodies are programs", "bodies are programs", "bodies are programs", ""
    if op in recurrent.RECURRENT_OPS:
        return "", "yes", "yes", ""
    lowering = lower.LOWERINGS.get(op)
    bytes_cell = (
        "yes" if (lowering is not None and lowering not in FLOAT_ONLY) or op == "split" else ""
    )
    if not bytes_cell and (op in BY_RULE):
        bytes_cell = "by rule"
    # 256 entries cover every value of an op that works element by element.
    if not bytes_cell and lookup_tables.is_pointwise(op):
        bytes_cell = "table"
    takes_floats = (
        op in lower.SLOWER_LOWERINGS
        or op in lower.MULTI_RESULT_LOWERINGS
        or op in lower.MOVE_METHOD_OPS
    )
    only_moves = others(op) == ANY
    f32_alone = (
        "yes" if op in floats.LOWERINGS or takes_floats or op in MIXED_OPS or only_moves else ""
    )
    f32_mixed = (
        "yes" if op in floats.BIT_EXACT_OPS or takes_floats or op in MIXED_OPS or only_moves else ""
    )
    if not floating(op):
        f32_alone = f32_mixed = ""
    cells = (bytes_cell, f32_alone, f32_mixed, others(op))
    return cells if any(cells) else None


def lines() -> Iterator[str]:
    """The page, part by part."""
    yield HEAD
    for step in sorted(STEPS):
        yield f"| {step} | {elements(step)} | {sets(step)} |\n"
    yield "\nWhat `apply` computes, and of which elements:\n\n| operation | elements |\n|---|---|\n"
    for op, kinds in _cpu.applied().items():
        yield f"| {op} | {', '.join(kinds)} |\n"
    yield f"\n`function` knows {', '.join(_cpu.FUNCTIONS)}; "
    yield f"`float_unary` {', '.join(_cpu.UNARY)}; `reduce` {', '.join(_cpu.REDUCTIONS)}.\n"
    yield OPS_HEAD
    for op in sorted(OPS):
        cells = row(op)
        if cells is not None:
            yield f"| {op} | {' | '.join(cells)} |\n".replace("|  ", "| ")
    no_kernel_needed = STATED_TYPE_OPS | {"constant", "shape", "size"}
    without_kernel = [
        op for op in sorted(OPS) if row(op) is None and OPS.own(op) and op not in no_kernel_needed
    ]
    yield f"\nNo kernel, so that the reference computes them: {', '.join(without_kernel)}.\n"


def text() -> str:
    """The page."""
    return "".join(lines())


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
