"""Lists every kernel that Intel's extension for PyTorch registers, in the extension's own Python.

build/oracles/ipex/bin/python -m tests.oracles.ipex_registered FILE
"""

# mypy: ignore-errors

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import intel_extension_for_pytorch as ipex  # noqa: E402, F401  it registers its kernels
import torch  # noqa: E402

SPACES = ("ipex", "ipex_prepack", "torch_ipex")


def names():
    """Of the dispatcher and of traced modules, without a signature's own."""
    found = set(torch._C._dispatch_get_all_op_names())
    found |= {schema.name for schema in torch._C._jit_get_all_schemas()}
    return sorted({name.partition(".")[0] for name in found if name.partition("::")[0] in SPACES})


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(names()) + "\n", encoding="utf-8")
