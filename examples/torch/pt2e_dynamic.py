"""Makes layers of an exported program quantize their data while they run, as TorchScript."""

import numpy as np
import torch
from torch import nn

import qir
from qir import pipeline

torch.manual_seed(0)
torch.set_num_threads(1)
torch.backends.quantized.engine = "x86"
model = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 9)).eval()
x = torch.randn(5, 24)
batch = torch.export.Dim("batch", min=2, max=64)
program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))

int8 = pipeline.quantize_dynamic(qir.load(program), target="pytorch-x86")
qir.save(int8, "dynamic.pt", target="pytorch-x86")
made = torch.jit.load("dynamic.pt")(x)
assert (made - model(x)).abs().max() < 0.05

# The same from any framework: QIR runs these kernels on arrays too.
run = qir.compile(int8, target="pytorch-x86")
(ours,) = run(**{int8.inputs[0].name: x.numpy()}).values()
assert np.array_equal(ours, made.numpy())
