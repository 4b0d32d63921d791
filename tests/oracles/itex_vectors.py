"""Records what Intel's TensorFlow registers and computes: `make oracle-itex`.

`python -m tests.oracles.itex_vectors write FOLDER` writes a graph with int8 kernels and its inputs,
in the project's Python; `... run FOLDER` lists the kernels and runs the graph in Intel's.
"""

# mypy: ignore-errors

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SEED = 11


def write(folder):
    """Writes a residual network of convolutions, some depthwise, whose results are images."""
    import qir
    from tests.backends.tensorflow.networks import Net
    from tests.backends.tensorflow.written import TARGET, quantized

    net = Net(3, 12, SEED)
    x = net.relu(net.conv(net.x, 8, 3, 2))
    y = net.conv(net.relu6(net.conv(x, 8, groups=8)), 8, 1)
    x = net.relu(net.op("add", y, x))
    x = net.op("max_pool2d", x, kernel=(2, 2), stride=(2, 2))
    net.ends(net.conv(x, 4))
    made = quantized(net.graph, net.feeds(4))
    folder.mkdir(parents=True, exist_ok=True)
    qir.save(made, folder / "network.pb", target=TARGET, force=True)
    np.savez(folder / "inputs.npz", x=1.5 * net.feeds(4)["x"])


def registered():
    """Returns the kernels on quantized values, each once."""
    from tensorflow.core.framework.kernel_def_pb2 import KernelList
    from tensorflow.python.client import pywrap_tf_session

    held = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllRegisteredKernels())
    ops = {
        kernel.op for kernel in KernelList.FromString(held).kernel if kernel.device_type == "CPU"
    }
    return sorted(op for op in ops if "uantize" in op)


def run(folder):
    """Writes the kernels, and what the network computes."""
    import tensorflow as tf

    head = f"# intel-tensorflow {tf.__version__}\n"
    (folder / "registered.txt").write_text(head + "\n".join(registered()) + "\n", encoding="utf-8")
    x = np.load(folder / "inputs.npz")["x"]
    proto = tf.compat.v1.GraphDef.FromString((folder / "network.pb").read_bytes())
    with tf.Graph().as_default() as graph:
        tf.compat.v1.import_graph_def(proto, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            np.savez(folder / "results.npz", y=session.run("y:0", {"x:0": x}))


if __name__ == "__main__":
    {"write": write, "run": run}[sys.argv[1]](Path(sys.argv[2]))
