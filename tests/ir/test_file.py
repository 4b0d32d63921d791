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
from qir.ir.file import VERSION, Bundle, digest, header, layout, read, write
from qir.ir.graph import Graph
from qir.ir.text import parse, parse_type, print_graph
from qir.ir.types import Array, TensorType
from qir.profiles import profile_text
from qir.testing import DTYPES, FORMS, NAMES, odd_array, random_graph
from tests.ir.alike import difference


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


# -- large files ------------------------------------------------------------------------------


def test_places_beyond_four_gigabytes_are_written_and_read(tmp_path: Path) -> None:
    """A file of holes: the system keeps nothing of it but what is written."""
    size = 5 << 30
    meta = {"format": "qir", "version": str(VERSION), "profiles": "{}", "ledger": ""}
    meta["text"] = f"""graph g {{
      %big = constant(@big) : {size}xu8
      %last = constant(@last) : 4xi8
      output(big=%big, last=%last)
    }}"""
    kinds = {"big": (np.dtype("u1"), (size,)), "last": (np.dtype("i1"), (4,))}
    places = layout(kinds)
    assert (places["last"].start, places["last"].end) == (size, size + 4)
    path = tmp_path / "big.qir"
    head = header(meta | {"hash": ""}, places)
    with path.open("wb") as out:
        out.write(head)
        out.seek(len(head) + size)
        out.write(np.array([1, -2, 3, -4], np.int8).tobytes())
    assert path.stat().st_size == len(head) + size + 4
    graph = read(path, check=False).graph
    last, big = graph["last"].constant, graph["big"].constant
    assert last is not None
    assert big is not None
    assert last.data.tolist() == [1, -2, 3, -4]
    assert big.data.shape == (size,)
    assert big.data[3 << 30] == 0
    os.truncate(path, len(head) + size)
    assert "array 'last' is outside the file" in refusal(path)


MEASURE = """
import sys
from pathlib import Path
from qir.ir.file import read
def resident():
    row = next(r for r in open("/proc/self/status") if r.startswith("VmRSS"))
    return int(row.split()[1]) * 1024
read(Path(sys.argv[1]))
before = resident()
graph = read(Path(sys.argv[2])).graph
print(resident() - before, graph["c"].constant.data[-1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for its memory")
def test_a_large_array_is_hashed_and_mapped_and_not_held(tmp_path: Path) -> None:
    graph = Graph()
    graph.constant(Array.of(np.arange(200 << 18, dtype=np.int32)), name="c")
    write(tmp_path / "large.qir", Bundle(graph))
    write(tmp_path / "small.qir", Bundle(small()))
    assert (tmp_path / "large.qir").stat().st_size > 200 << 20
    paths = [str(tmp_path / name) for name in ("small.qir", "large.qir")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True, check=True
    )
    grown, last = done.stdout.split()
    assert int(last) == (200 << 18) - 1
    assert int(grown) < 16 << 20
    with (tmp_path / "large.qir").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    assert "its hash does not match" in refusal(tmp_path / "large.qir")
    assert read(tmp_path / "large.qir", check=False).graph["c"].type == graph["c"].type


# -- profiles -----------------------------------------------------------------------------------

ELSEWHERE = """
import sys
import numpy as np
from qir import pipeline
from qir.profiles import profile_names
assert "elsewhere-7" not in profile_names()
graph = pipeline.load(sys.argv[1])
ties = np.array([0.5, 1.5, 2.5, 3.5, -0.5], np.float32)
print(pipeline.run(graph, {"x": ties})["y"].tolist())
print(pipeline.run(graph, {"x": ties}, profile="native")["y"].tolist())
"""


def test_a_profile_that_is_not_installed_comes_from_the_file(tmp_path: Path) -> None:
    """Ties are rounded as the file's own profile says, in the graph and in a body of it."""
    text = profile_text("native")
    text = text.replace('name = "native"', 'name = "elsewhere-7"')
    text = text.replace('zero = "after"\nround = "even"', 'zero = "after"\nround = "away"', 1)
    graph = parse("""graph g as elsewhere-7 {
      %x = input() : 5xf32
      %q = fused(x=%x) : 5x!quant.uniform<i8:f32, 1.0> with body as elsewhere-7 {
        %x = input() : 5xf32
        %q = quantize(%x) : 5x!quant.uniform<i8:f32, 1.0>
        output(q=%q)
      }
      %y = dequantize(%q) : 5xf32
      output(y=%y)
    }""")
    path = tmp_path / "g.qir"
    write(path, Bundle(graph, {"elsewhere-7": text}))
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(path)], capture_output=True, text=True, check=True
    )
    own, native = map(json.loads, done.stdout.splitlines())
    assert own == [1, 2, 3, 4, -1]
    assert native == [0, 2, 2, 4, 0]


def test_what_the_hash_does_not_cover_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.qir"
    write(path, Bundle(random_graph(3)))
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    with pytest.raises(InputError, match="1 bytes stand after"):
        read(path)
    length = int.from_bytes(data[:8], "little")
    head = data[8 : 8 + length].rstrip().replace(b'"format":', b'"more":"x","format":', 1)
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + length :])
    with pytest.raises(InputError, match="has 'more', which QIR does not write"):
        read(path)
