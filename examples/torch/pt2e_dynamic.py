"""Makes layers of an exported program quantize their data while they run."""

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # makes the operators of the file known
from torch import nn

import qir

torch.manual_seed(0)
torch.set_num_threads(1)
torch.backends.quantized.engine = "x86"
model = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 9)).eval()
x = torch.randn(5, 24)
batch = torch.export.Dim("batch", min=2, max=64)
program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))

graph = qir.load(program)
int8 = qir.quantize(graph, dynamic=True, target="pt2e")
qir.save(int8, "pt2e_dynamic.pt2", target="pt2e", force=True)

# torch.compile with freezing makes each linear layer of this file one kernel of oneDNN.
exported = torch.export.load("pt2e_dynamic.pt2").module()
assert (exported(x) - model(x)).abs().max() < 0.05

# An engine for quantized tensors has such kernels in TorchScript, to the byte.
int8 = qir.quantize(graph, dynamic=True, target="pytorch-x86")
qir.save(int8, "pt2e_dynamic.pt", target="pytorch-x86", force=True)
made = torch.jit.load("pt2e_dynamic.pt")(x)

# The same from any framework: QIR runs these kernels on arrays too.
run = qir.compile(int8, target="pytorch-x86")
(ours,) = run(**{int8.inputs[0].name: x.numpy()}).values()
assert np.array_equal(ours, made.numpy())
