"""Takes layers that quantize their data while they run out of eager mode."""

import numpy as np
import torch
from torch import nn
from torch.ao import quantization as ao

import qir

torch.manual_seed(0)
torch.set_num_threads(1)
torch.backends.quantized.engine = "x86"
model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 9)).eval()
x = torch.randn(5, 24)
int8 = ao.quantize_dynamic(model, {nn.Linear})

graph = qir.load(int8, inputs=(x,))
(ours,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
assert np.array_equal(ours, int8(x).numpy())

qir.save(graph, "eager_dynamic.pt", target="pytorch-x86", force=True)
assert torch.equal(torch.jit.load("eager_dynamic.pt")(x), int8(x))

# Or from the float model, without torch.ao: eight bits of data, as fbgemm has them without it.
again = qir.quantize(qir.load(model, inputs=(x,)), dynamic=True, target="pytorch-x86")
qir.save(again, "eager_dynamic_again.pt", target="pytorch-x86", force=True)
assert (torch.jit.load("eager_dynamic_again.pt")(x) - model(x)).abs().max() < 0.05
