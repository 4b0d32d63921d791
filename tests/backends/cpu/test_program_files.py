"""Program files: what runs from one, and what is refused in a line."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir._kernels._cpu import checksum
from qir.backends.cpu import CpuTarget
from qir.backends.cpu.compiled import Compiled
from qir.errors import DataError, InputError, Refused, UsageError
from qir.ir.text import parse

Q = "!quant.uniform<u8:f32, 0.031:117>"
OPEN = f"""
graph main {{
  %x = input() : (N)x3x(H)x8xf32
  %q = quantize(%x) : (N)x3x(H)x8x{Q}
  %p = max_pool2d(%q) {{kernel = (2, 2), stride = (2, 2)}} : (N)x3x(H//2)x4x{Q}
  %y = dequantize(%p) : (N)x3x(H//2)x4xf32
  output(y = %y, codes = %p)
}}
"""
HEAD = struct.Struct("<8sIIQQ")
Tensor = NDArray[np.generic]


def drawn(*shape: int) -> Tensor:
    return np.random.default_rng(3).normal(0, 2, shape).astype(np.float32)


def pool(folder: Path) -> tuple[Path, Compiled]:
    path = folder / "pool.qirp"
    made = CpuTarget().compile(parse(OPEN, {}), threads=1)
    made.save(path, {"N": 2, "H": 6})
    return path, made


def test_a_program_file_gives_the_bytes_of_the_model(tmp_path: Path) -> None:
    path, made = pool(tmp_path)
    x = drawn(2, 3, 6, 8)
    wanted, loaded = made(x=x), qir.load_program(path, threads=2)
    for _ in range(2):
        got = loaded(x=x)
        assert got.keys() == wanted.keys()
        for name, array in wanted.items():
            assert np.array_equal(np.asarray(got[name]), np.asarray(array))
            assert np.asarray(got[name]).dtype == np.asarray(array).dtype


ALONE = """
import sys
import numpy as np
before = set(sys.modules)
import qir
program = qir.load_program(sys.argv[1], threads=1)
program(x=np.zeros((2, 3, 6, 8), np.float32))
print(*sorted(set(sys.modules) - before))
"""


def test_a_program_loads_and_runs_without_the_compiler(tmp_path: Path) -> None:
    path, _ = pool(tmp_path)
    said = subprocess.check_output([sys.executable, "-c", ALONE, str(path)], text=True)
    found = said.split()
    assert {name for name in found if name.startswith("qir")} == {
        "qir",
        "qir._kernels",
        "qir._kernels._calls",
        "qir._kernels._checks",
        "qir._kernels._cpu",
        "qir._kernels._environment",
        "qir.arguments",
        "qir.atomic",
        "qir.backends",
        "qir.backends.cpu",
        "qir.backends.cpu.loaded_program",
        "qir.backends.cpu.program_file",
        "qir.backends.cpu.results",
        "qir.backends.cpu.target",
        "qir.errors",
        "qir.lazy_exports",
        "qir.programs",
        "qir.records",
        "qir.registry",
        "qir.target",
    }
    libraries = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
    assert {name for name in libraries if name[0] != "_"} <= {"qir", "numpy", "cython_runtime"}


WEIGHTS = """graph main {
  %x = input() : 2x3x6x6xf32
  %w = constant(@w) : 4x3x3x3xf32
  %b = constant(@b) : 4xf32
  %c = conv2d(%x, %w, bias=%b) {pad = (1, 1, 1, 1)} : 2x4x6x6xf32
  %r = relu(%c) : 2x4x6x6xf32
  %p = global_avg_pool(%r) : 2x4x1x1xf32
  %f = flatten(%p) : 2x4xf32
  %m = constant(@m) : 5x4xf32
  %y = linear(%f, %m) : 2x5xf32
  output(y=%y)
}"""


@pytest.mark.parametrize("quantized", [False, True])
def test_weights_of_layers_are_in_the_file(tmp_path: Path, quantized: bool) -> None:
    rng = np.random.default_rng(5)
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "m": (5, 4)}
    graph = parse(WEIGHTS, {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()})
    x = rng.normal(size=(2, 3, 6, 6)).astype(np.float32)
    if quantized:
        graph = qir.quantize(graph, qir.calibrate(graph, x))
    made = CpuTarget().compile(graph, threads=1)
    made.save(tmp_path / "net.qirp")
    got = qir.load_program(tmp_path / "net.qirp")(x=x)
    assert np.array_equal(np.asarray(got["y"]), np.asarray(made(x=x)["y"]))


def test_a_loaded_program_tells_its_steps_and_inputs(tmp_path: Path) -> None:
    path, made = pool(tmp_path)
    loaded = CpuTarget().compile_file(path, threads=1)
    made(x=drawn(2, 3, 6, 8))
    assert loaded.describe() == made.describe()
    assert loaded.arena == made.arena
    assert [step.kind for step in loaded.profile({"x": drawn(2, 3, 6, 8)}, runs=2)] == [
        row.kind for row in loaded.describe()
    ]
    (value,) = loaded.signature().inputs
    assert (value.name, value.type.shape) == ("x", (2, 3, 6, 8))


def test_inputs_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path, _ = pool(tmp_path)
    loaded = qir.load_program(path)
    with pytest.raises(DataError, match="input x is 1x3x6x8, the program was compiled for 2x3x6x8"):
        loaded(x=drawn(1, 3, 6, 8))
    with pytest.raises(DataError, match="input x is float64, it takes float32"):
        loaded(x=drawn(2, 3, 6, 8).astype(np.float64))
    with pytest.raises(DataError, match="input x is missing; the program takes 2x3x6x8"):
        loaded()
    with pytest.raises(DataError, match="no input 'z'; the program takes x"):
        loaded(x=drawn(2, 3, 6, 8), z=1)


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path, made = pool(tmp_path)
    with pytest.raises(UsageError, match="exists; `force=True` overwrites it"):
        made.save(path)
    with pytest.raises(UsageError, match=r"program files end in \.qirp"):
        made.save(tmp_path / "a.onnx")
    with pytest.raises(UsageError, match="no size 'Z' is open in this model; open are H, N"):
        made.save(tmp_path / "b.qirp", {"Z": 2})
    python = CpuTarget().compile(parse("""graph main {
  %x = input() : 4xf32
  %y = mod(%x, %x) : 4xf32
  output(y=%y)
}""", {}))  # fmt: skip
    with pytest.raises(Refused, match="y: it runs in Python, and program files hold compiled"):
        python.save(tmp_path / "b.qirp")
    assert [p.name for p in tmp_path.iterdir()] == ["pool.qirp"]


def test_any_changed_or_missing_byte_is_found(tmp_path: Path) -> None:
    path, _ = pool(tmp_path)
    whole = path.read_bytes()
    bad = tmp_path / "bad.qirp"
    rng = np.random.default_rng(8)
    for at in {*range(HEAD.size), *rng.integers(0, len(whole), 200).tolist()}:
        bad.write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :]
        )
        with pytest.raises(InputError, match=r"no program file|damaged|version"):
            qir.load_program(bad)
    for length in (0, 5, HEAD.size - 1, HEAD.size, 200, len(whole) - 1):
        bad.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"no program file|cut off"):
            qir.load_program(bad)


def test_files_of_another_version_or_kind_say_so(tmp_path: Path) -> None:
    path, _ = pool(tmp_path)
    magic, version, zero, length, total = HEAD.unpack(path.read_bytes()[: HEAD.size])
    rest = path.read_bytes()[HEAD.size :]
    path.write_bytes(HEAD.pack(magic, version + 1, zero, length, total) + rest)
    with pytest.raises(InputError, match=f"version {version + 1}, this QIR reads {version}"):
        qir.load_program(path)
    (tmp_path / "other.qirp").write_text("graph main { }")
    with pytest.raises(InputError, match=r"other\.qirp: no program file of QIR"):
        qir.load_program(tmp_path / "other.qirp")
    with pytest.raises(InputError, match="No such file"):
        qir.load_program(tmp_path / "none.qirp")


def forged(path: Path, change: str, to: object) -> None:
    """Writes a changed table with a right sum."""
    data = path.read_bytes()
    magic, version, zero, length, _ = HEAD.unpack(data[: HEAD.size])
    table = json.loads(data[HEAD.size : HEAD.size + length])
    place: object = table
    *keys, last = [int(k) if k.isdecimal() else k for k in change.split(".")]
    for key in keys:
        place = place[key]  # type: ignore[index]
    place[last] = to  # type: ignore[index]
    text = json.dumps(table).encode()
    rest = text + b" " * (-(HEAD.size + len(text)) % 64) + data[HEAD.size + length :]
    size = len(rest) - (len(data) - HEAD.size - length)
    path.write_bytes(HEAD.pack(magic, version, zero, size, checksum(rest)) + rest)


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("steps.0.0", "run"),
        ("steps.0.0", "__init__"),
        ("steps.0.0", "conv2d"),
        ("steps.0.1.1", 99),
        ("steps.0.2.shape", [2**40, 3, 6, 8]),
        ("steps.1.2.kernel", [0, 0]),
        ("arena", 2**47),
        ("arena", 0),
        ("places.0.1", 2**40),
        ("externals.0", ["input", "other", None]),
        ("externals.0", ["array", "", None]),
        ("inputs.0.2", [2, 3, 6]),
        ("inputs.0.1", "object"),
        ("results.0.1", "float64"),
        ("steps", None),
        ("arrays", [["float32", [4], 2**50]]),
    ],
)
def test_forged_files_are_refused_by_the_plan(tmp_path: Path, change: str, to: object) -> None:
    path, _ = pool(tmp_path)
    forged(path, change, to)
    with pytest.raises(InputError, match=r"pool\.qirp: "):
        qir.load_program(path)
