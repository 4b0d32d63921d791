"""Takes an int8 model out of eager mode: for onnxruntime, and for PyTorch without torch.ao."""

import numpy as np
import torch
from torch import nn
from torch.ao import quantization as ao

import qir


class Net(nn.Module):
    """A convolution and a linear layer between the stubs of eager mode."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.conv, self.relu, self.linear = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.conv(self.quant(x)))
        y = nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)
        return self.dequant(self.linear(y))


torch.manual_seed(0)
torch.set_num_threads(1)
torch.backends.quantized.engine = "x86"
x = torch.randn(16, 3, 16, 16)
model = ao.fuse_modules(Net().eval(), [["conv", "relu"]])
model.qconfig = ao.get_default_qconfig("x86")
prepared = ao.prepare(model)
prepared(x)
int8 = ao.convert(prepared)

graph = qir.load(int8, inputs=(x,))
(ours,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
assert np.array_equal(ours, int8(x).numpy())

# The same weights and scales; onnxruntime rounds in its own way, which --lossy agrees to.
qir.save(graph, "eager.onnx", lossy=True, force=True)
# TorchScript needs neither the class nor torch.ao, and computes the same bytes.
qir.save(graph, "eager.pt", target="pytorch-x86", force=True)
assert torch.equal(torch.jit.load("eager.pt")(x), int8(x))
