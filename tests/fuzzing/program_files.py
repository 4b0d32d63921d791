"""Cases of program files: broken bytes, and forged tables with a right sum."""

from __future__ import annotations

import json
import random
import struct
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import qir
from qir._kernels._cpu import checksum
from qir.backends.cpu import CpuTarget
from qir.errors import InputError, OpError
from tests.fuzzing.breaking import break_bytes, break_json
from tests.fuzzing.judging import Broken, Try, clear

HEAD = struct.Struct("<8sIIQQ")
CODES = "!quant.uniform<u8:f32, 0.03:117>"
NET = f"""graph main as native {{
  %x = input() : 2x3x6x6xf32
  %i = input() : 2xi64
  %q = quantize(%x) : 2x3x6x6x{CODES}
  %m = max_pool2d(%q) {{kernel = (2, 2), stride = (2, 2)}} : 2x3x3x3x{CODES}
  %d = dequantize(%m) : 2x3x3x3xf32
  %t = transpose(%d) {{perm = (0, 2, 3, 1)}} : 2x3x3x3xf32
  %g = gather(%t, %i) {{axis = 3}} : 2x3x3x2xf32
  %w = constant(@w) : 2xf32
  %s = sub(%g, %w) : 2x3x3x2xf32
  output(s=%s, m=%m)
}}"""
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 256, 2**31, 2**40, 2**63, -(2**63), 0.5, 1e308, True, None)
WORDS = ("run", "call", "conv2d", "__init__", "u8", "i8", "f32", "", "x", "gather", "recurrent")


@lru_cache(1)
def intact_program() -> bytes:
    """A right file."""
    w = np.array([0.5, 2], np.float32)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "net.qirp"
        CpuTarget().compile(qir.parse(NET, {"w": w}), threads=1).save(path)
        return path.read_bytes()


def forged(rng: random.Random) -> bytes:
    """A file whose table is changed in some places, with the sum of what it holds then."""
    data = intact_program()
    magic, version, zero, length, _ = HEAD.unpack(data[: HEAD.size])
    table = json.loads(data[HEAD.size : HEAD.size + length])
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        break_json(rng, table, (*NUMBERS, *WORDS))
    text = json.dumps(table).encode()
    text += b" " * (-(HEAD.size + len(text)) % 64)
    rest = text + data[HEAD.size + length :]
    return HEAD.pack(magic, version, zero, len(text), checksum(rest)) + rest


def program_file_case(case: Try) -> None:
    """A broken file is refused in a line, or runs without harm."""
    rng = case.rng
    path = case.folder / "net.qirp"
    broken = rng.random() < 0.2
    path.write_bytes(break_bytes(rng, intact_program()) if broken else forged(rng))
    try:
        made = qir.load_program(path, threads=1)
        if broken and path.read_bytes() != intact_program():
            raise Broken("a file with other bytes is taken")
        inputs = {v.name: v.type for v in made.signature().inputs}  # type: ignore[attr-defined]
        made(**{n: np.zeros(t.shape, t.dtype.carrier) for n, t in inputs.items()})
    except (InputError, OpError) as error:
        clear(error)
