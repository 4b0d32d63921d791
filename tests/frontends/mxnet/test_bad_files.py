"""What the command line says of damaged files: one line that names file and entry, at once."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qir.frontends.mxnet.parameters import V2
from qir.frontends.mxnet.samples import write
from tests.cli.command import qir as command

HUGE = 1 << 60
Change = Callable[[dict[str, Any]], object]
_WEIGHTS = struct.pack("<Iii4q", V2, 0, 4, 8, 3, 3, 3)


def _node(index: int, **attrs: str) -> Change:
    return lambda held: held["nodes"][index].setdefault("attrs", {}).update(attrs)


def _other(**held: object) -> Change:
    def change(symbol: dict[str, Any]) -> None:
        symbol.clear()
        symbol.update(held)

    return change


SYMBOLS: dict[str, tuple[Change, str]] = {
    "other JSON": (_other(weights=[1, 2]), "is no MXNet symbol: it has no list of nodes"),
    "nodes that are no list": (_other(nodes={}), "is no MXNet symbol: it has no list of nodes"),
    "a cycle": (
        lambda held: held["nodes"][2]["inputs"].__setitem__(0, [2, 0, 0]),
        "node 2 (conv0): reads node 2, which does not come before it: the graph has a cycle",
    ),
    "two inputs of one name": (
        lambda held: held["nodes"][1].update(name="data"),
        "node 1: a second variable named data",
    ),
    "a missing parameter": (
        lambda held: held["nodes"][1].update(name="none_weight"),
        "parameter none_weight of node conv0 (Convolution) is missing in network-0000.params",
    ),
    "a count": (_node(2, num_filter=f"{HUGE >> 4}"), "conv0 (Convolution) cannot be read: num_f"),
    "units": (_node(-1, num_hidden="5"), "num_hidden is 5, its weights have 4 channels"),
    "a kernel": (_node(2, kernel=f"({HUGE}, 3)"), "it must be an integer of at most 18 digits"),
    "a shape": (_node(0, __shape__=f"({HUGE >> 4}, 3, 8, 8)"), "variable data has the shape"),
}
STORES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "wrong magic": (lambda held: b"PK" + held[2:], "header: its first 8 bytes are no 0x112"),
    "nothing": (lambda held: b"", "header: its first 8 bytes are no 0x112"),
    "half of it": (lambda held: held[: len(held) // 2], "array 0: its shape (8, 3, 3, 3) needs"),
    "a count": (
        lambda held: held[:16] + struct.pack("<Q", HUGE) + held[24:],
        f"header: {HUGE} arrays do not fit into the file",
    ),
    "a shape": (
        lambda held: held.replace(_WEIGHTS, struct.pack("<Iii4q", V2, 0, 4, HUGE, 3, 3, 3)),
        f"array 0: its shape is ({HUGE}, 3, 3, 3)",
    ),
    "two of one name": (
        lambda held: held.replace(b"aux:bn0_moving_mean", b"arg:bn0_moving_mean").replace(
            struct.pack("<Q", 12) + b"arg:bn0_beta",
            struct.pack("<Q", 19) + b"arg:bn0_moving_mean",
        ),
        "name 2: a second array is named bn0_moving_mean",
    ),
}
TEXTS = {
    "not text": (b"\xff\xfe\x00", "is no MXNet symbol: it is no text"),
    "half of it": (b'{"nodes": [', "is no MXNet symbol: it is no JSON at line 1, column 12"),
    "brackets": (b"[" * 1_000_000, "is no MXNet symbol: its JSON is nested too deeply"),
    "digits": (b"[" + b"9" * 5000 + b"]", "a number has thousands of digits"),
    "one name twice": (b'{"nodes": [], "nodes": []}', "an object has 'nodes' twice"),
}


def _told(verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the one line that a verb says of the network in a folder."""
    monkeypatch.chdir(folder)
    more = ("-o", "made.onnx") if verb == "convert" else ()
    tracemalloc.start()
    start = time.process_time()
    told = command(verb, "network-symbol.json", *more)
    took = time.process_time() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 2
    assert peak < 100 << 20
    assert told.status == 2
    assert not told.out
    assert told.err.count("\n") == 1
    assert not Path("made.onnx").exists()
    return told.err


@pytest.mark.parametrize("verb", ["show", "convert"])
@pytest.mark.parametrize("name", SYMBOLS)
def test_a_damaged_symbol(
    name: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = SYMBOLS[name]
    path = Path(write(tmp_path)[0])
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))
    told = _told(verb, tmp_path, monkeypatch)
    assert told.startswith("qir: network-symbol.json: ")
    assert said in told


@pytest.mark.parametrize("verb", ["show", "convert"])
@pytest.mark.parametrize("name", STORES)
def test_damaged_parameters(
    name: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = STORES[name]
    write(tmp_path)
    path = tmp_path / "network-0000.params"
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    told = _told(verb, tmp_path, monkeypatch)
    assert told.startswith("qir: network-0000.params: ")
    assert said in told


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_is_no_symbol(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, said = TEXTS[name]
    Path(write(tmp_path)[0]).write_bytes(text)
    assert said in _told("show", tmp_path, monkeypatch)
