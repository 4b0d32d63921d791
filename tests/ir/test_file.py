"""A `.qir` file arrives whole or not at all, reads back equal, and never breaks the reader."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from qir.errors import InputError
from qir.ir.dtype import dtype
from qir.ir.file import VERSION, Bundle, digest, read, write
from qir.ir.graph import Graph
from qir.ir.text import parse, parse_type, print_graph
from qir.ir.types import Array, TensorType
from qir.testing import DTYPES, FORMS, NAMES, odd_array, random_graph
from tests.ir.alike import difference

FIXTURE = Path(__file__).parent / "fixtures" / "version1.qir"


def small() -> Graph:
    graph = Graph("small")
    x = graph.add("input", types=[parse_type("2x9xf32")], name="x").result
    c = graph.constant(Array.of(np.arange(9, dtype=np.float32), "c"))
    graph.add("output", {"y": graph.add("add", {"a": x, "b": c}).result})
    return graph


@pytest.mark.parametrize("seed", range(24))
def test_a_file_reads_back_to_the_same_graph(tmp_path: Path, seed: int) -> None:
    graph = random_graph(seed, FORMS[seed % 3], decorated=seed % 2 > 0)
    bundle = Bundle(graph, {"native": "text é\n", "b": ""}, '{"ledger": 1}')
    write(tmp_path / "g.qir", bundle)
    back = read(tmp_path / "g.qir")
    assert difference(graph, back.graph, history=True) == "", f"seed {seed}"
    assert (back.profiles, back.ledger) == (bundle.profiles, bundle.ledger)
    write(tmp_path / "again.qir", back)
    assert (tmp_path / "again.qir").read_bytes() == (tmp_path / "g.qir").read_bytes()


@pytest.mark.parametrize("name", DTYPES)
def test_arrays_of_every_type_keep_their_bits(tmp_path: Path, name: str) -> None:
    kind = dtype(name)
    graph = Graph()
    rng = random.Random(7)
    for shape in ((0,), (), (3,), (2, 0, 3), (4, 5)):
        data = odd_array(rng.randrange, kind, shape)
        graph.constant(Array(data, TensorType(shape, kind), "a"), name="c")
    write(tmp_path / "g.qir", Bundle(graph))
    assert difference(graph, read(tmp_path / "g.qir").graph) == ""


def test_arrays_may_have_any_name(tmp_path: Path) -> None:
    graph = Graph()
    for i, name in enumerate(NAMES):
        graph.constant(Array.of(np.arange(9, dtype=np.int16) + i, name), name=name)
    write(tmp_path / "g.qir", Bundle(graph))
    assert difference(graph, read(tmp_path / "g.qir").graph) == ""


def test_arrays_are_mapped_and_not_read(tmp_path: Path) -> None:
    graph = Graph()
    graph.constant(Array.of(np.arange(1 << 16, dtype=np.float32)), name="c")
    write(tmp_path / "g.qir", Bundle(graph))
    constant = read(tmp_path / "g.qir").graph["c"].constant
    assert constant is not None
    base: object = constant.data
    while isinstance(base, np.ndarray):
        assert not base.flags.owndata
        base = base.base
    assert isinstance(base, memoryview)
    assert type(base.obj).__name__ == "mmap"
    assert not constant.data.flags.writeable


def test_safetensors_reads_a_file_and_every_array_lies_aligned(tmp_path: Path) -> None:
    graph = Graph()
    for name, data in (
        ("f64", np.arange(9.0)),
        ("u8", np.arange(11, dtype=np.uint8)),
        ("i16", np.arange(13, dtype=np.int16)),
    ):
        graph.constant(Array.of(data), name=name)
    write(tmp_path / "g.qir", Bundle(graph))
    found = safetensors.numpy.load_file(tmp_path / "g.qir")
    for name in ("f64", "u8", "i16"):
        constant = graph[name].constant
        assert constant is not None
        assert np.array_equal(found[name], constant.data)
        read_back = read(tmp_path / "g.qir").graph[name].constant
        assert read_back is not None
        assert read_back.data.ctypes.data % constant.data.dtype.itemsize == 0


# -- bad files --------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert "\n" not in said
    assert len(said.removeprefix(str(path))) < 240
    return said


def test_damage_is_told_or_harmless(tmp_path: Path) -> None:
    seed = 11
    rng = random.Random(seed)
    graph = random_graph(3, "qdq", decorated=True)
    path = tmp_path / "g.qir"
    write(path, Bundle(graph, {"native": "x"}))
    whole = path.read_bytes()
    told = 0
    for case in range(300):
        data = bytearray(whole)
        match case % 4:
            case 0:
                data = data[: rng.randrange(len(data))]
            case 1:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 2:
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(9))
            case _:  # the head, where sizes and places stand
                data[rng.randrange(min(len(data), 600))] = rng.randrange(256)
        path.write_bytes(bytes(data))
        try:
            back, said = read(path).graph, ""
        except InputError as error:
            back, said = graph, str(error)
        if said:
            assert said.startswith(str(path)), f"seed {seed}, case {case}"
            assert "\n" not in said, f"seed {seed}, case {case}"
            told += 1
        assert difference(graph, back) == "", f"seed {seed}, case {case}"
    assert told > 200


def test_every_flipped_bit_of_a_small_file_is_told_or_harmless(tmp_path: Path) -> None:
    graph = small()
    path = tmp_path / "g.qir"
    write(path, Bundle(graph))
    whole = path.read_bytes()
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        path.write_bytes(bytes(data))
        try:
            back = read(path).graph
        except InputError:
            continue
        assert difference(graph, back) == "", f"byte {at}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are no .qir file"),
        (b"PK\x03\x04" + b"\0" * 60, "no .qir file, or cut off"),
        (b"\x02" + b"\0" * 7 + b"[]", "its header is no table"),
        (b"\x02" + b"\0" * 7 + b"{}", "no .qir file"),
        (b"\x08" + b"\0" * 7 + b"[" * 8, "damaged"),
        (b"\xff" * 80, "no .qir file, or cut off"),
        (b"\x02" + b"\0" * 7 + b"\xff\xfe", "damaged"),
    ],
)
def test_what_is_no_qir_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.qir"
    path.write_bytes(data)
    assert message in refusal(path)


def test_nested_json_of_any_depth_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.qir"
    body = b"[" * 200_000
    path.write_bytes(len(body).to_bytes(8, "little") + body)
    assert "damaged" in refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.qir")
    assert "directory" in refusal(tmp_path)


def _with_meta(path: Path, **changes: object) -> None:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"].update(changes)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


@pytest.mark.parametrize("version", [str(VERSION + 1), "99", "one", "", "-1", "²", None, "1.5"])
def test_a_version_that_is_not_known_is_refused(tmp_path: Path, version: str | None) -> None:
    path = tmp_path / "g.qir"
    write(path, Bundle(small()))
    _with_meta(path, version=version)
    said = refusal(path)
    assert "version" in said or "damaged" in said
    if version == "99":
        assert said == f"{path}: version 99, this QIR reads up to {VERSION}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": 5}, "its metadata are no texts"),
        ({"profiles": "[1, 2]"}, "its table of profiles is no table"),
        ({"profiles": '{"a": 1}'}, "its profiles are no texts"),
        ({"profiles": "{"}, "damaged: its table of profiles cannot be read"),
        ({"text": "graph main as native {"}, "line 1, column 23: "),
        ({"text": "graph main as native {}", "ledger": None}, "its metadata are no texts"),
    ],
)
def test_a_file_with_a_right_hash_and_wrong_contents_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = tmp_path / "g.qir"
    write(path, Bundle(Graph()))
    text = print_graph(Graph(), origins=True)
    meta: dict[str, str] = {"version": str(VERSION), "text": text, "profiles": "{}", "ledger": ""}
    meta |= {key: str(value) for key, value in changes.items()}
    _with_meta(path, **{**changes, "hash": digest(meta, {}, lambda name: iter(()))})
    assert message in refusal(path)


def test_changed_text_or_elements_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "g.qir"
    write(path, Bundle(small(), {"native": "a"}, "b"))
    whole = path.read_bytes()
    for change in ({"text": print_graph(small()).replace("add", "sub")}, {"profiles": "{}"}):
        path.write_bytes(whole)
        _with_meta(path, **change)
        assert "damaged: its hash does not match its contents" in refusal(path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "damaged: its hash does not match its contents" in refusal(path)


# -- writing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["replace", "fsync", "chmod"])
def test_a_full_disk_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "g.qir"
    path.write_bytes(b"before")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(InputError, match=r"cannot write .*g\.qir: No space left on device"):
        write(path, Bundle(small()))
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["g.qir"]


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limits on the size of files here")
def test_a_file_that_outgrows_its_room_leaves_nothing(tmp_path: Path) -> None:
    script = f"""
