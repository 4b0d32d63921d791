"""Takes an int8 model out of FX graph mode: for onnxruntime, and for PyTorch without torch.ao."""

import numpy as np
import torch
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qir

torch.manual_seed(0)
torch.set_num_threads(1)
torch.backends.quantized.engine = "x86"
model = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(8, 16, 3), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    nn.Linear(16, 10),
).eval()
x = torch.randn(16, 3, 16, 16)
prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (x,))
prepared(x)
int8 = convert_fx(prepared)

graph = qir.load(int8, inputs=(x,))
(ours,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
assert np.array_equal(ours, int8(x).numpy())
qir.save(graph, "fx.onnx", lossy=True, force=True)

# A module of torch.fx again, or TorchScript: the same kernels, the same bytes.
module = qir.build(graph, target="pytorch-x86", format="fx")
assert torch.equal(module(x), int8(x))
qir.save(graph, "fx.pt", target="pytorch-x86", force=True)
assert torch.equal(torch.jit.load("fx.pt")(x), int8(x))
