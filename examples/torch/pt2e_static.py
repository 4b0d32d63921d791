"""Quantizes an exported program without a quantizer of PT2E, and runs it by inductor's kernels."""

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # makes the operators of the file known
from torch import nn

import qir

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    nn.Linear(16, 10),
).eval()
x = torch.randn(16, 3, 16, 16)
batch = torch.export.Dim("batch", min=2, max=64)
program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))

graph = qir.load(program)
int8 = qir.quantize(graph, qir.calibrate(graph, x.numpy()), target="pt2e")
qir.save(int8, "int8.pt2", target="pt2e", force=True)

# torch.compile with freezing makes each layer of this file one kernel of oneDNN, from torch 2.15 on
# after importing torchao.quantization.pt2e.quantizer.x86_inductor_quantizer; as it stands, it
# computes floats between quantize and dequantize.
exported = torch.export.load("int8.pt2").module()
assert (exported(x) - model(x)).abs().max() < 0.05

# The file is read again, as is any program of operators of quantized_decomposed.
again = qir.load("int8.pt2")
assert [n.op for n in again].count("quantize") == [n.op for n in int8].count("quantize")

# What those kernels compute QIR knows to the byte.
name = graph.inputs[0].name
(theirs,) = qir.compile(int8, target="pt2e")(**{name: x.numpy()}).values()
assert np.abs(theirs - exported(x).detach().numpy()).max() < 0.05
