"""Records what MXNet 1.9.1 computes of networks that QIR quantized and wrote for it.

`QIR_MXNET=PYTHON python -m tests.oracles.mxnet_written FOLDER`, where PYTHON has MXNet, writes
`int8.npz`: of each network the digest of its files, and each quantized tensor.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from qir.backends.mxnet.session import MxnetSession
from tests.backends.mxnet.networks import NETWORKS, data
from tests.backends.mxnet.written import digest, files, of_mxnet, quantized


def main(folder: str) -> None:
    entries: dict[str, Any] = {}
    for name, network in NETWORKS.items():
        with tempfile.TemporaryDirectory() as place:
            path = files(quantized(network(), data()), Path(place))
            found = of_mxnet(MxnetSession(path).run({"data": data()}, all_nodes=True))
            entries[f"{name}.digest"] = np.array(digest(path))
        entries.update({f"{name}.tensor.{key}": array for key, array in found.items()})
        print(name, len(found), "tensors")
    np.savez_compressed(Path(folder) / "int8.npz", **entries)


if __name__ == "__main__":
    main(sys.argv[1])
