"""Takes layers that quantize their data while they run out of FX graph mode."""

import numpy as np
import torch
from torch import nn
from torch.ao.quantization import QConfigMapping, default_dynamic_qconfig
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qir

torch.manual_seed(0)
torch.set_num_threads(1)
torch.backends.quantized.engine = "x86"
model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 9)).eval()
x = torch.randn(5, 24)
mapping = QConfigMapping().set_global(default_dynamic_qconfig)
int8 = convert_fx(prepare_fx(model, mapping, (x,)))

graph = qir.load(int8, inputs=(x,))
(ours,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
assert np.array_equal(ours, int8(x).numpy())

qir.save(graph, "fx_dynamic.pt", target="pytorch-x86", force=True)
assert torch.equal(torch.jit.load("fx_dynamic.pt")(x), int8(x))
