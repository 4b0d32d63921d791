"""Files of every version keep loading, and say and compute what they always did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.ir.dtype import dtype
from qir.ir.file import VERSION, Bundle, read, write
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.verify import errors
from tests.ir.alike import difference

FOLDER = Path(__file__).parent / "fixtures"
Arrays = dict[str, NDArray[np.generic]]

# What the files hold, written by hand here and not read from them.
TEXT1 = """\
array @w.scale : 9xf32
graph fixture as ort-1.31 {
  %x = input() : (N)x4x3x3x!quant.uniform<u8:f32, 0.0235:128>
  %w = constant(@w) : 9x4x1x1x!quant.uniform<i8<-127:127>:f32:0, @w.scale>
  %bias = constant(@bias) : 9xi32
  %bf = constant(@bf) : 3x3xbf16
  %"odd \\"name\\"" = constant([1.5, -0.0, 0.1]) : 3xf32
  %y = conv2d(%x, %w, bias=%bias) |> relu : (N)x9x3x3x!quant.uniform<u8:f32, 0.5>
  %z = dequantize(%y) : (N)x9x3x3xf32 as native plan {x = "u8 affine tensor minmax"}
  output(z=%z, bf=%bf, o=%"odd \\"name\\"")
}
"""
ARRAYS1: Arrays = {
    "w.scale": (np.arange(9) + 1).astype(np.float32) / 8,
    "w": (np.arange(36) - 18).astype(np.int8).reshape(9, 4, 1, 1),
    "bias": np.arange(9, dtype=np.int32) * 1000,
    "bf": (np.arange(9) - 4).reshape(3, 3).astype(dtype("bf16").carrier),
}

# Since version 2: bodies, inner slots, companions, texts that are texts.
TEXT2 = """\
array @tokens.scales : 2x2x!quant.uniform<f8e4m3fn:f32, 0.125>
graph fixture as ort-1.31 {
  %n = input() : i64
  %x = input() : 2x8xf32
  %tokens = constant(@tokens) : 2x8x!quant.uniform<f4e2m1fn:f32:{0:1, 1:4}, @tokens.scales>
  %e = constant(@e) : 2x8xf8e5m2
  %words = constant(@words) : 3xstring
  %t = dequantize(%tokens) : 2x8xf32
  %y, %all = loop(count=%n, vs.0=%x, xs.0=%t) : 2x8xf32, ?x2x8xf32 with body as native {
    %i = input() : i64
    %go = input() : bool
    %h = input() : 2x8xf32
    %t = input() : 2x8xf32
    %s = add(%h, %t) : 2x8xf32
    %f = fake_quantize(%s) inner {code : !quant.uniform<i8<-127:127>:f32, 0.5>} : 2x8xf32
    output(go=%go, h=%f, part=%h)
  }
  %scale, %zero = choose_qparams(%y) {rule = "onnx.dynamic", storage = u8} : f32, u8
  %q = quantize(%y, scale=%scale, zero=%zero) : 2x8x!quant.uniform<u8:f32, ?:?>
  %d = dequantize(%q, x.scale=%scale, x.zero=%zero) : 2x8xf32 from onnx {name = "d"}
  output(y=%y, all=%all, d=%d, e=%e, words=%words)
}
"""
FOURS = [[-6, -4, -3, -2, -1.5, -1, -0.5, 0], [0.5, 1, 1.5, 2, 3, 4, 6, 0]]
BLOCKS = [[1, 2], [4, 8]]
ARRAYS2: Arrays = {
    "tokens.scales": np.array(BLOCKS, np.float32).astype(dtype("f8e4m3fn").carrier),
    "tokens": np.array(FOURS, np.float32).astype(dtype("f4e2m1fn").carrier),
    "e": (np.arange(16) - 8).reshape(2, 8).astype(np.float32).astype(dtype("f8e5m2").carrier),
    "words": np.array(["one", "zwei é", b"\xff\x00"], object),
}


def runs1(graph: Graph) -> None:
    """The real result lies no further off than half a step of its type."""
    x = np.random.default_rng(1).integers(0, 256, (2, 4, 3, 3)).astype(np.uint8)
    made = pipeline.run(graph, {"x": x})
    sums = np.einsum(
        "nchw,oc->nohw", x.astype(np.int64) - 128, np.asarray(ARRAYS1["w"], np.int64)[..., 0, 0]
    )
    sums = sums + np.asarray(ARRAYS1["bias"], np.int64).reshape(-1, 1, 1)
    scales = 0.0235 * np.asarray(ARRAYS1["w.scale"], np.float64).reshape(-1, 1, 1)
    real = np.clip(sums * scales, 0, 127.5)
    assert np.abs(np.asarray(made["z"], np.float64) - real).max() <= 0.25 + 1e-4
    assert made["bf"].tobytes() == ARRAYS1["bf"].tobytes()


def runs2(graph: Graph) -> None:
    made = pipeline.run(graph, {"n": np.array(2), "x": np.zeros((2, 8), np.float32)})
    t = np.array(FOURS) * np.repeat(np.array(BLOCKS) * 0.125, 4, axis=1)
    rounds = [np.zeros((2, 8))]
    for _ in range(2):
        rounds.append(np.rint((rounds[-1] + t) / 0.5) * 0.5)
    assert np.array_equal(made["y"], rounds[2])
    assert np.array_equal(made["all"], rounds[:2])
    step = (rounds[2].max() - rounds[2].min()) / 255
    assert np.abs(np.asarray(made["d"], np.float64) - rounds[2]).max() <= step / 2 + 1e-6
    assert made["words"].tolist() == ["one", "zwei é", b"\xff\x00"]


FILES: dict[int, tuple[str, Arrays, Callable[[Graph], None]]] = {
    1: (TEXT1, ARRAYS1, runs1),
    2: (TEXT2, ARRAYS2, runs2),
}


def bundle(version: int) -> Bundle:
    text, arrays, _ = FILES[version]
    ledger = '{"version": 1, "entries": []}'
    return Bundle(parse(text, arrays), {"ort-1.31": 'name = "ort-1.31"\n'}, ledger)


def test_every_version_has_a_file() -> None:
    assert list(FILES) == list(range(1, VERSION + 1))
    assert {path.name for path in FOLDER.iterdir()} == {f"version{v}.qir" for v in FILES}


@pytest.mark.parametrize("version", FILES)
def test_a_file_keeps_loading_and_running(version: int) -> None:
    path = FOLDER / f"version{version}.qir"
    assert f'"version":"{version}"'.encode() in path.read_bytes()
    found, wanted = read(path), bundle(version)
    assert difference(found.graph, wanted.graph, history=True) == ""
    assert found.graph == wanted.graph
    assert found.profiles == wanted.profiles
    assert found.ledger == wanted.ledger
    assert errors(found.graph) == []
    FILES[version][2](found.graph)


@pytest.mark.parametrize("version", FILES)
def test_what_an_old_file_holds_is_written_as_a_new_one(tmp_path: Path, version: int) -> None:
    path = tmp_path / "new.qir"
    write(path, read(FOLDER / f"version{version}.qir"))
    assert f'"version":"{VERSION}"'.encode() in path.read_bytes()
    assert read(path).graph == bundle(version).graph


def test_the_newest_file_is_what_is_written_now(tmp_path: Path) -> None:
    write(tmp_path / "new.qir", bundle(VERSION))
    newest = FOLDER / f"version{VERSION}.qir"
    assert (tmp_path / "new.qir").read_bytes() == newest.read_bytes()
