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
    # Answers go to a copy of the original standard output; descriptor 1 becomes stderr.
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


def quantized(x: Any, parameters: Any) -> Any:
    """Float values as integers: storage, scales, zero points and the axis that they are along, if
    any."""
    storage, scales, zeros, axis = parameters
    if axis is None:
        return torch.quantize_per_tensor(x, float(scales), int(zeros), CODES[storage])
    channel_params = (
        torch.from_numpy(np.array(scales, np.float64)),
        torch.from_numpy(np.array(zeros)),
    )
    return torch.quantize_per_channel(x, *channel_params, axis, CODES[storage])


def dequantized(integers: Any, parameters: Any) -> Any:
    """Float values of which `quantized` makes those quantized values again."""
    _, scales, zeros, axis = parameters
    scales, zeros = np.array(scales, np.float64), np.array(zeros)
    if axis is not None:
        shape = tuple(-1 if i == axis else 1 for i in range(integers.ndim))
        scales, zeros = scales.reshape(shape), zeros.reshape(shape)
    # In float64, so that quantizing again gives the same integers.
    return as_channels_last(
        torch.from_numpy(((integers.astype(np.float64) - zeros) * scales).astype(np.float32))
    )


def as_channels_last(x: Any) -> Any:
    """Images and their weights with channels last, as the extension lays out what it prepares."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def fed_tensor(array: Any, parameters: Any) -> Any:
    """What a program is given: float values, those that are quantized too."""
    return (
        as_channels_last(torch.from_numpy(np.array(array)))
        if parameters is None
        else dequantized(array, parameters)
    )


def one_sided_padding(pad: Any) -> Any:
    """Returns the padding of one side of each axis, of a pad that is alike on both."""
    count = len(pad) // 2
    if pad[:count] != pad[count:]:
        raise ValueError("pads one side as the other")
    return pad[:count]


def conv(x: Any, attrs: Any) -> Any:
    kernel = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x["x"].dim()]
    pad, groups = one_sided_padding(attrs["pad"]), attrs["groups"]
    return kernel(x["x"], x["w"], x.get("bias"), attrs["stride"], pad, attrs["dilation"], groups)


def transposed(x: Any, attrs: Any) -> Any:
    kernel = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[x["x"].dim()]
    pad, output_padding, groups = (
        one_sided_padding(attrs["pad"]),
        attrs["output_pad"],
        attrs["groups"],
    )
    return kernel(
        x["x"],
        x["w"],
        x.get("bias"),
        attrs["stride"],
        pad,
        output_padding,
        groups,
        attrs["dilation"],
    )


def matmul(x: Any, attrs: Any) -> Any:
    a = x["a"].transpose(-1, -2) if attrs["trans_a"] else x["a"]
    b = x["b"].transpose(-1, -2) if attrs["trans_b"] else x["b"]
    return torch.matmul(a, b)


def avg_pool(x: Any, attrs: Any) -> Any:
    kernel = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}[x["x"].dim()]
    sizes = attrs["kernel"], attrs["stride"], one_sided_padding(attrs["pad"])
    return kernel(x["x"], *sizes, attrs["ceil"], attrs["count_pad"])


def max_pool(x: Any, attrs: Any) -> Any:
    kernel = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}[x["x"].dim()]
    sizes = attrs["kernel"], attrs["stride"], one_sided_padding(attrs["pad"])
    return kernel(x["x"], *sizes, attrs["dilation"], attrs["ceil"])


def layer_norm(x: Any, attrs: Any) -> Any:
    return F.layer_norm(x["x"], x["gamma"].shape, x["gamma"], x.get("beta"), attrs["eps"])


def sorted_operands(x: Any) -> Any:
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
    "concat": lambda x, a: torch.cat(sorted_operands(x), a["axis"]),
    "transpose": lambda x, a: x["x"].permute(a["perm"]),
    "flatten": lambda x, a: torch.flatten(x["x"], a["axis"]),
    "gather": lambda x, a: F.embedding(x["indices"], x["x"]),
}


class ModuleProgram(torch.nn.Module):
    """Ops in order; what is float at the start of a value of integers is made integers within."""

    def __init__(self, request: Any) -> None:
        super().__init__()
        self.request = request
        for index, (_, (array, parameters)) in enumerate(request["constants"].items()):
            floats = fed_tensor(array, parameters)
            self.register_buffer(
                f"c{index}", floats if parameters is None else quantized(floats, parameters)
            )

    def forward(self, *inputs: Any) -> Any:
        values: Any = {}
        for x, (name, (_, parameters)) in zip(inputs, self.request["inputs"].items(), strict=True):
            values[name] = x if parameters is None else quantized(x, parameters)
        for index, name in enumerate(self.request["constants"]):
            values[name] = getattr(self, f"c{index}")
        for op, name, operands, attrs, parameters in self.request["nodes"]:
            x = {slot: values[operand] for slot, operand in operands.items()}
            if op == "quantize":
                values[name] = quantized(x["x"], parameters)
            elif op == "dequantize":
                values[name] = x["x"].dequantize()
            else:
                values[name] = OPS[op](x, attrs)
        return values[self.request["result"]]


def run(request: Any) -> tuple[Any, str]:
    """Returns the result, as quantized values or float values, and the graph that was run as
    text."""
    inputs = tuple(fed_tensor(*pair) for pair in request["inputs"].values())
    with torch.no_grad():
        trace: Any = torch.jit.trace
        # The fused graph is profiled, optimized and run only from the third run on.
        module = torch.jit.freeze(trace(ModuleProgram(request).eval(), inputs, check_trace=False))
        for _ in range(2):  # the first run is profiled, the second is made into kernels
            module(*inputs)
        result = module(*inputs)
        graph_text = str(module.graph_for(*inputs))
    integers_or_floats = result.int_repr() if result.is_quantized else result
    return integers_or_floats.contiguous().numpy(), graph_text


def main(pipe: str) -> None:
    """Answers programs by an array or a text."""
    torch.set_num_threads(1)
    runpy.run_path(pipe)["serve"](lambda asked: run(asked)[0], STREAM)


if __name__ == "__main__":
    main(sys.argv[1])
