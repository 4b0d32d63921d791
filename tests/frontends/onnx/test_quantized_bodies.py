"""Integers that go in and out of branches and loops: read, run and written as onnxruntime does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from qir import pipeline
from tests.differential.runtime import run

Arrays = dict[str, NDArray[Any]]

NUMBERS: Arrays = {
    "s": np.array(0.03, np.float32),
    "z": np.array(120, np.uint8),
    "s2": np.array(0.5, np.float32),
    "z2": np.array(128, np.uint8),
    "w": np.random.default_rng(5).integers(-9, 9, (5, 5)).astype(np.int8),
    "zw": np.array(0, np.int8),
    "n": np.array(3, np.int64),
    "yes": np.array(True),
    "flat": np.array([-1], np.int64),
    "sv": np.array([0.1, 0.2, 0.3, 0.4, 0.5], np.float32),
    "zv": np.array([1, 2, 3, 4, 5], np.uint8),
    "k": np.arange(5, dtype=np.uint8)[None],
    "one": np.array(1, np.uint8),
}

IF = "(float[N,5] x, bool c) => ({out}[?,?] y)"
LOOP = "(int64 i, bool c, uint8[?,?] h) => (bool go, uint8[?,?] g{more})"
AGAIN = "go = Identity(c)"
TEXTS = {
    "branches of one map": f"""g {IF.format(out="float")} {{
        q = If(c) <
          then_branch = a () => (uint8[?,?] t) {{ t = QuantizeLinear(x, s, z) }},
          else_branch = b () => (uint8[?,?] e) {{ r = Relu(x) e = QuantizeLinear(r, s, z) }}>
        y = DequantizeLinear(q, s, z) }}""",
    "branches of two maps": f"""g {IF.format(out="float")} {{
        q = If(c) <
          then_branch = a () => (uint8[?,?] t) {{ t = QuantizeLinear(x, s, z) }},
          else_branch = b () => (uint8[?,?] e) {{ e = QuantizeLinear(x, s2, z2) }}>
        y = DequantizeLinear(q, s, z) }}""",
    "branches of two maps, read raw": f"""g {IF.format(out="int32")} {{
        q = If(c) <
          then_branch = a () => (uint8[?,?] t) {{ t = QuantizeLinear(x, s, z) }},
          else_branch = b () => (uint8[?,?] e) {{ e = QuantizeLinear(x, s2, z2) }}>
        y = Cast <to = 6> (q) }}""",
    "codes or a constant": f"""g {IF.format(out="uint8")} {{
        q = If(c) <
          then_branch = a () => (uint8[?,?] t) {{ t = QuantizeLinear(x, s, z) }},
          else_branch = b () => (uint8[?,?] e) {{ e = Identity(k) }}>
        y = QLinearMatMul(q, s, z, w, s, zw, s2, z2) }}""",
    "codes used within": f"""g {IF.format(out="float")} {{
        q = QuantizeLinear(x, s, z)
        y = If(c) <
          then_branch = a () => (float[?,?] t) {{ t = DequantizeLinear(q, s, z) }},
          else_branch = b () => (float[?,?] e) {{
            f = Transpose <perm = [0, 1]> (q) e = DequantizeLinear(f, s2, z2) }}> }}""",
    "raw codes used within": """g (uint8[N,5] x, bool c) => (float[?,?] y) {
        y = If(c) <
          then_branch = a () => (float[?,?] t) { t = DequantizeLinear(x, s, z) },
          else_branch = b () => (float[?,?] e) {
            f = Transpose <perm = [1, 0]> (x) f2 = Transpose <perm = [1, 0]> (f)
            e = DequantizeLinear(f2, s2, z2) }> }""",
    "codes or none of them": f"""g {IF.format(out="int32")} {{
        y = If(c) <
          then_branch = a () => (int32[?,?] t) {{
            u = QuantizeLinear(x, s, z) t = Cast <to = 6> (u) }},
          else_branch = b () => (int32[?,?] e) {{ e = Cast <to = 6> (k) }}> }}""",
    "carried": f"""g (float[N,5] x) => (float[?,?] y) {{
        q = QuantizeLinear(x, s, z)
        l = Loop(n, , q) <body = b {LOOP.format(more="")} {{
            {AGAIN}
            g = QLinearMatMul(h, s, z, w, s, zw, s, z) }}>
        y = DequantizeLinear(l, s, z) }}""",
    "carried as they are": f"""g (float[N,5] x) => (float[?,?] y) {{
        q = QuantizeLinear(x, s, z)
        l = Loop(n, , q) <body = b {LOOP.format(more="")} {{
            {AGAIN} g = Identity(h) }}>
        y = DequantizeLinear(l, s, z) }}""",
    "carried under another map": f"""g (float[N,5] x) => (uint8[?,?] y) {{
        q = QuantizeLinear(x, s, z)
        y = Loop(n, , q) <body = b {LOOP.format(more="")} {{
            {AGAIN}
            g = QLinearMatMul(h, s2, z2, w, s, zw, s2, z2) }}> }}""",
    "carried raw": f"""g (uint8[N,5] x) => (float[?,?] y, uint8[?,?,?] all) {{
        l, all = Loop(n, , x) <body = b {LOOP.format(more=", uint8[?,?] p")} {{
            {AGAIN}
            d = DequantizeLinear(h, s, z)
            m = Mul(d, s2)
            g = QuantizeLinear(m, s, z)
            p = QuantizeLinear(m, s2, z2) }}>
        y = DequantizeLinear(l, s, z) }}""",
    "changed as numbers": f"""g (float[N,5] x) => (float[?,?] y) {{
        q = QuantizeLinear(x, s, z)
        l = Loop(n, , q) <body = b {LOOP.format(more="")} {{
            {AGAIN} g = BitwiseXor(h, one) }}>
        y = DequantizeLinear(l, s, z) }}""",
    "parts": f"""g (float[N,5] x) => (float[?,?,?] y) {{
        q = QuantizeLinear(x, s, z)
        l, parts = Loop(n, , q) <body = b {LOOP.format(more=", uint8[?,?] p")} {{
            {AGAIN}
            g = QLinearMatMul(h, s, z, w, s, zw, s, z)
            p = Identity(g) }}>
        y = DequantizeLinear(parts, s2, z2) }}""",
    "loop in a branch": f"""g {IF.format(out="uint8")} {{
        q = QuantizeLinear(x, s, z)
        y = If(c) <
          then_branch = a () => (uint8[?,?] t) {{ t = Loop(n, , q) <
              body = b {LOOP.replace("bool c", "bool c3").format(more="")} {{
              go = Identity(c3) g = QLinearMatMul(h, s, z, w, s, zw, s, z) }}> }},
          else_branch = d () => (uint8[?,?] e) {{ e = Identity(q) }}> }}""",
    "sequence": """g (float[N,5] x) => (float[?] y, float[?,?] all) {
        q = QuantizeLinear(x, s, z)
        start = QuantizeLinear(s, s, z)
        long = Expand(start, sizes)
        l, parts = Scan <num_scan_inputs = 1, body = b (uint8[5] h, uint8[5] e)
          => (uint8[5] g, uint8[5] p) {
            u = DequantizeLinear(h, s, z) v = DequantizeLinear(e, s, z)
            m = Add(u, v) g = QuantizeLinear(m, s, z) p = QuantizeLinear(m, s2, z2) }> (long, q)
        y = DequantizeLinear(l, s, z) all = DequantizeLinear(parts, s2, z2) }""",
    "chosen while it runs": f"""g {IF.format(out="float")} {{
        q, qs, qz = DynamicQuantizeLinear(x)
        p = QuantizeLinear(x, qs, qz)
        y = If(c) <
          then_branch = a () => (float[?,?] t) {{ t = DequantizeLinear(q, qs, qz) }},
          else_branch = b () => (float[?,?] e) {{ e = DequantizeLinear(p, s, z) }}> }}""",
    "scales along an axis, or one": f"""g {IF.format(out="float")} {{
        r = If(c) <
          then_branch = a () => (uint8[?,?] t) {{ t = QuantizeLinear <axis = 1> (x, sv, zv) }},
          else_branch = b () => (uint8[?,?] e) {{ e = QuantizeLinear(x, s, z) }}>
        y = DequantizeLinear <axis = 1> (r, sv, zv) }}""",
    "raw codes read along an axis": """g (uint8[N,5] x, bool c) => (float[?,?] y) {
        y = If(c) <
          then_branch = a () => (float[?,?] t) { t = DequantizeLinear <axis = 1> (x, sv, zv) },
          else_branch = b () => (float[?,?] e) { e = DequantizeLinear(x, s, z) }> }""",
    "sequence with scales along an axis": """g (float[N,5] x) => (uint8[?,?] y) {
        q = QuantizeLinear <axis = 1> (x, sv, zv)
        y = Scan <num_scan_inputs = 1, body = b (uint8[5] e) => (uint8[5] p) {
            v = DequantizeLinear <axis = 0> (e, sv, zv) m = Add(v, s)
            p = QuantizeLinear <axis = 0> (m, sv, zv) }> (q) }""",
    "branches in a branch": f"""g {IF.format(out="float")} {{
        q = QuantizeLinear(x, s, z)
        r = If(c) <
          then_branch = a () => (uint8[?,?] t) {{ t = If(c) <
            then_branch = f () => (uint8[?,?] tt) {{ tt = Identity(q) }},
            else_branch = d () => (uint8[?,?] te) {{ te = QuantizeLinear(x, s2, z2) }}> }},
          else_branch = b () => (uint8[?,?] e) {{ e = Transpose <perm = [0, 1]> (q) }}>
        y = DequantizeLinear(r, s2, z2) }}""",
    "carried with their numbers": """g (float[N,5] x) => (float[?,?] y) {
        q, qs, qz = DynamicQuantizeLinear(x)
        l, ls, lz = Loop(n, , q, qs, qz) <body = b
          (int64 i, bool c, uint8[?,?] h, float hs, uint8 hz)
            => (bool go, uint8[?,?] g, float gs, uint8 gz) {
            go = Identity(c) d = DequantizeLinear(h, hs, hz) m = Mul(d, s2)
            g, gs, gz = DynamicQuantizeLinear(m) }>
        y = DequantizeLinear(l, ls, lz) }""",
}


def _written(folder: Path, text: str) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    held = {**NUMBERS, "sizes": np.array([5], np.int64)}
    for name, data in held.items():
        if any(mark in text for mark in (f", {name})", f"({name}", f", {name},", f"] {name})")):
            model.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _ran(path: Path, feeds: Arrays) -> list[bytes]:
    return [x.tobytes() for x in run(onnx.load(path), feeds, optimize=False).values()]


def _feeds(text: str, path: Path) -> list[Arrays]:
    rng = np.random.default_rng(11)
    names = [info.name for info in onnx.load(path).graph.input]
    raw = "(uint8[N,5] x" in text
    x = rng.integers(0, 256, (3, 5)).astype(np.uint8) if raw else None
    x = rng.normal(0, 3, (3, 5)).astype(np.float32) if x is None else x
    conditions = (True, False) if "c" in names else (True,)
    return [{"x": x, **({"c": np.array(c)} if "c" in names else {})} for c in conditions]


@pytest.mark.parametrize("name", TEXTS)
def test_codes_cross_as_onnxruntime_has_them(name: str, tmp_path: Path) -> None:
    text = TEXTS[name]
    path = _written(tmp_path, text)
    feeds = _feeds(text, path)
    wanted = [_ran(path, f) for f in feeds]
    graph = pipeline.load(path)
    assert {node.op for node in graph} & {"if", "loop", "scan"}
    assert [f for f in pipeline.verify(graph) if f.severity == "error"] == []

    def gives(ran: Any) -> None:
        assert [ran(f) for f in feeds] == wanted

    gives(lambda f: [x.tobytes() for x in pipeline.run(graph, f).values()])
    pipeline.save(graph, tmp_path / "m.qir")
    assert pipeline.load(tmp_path / "m.qir") == graph
    for form in (None, "qdq", "qoperator", "integer"):
        out = tmp_path / f"{form}.onnx"
        options: dict[str, Any] = {} if form is None else {"format": form}
        pipeline.save(graph, out, opset=21, **options)
        gives(lambda f, out=out: _ran(out, f))
        again, stated = tmp_path / f"{form}.again.onnx", pipeline.load(out)
        gives(lambda f, g=stated: [x.tobytes() for x in pipeline.run(g, f).values()])
        pipeline.save(stated, again, opset=22)
        gives(lambda f, again=again: _ran(again, f))