import resource, signal
import numpy as np
from pathlib import Path
from qir.errors import InputError
from qir.ir.types import Array
from qir.ir.file import Bundle, write
from qir.ir.graph import Graph
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
graph = Graph()
graph.constant(Array.of(np.zeros(1 << 16)), name="c")
try:
    write(Path({str(tmp_path / "g.qir")!r}), Bundle(graph))
except InputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"cannot write {tmp_path / 'g.qir'}: ")
    assert done.stdout.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write(tmp_path / "none" / "g.qir", Bundle(small()))


def test_a_file_that_is_mapped_may_be_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "g.qir"
    write(path, Bundle(small()))
    first = read(path).graph
    write(path, Bundle(random_graph(2)))
    assert difference(first, small()) == ""
    write(path, Bundle(first))  # from the very file it replaces
    assert difference(read(path).graph, small()) == ""
    assert stat.S_IMODE(path.stat().st_mode) & 0o111 == 0


# -- the version that is out in the world -----------------------------------------------------

# The text of the fixture, written by hand here and not read from it.
FIXTURE_TEXT = """\
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


def fixture_graph() -> Graph:
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
        "w.scale": (np.arange(9) + 1).astype(np.float32) / 8,
        "w": (np.arange(36) - 18).astype(np.int8).reshape(9, 4, 1, 1),
        "bias": np.arange(9, dtype=np.int32) * 1000,
        "bf": (np.arange(9) - 4).reshape(3, 3).astype(dtype("bf16").carrier),
    }
    return parse(FIXTURE_TEXT, arrays)


def test_a_file_of_version_1_keeps_loading() -> None:
    found = read(FIXTURE)
    assert difference(found.graph, fixture_graph()) == ""
    assert found.profiles == {"ort-1.31": 'name = "ort-1.31"\n'}
    assert found.ledger == '{"version": 1, "entries": []}'
