"""Runs programs on Intel's extension for PyTorch, which come in on standard input.

`python child.py PIPE`, with the path of `qir/inspect/pipe.py`: QIR itself is not imported, as the
extension wants a Python of its own, with torch 2.8. Started by `probe`.

A program is inputs, constants and ops in order, as plain data. It becomes a module that is traced,
frozen and run three times, so that what the extension fuses is fused.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import warnings
from typing import Any

if __name__ == "__main__":  # what the extension prints stays out of the answers
    STREAM = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import intel_extension_for_pytorch  # noqa: E402  it puts its passes into torch
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

CODES = {"u8": torch.quint8, "i8": torch.qint8}
VERSION = intel_extension_for_pytorch.__version__


def coded(x: Any, numbers: Any) -> Any:
    """Float values as integers: storage, scales, zero points and the axis that they are along, if
    any."""
    storage, scales, zeros, axis = numbers
    if axis is None:
        return torch.quantize_per_tensor(x, float(scales), int(zeros), CODES[storage])
    many = torch.from_numpy(np.array(scales, np.float64)), torch.from_numpy(np.array(zeros))
    return torch.quantize_per_channel(x, *many, axis, CODES[storage])


def real(codes: Any, numbers: Any) -> Any:
    """Float values of which `coded` makes those quantized values again."""
    _, scales, zeros, axis = numbers
    scales, zeros = np.array(scales, np.float64), np.array(zeros)
    if axis is not None:
        along = tuple(-1 if i == axis else 1 for i in range(codes.ndim))
        scales, zeros = scales.reshape(along), zeros.reshape(along)
    return laid(torch.from_numpy(((codes.astype(np.float64) - zeros) * scales).astype(np.float32)))


def laid(x: Any) -> Any:
    """Images and their weights with channels last, as the extension lays out what it prepares."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def fed(array: Any, numbers: Any) -> Any:
    """What a program is given: float values, those that are quantized too."""
    return laid(torch.from_numpy(np.array(array))) if numbers is None else real(array, numbers)


def half(pad: Any) -> Any:
    """Returns the padding of one side of each axis, of a pad that is alike on both."""
    count = len(pad) // 2
    if pad[:count] != pad[count:]:
        raise ValueError("pads one side as the other")
    return pad[:count]


def conv(x: Any, attrs: Any) -> Any:
    kernel = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x["x"].dim()]
    pad, groups = half(attrs["pad"]), attrs["groups"]
    return kernel(x["x"], x["w"], x.get("bias"), attrs["stride"], pad, attrs["dilation"], groups)


def transposed(x: Any, attrs: Any) -> Any:
    kernel = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[x["x"].dim()]
    pad, more, groups = half(attrs["pad"]), attrs["output_pad"], attrs["groups"]
    return kernel(
        x["x"], x["w"], x.get("bias"), attrs["stride"], pad, more, groups, attrs["dilation"]
    )


def matmul(x: Any, attrs: Any) -> Any:
    a = x["a"].transpose(-1, -2) if attrs["trans_a"] else x["a"]
    b = x["b"].transpose(-1, -2) if attrs["trans_b"] else x["b"]
    return torch.matmul(a, b)


def avg_pool(x: Any, attrs: Any) -> Any:
    kernel = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}[x["x"].dim()]
    sizes = attrs["kernel"], attrs["stride"], half(attrs["pad"])
    return kernel(x["x"], *sizes, attrs["ceil"], attrs["count_pad"])


def max_pool(x: Any, attrs: Any) -> Any:
    kernel = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}[x["x"].dim()]
    sizes = attrs["kernel"], attrs["stride"], half(attrs["pad"])
    return kernel(x["x"], *sizes, attrs["dilation"], attrs["ceil"])


def layer_norm(x: Any, attrs: Any) -> Any:
    return F.layer_norm(x["x"], x["gamma"].shape, x["gamma"], x.get("beta"), attrs["eps"])


def parts(x: Any) -> Any:
    return [x[slot] for slot in sorted(x)]


OPS: Any = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), transposed),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), avg_pool),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), max_pool),
    "linear": lambda x, a: F.linear(x["x"], x["w"], x.get("bias")),
    "matmul": matmul,
    "adaptive_avg_pool": lambda x, a: F.adaptive_avg_pool2d(x["x"], a["size"]),
    "global_avg_pool": lambda x, a: F.adaptive_avg_pool2d(x["x"], 1),
    "add": lambda x, a: x["a"] + x["b"],
    "sub": lambda x, a: x["a"] - x["b"],
    "mul": lambda x, a: x["a"] * x["b"],
    "div": lambda x, a: x["a"] / x["b"],
    "relu": lambda x, a: torch.relu(x["x"]),
    "gelu": lambda x, a: F.gelu(x["x"], approximate=a["approximate"]),
    "sigmoid": lambda x, a: torch.sigmoid(x["x"]),
    "tanh": lambda x, a: torch.tanh(x["x"]),
    "silu": lambda x, a: F.silu(x["x"]),
    "mish": lambda x, a: F.mish(x["x"]),
    "hard_swish": lambda x, a: F.hardswish(x["x"]),
    "hard_sigmoid": lambda x, a: F.hardsigmoid(x["x"]),
    "leaky_relu": lambda x, a: F.leaky_relu(x["x"], a["alpha"]),
    "elu": lambda x, a: F.elu(x["x"], a["alpha"]),
    "clip": lambda x, a: F.hardtanh(x["x"], a["min"], a["max"]),
    "abs": lambda x, a: torch.abs(x["x"]),
    "sqrt": lambda x, a: torch.sqrt(x["x"]),
    "square": lambda x, a: torch.square(x["x"]),
    "exp": lambda x, a: torch.exp(x["x"]),
    "softmax": lambda x, a: torch.softmax(x["x"], a["axis"]),
    "layer_norm": layer_norm,
    "concat": lambda x, a: torch.cat(parts(x), a["axis"]),
    "transpose": lambda x, a: x["x"].permute(a["perm"]),
    "flatten": lambda x, a: torch.flatten(x["x"], a["axis"]),
    "gather": lambda x, a: F.embedding(x["indices"], x["x"]),
}


class ModuleProgram(torch.nn.Module):
    """Ops in order; what is float at the start of a value of integers is made integers within."""

    def __init__(self, asked: Any) -> None:
        super().__init__()
        self.asked = asked
        for number, (_, (array, numbers)) in enumerate(asked["constants"].items()):
            held = fed(array, numbers)
            self.register_buffer(f"c{number}", held if numbers is None else coded(held, numbers))

    def forward(self, *given: Any) -> Any:
        values: Any = {}
        for x, (name, (_, numbers)) in zip(given, self.asked["inputs"].items(), strict=True):
            values[name] = x if numbers is None else coded(x, numbers)
        for number, name in enumerate(self.asked["constants"]):
            values[name] = getattr(self, f"c{number}")
        for op, name, operands, attrs, numbers in self.asked["nodes"]:
            x = {slot: values[of] for slot, of in operands.items()}
            if op == "quantize":
                values[name] = coded(x["x"], numbers)
            elif op == "dequantize":
                values[name] = x["x"].dequantize()
            else:
                values[name] = OPS[op](x, attrs)
        return values[self.asked["result"]]


def run(asked: Any) -> tuple[Any, str]:
    """Returns the result, as quantized values or float values, and the graph that was run as
    text."""
    given = tuple(fed(*pair) for pair in asked["inputs"].values())
    with torch.no_grad():
        trace: Any = torch.jit.trace
        module = torch.jit.freeze(trace(ModuleProgram(asked).eval(), given, check_trace=False))
        for _ in range(2):  # the first run is profiled, the second is made into kernels
            module(*given)
        found = module(*given)
        told = str(module.graph_for(*given))
    made = found.int_repr() if found.is_quantized else found
    return made.contiguous().numpy(), told


def main(pipe: str) -> None:
    """Answers programs by an array or a text."""
    torch.set_num_threads(1)
    runpy.run_path(pipe)["serve"](lambda asked: run(asked)[0], STREAM)


if __name__ == "__main__":
    main(sys.argv[1])
