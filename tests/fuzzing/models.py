"""Cases of models, profiles and programs."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path

import onnx

from qir import pipeline, profiles
from qir.ir import dims
from qir.ir.graph import Graph
from qir.profiles import profile, profile_names
from qir.testing import sample_inputs
from tests.differential.comparison import kernel_differences, read, reference_differences
from tests.differential.models import STYLES, Taste, make
from tests.differential.runtime import run
from tests.fuzzing import corpus
from tests.fuzzing.breaking import break_bytes, break_model, break_text
from tests.fuzzing.judging import LONGEST, Broken, Try, refused
from tests.fuzzing.messages import break_messages, within
from tests.fuzzing.texts import sound
from tests.installed import UNOPTIMIZED


def onnx_case(attempt: Try) -> None:
    """A broken ONNX model is refused in one line, or is a graph; so is what is made of that."""
    rng = attempt.rng
    model = corpus.drawn(rng)
    match rng.randrange(5):
        case 0 | 1:
            break_messages(rng, model, rng.choice((1, 1, 2, 3, 6)))
        case 2 | 3 if model.graph.node and model.graph.input:
            for _ in range(rng.choice((1, 1, 2, 3))):
                break_model(rng, model)
        case _:
            _judged(attempt, break_bytes(rng, model.SerializeToString()))
            return
    _judged(attempt, model.SerializeToString())


def beside_case(attempt: Try) -> None:
    """Tensors whose data are said to lie anywhere are read from their folder, or refused."""
    rng = attempt.rng
    inner = attempt.folder / "inner"
    inner.mkdir(exist_ok=True)
    for name, size in (("d.bin", 64), ("a/e.bin", 4096), ("../outside.bin", 64)):
        (inner / name).parent.mkdir(exist_ok=True)
        if not (inner / name).exists():
            (inner / name).write_bytes(bytes(size))
    for name, to in (("link.bin", "../outside.bin"), ("up", ".."), ("self.bin", "self.bin")):
        if not (inner / name).is_symlink():
            (inner / name).symlink_to(to)
    model = corpus.drawn(rng)
    tensors = [t for t in all_tensors(model) if t.data_type != onnx.TensorProto.STRING]
    for tensor in rng.sample(tensors, min(len(tensors), rng.randrange(1, 4))):
        size = len(tensor.raw_data) or 4
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        places = (0, 1, 4, size, -1, 2**31, 2**62, "", "x", "1e3", "9" * 50)
        for key, value in (
            ("location", rng.choice(_PLACES)),
            ("offset", rng.choice(places)),
            ("length", rng.choice((size, size, *places))),
            ("checksum", "0"),
        ):
            if rng.random() < 0.9:
                tensor.external_data.add(key=key, value=str(value))
    if rng.random() < 0.3:
        break_messages(rng, model, 1)
    _judged(attempt, model.SerializeToString(), inner)


_PLACES = (
    *("d.bin", "d.bin", "d.bin", "a/e.bin", "a/../d.bin", "./d.bin", "a//e.bin", "D.BIN", "a"),
    *("../outside.bin", "/etc/passwd", "link.bin", "up/outside.bin", "self.bin", "", ".", ".."),
    *("file:///etc/passwd", "https://example.com/d.bin", "d.bin\0", "\\etc", "C:\\d.bin", "~/d"),
    *("$HOME/d.bin", "a\\..\\..\\outside.bin", "é" * 300, "d.bin\n", "case.onnx", "missing.bin"),
)


def large_case(attempt: Try) -> None:
    """A large file, whose tensors are read where they lie, broken: a graph or one line."""
    rng = attempt.rng
    data = _large(rng.randrange(4))
    out = bytearray(data)
    heads = [m.start() for m in re.finditer(rb"large", data)] or [0]
    for _ in range(rng.choice((1, 1, 2, 4))):
        head = rng.choice((0, *heads, *heads, len(data) - 60))
        at = min(max(0, head + rng.randrange(-12, 24)), len(out) - 1)
        match rng.randrange(4):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.randrange(256)
            case 2:
                del out[at : at + rng.choice((1, 2, 9, 5000))]
            case _:
                out[at:at] = rng.randbytes(rng.choice((1, 2, 9)))
    if rng.random() < 0.1:
        del out[rng.randrange(len(out)) :]
    _judged(attempt, bytes(out))


@lru_cache(4)
def _large(kind: int) -> bytes:
    """One tensor of over 1 MiB and two small: one by one or joined, of whole bytes or few bits."""
    wanted = (onnx.TensorProto.FLOAT, onnx.TensorProto.UINT4, onnx.TensorProto.INT8)[kind % 3]
    size = {onnx.TensorProto.FLOAT: 4.0, onnx.TensorProto.UINT4: 0.5}.get(wanted, 1.0)
    node = onnx.helper.make_node
    graph = onnx.GraphProto(name="g")
    for i, thousands in enumerate((1_200, 40, 20)):
        sizes = [int(thousands / size), 1000]
        tensor = onnx.TensorProto(name=f"large{i}", data_type=wanted, dims=sizes)
        tensor.raw_data = bytes(thousands * 1000)
        graph.initializer.append(tensor)
        graph.node.append(node("Shape", [tensor.name], [f"y{i}"]))
        graph.output.append(onnx.helper.make_tensor_value_info(f"y{i}", 7, [2]))
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    made.ir_version = 10
    if kind == 3:
        rest = onnx.ModelProto()
        rest.graph.initializer.append(graph.initializer[0])
        del made.graph.initializer[0]
        return bytes(rest.SerializeToString() + made.SerializeToString())
    return bytes(made.SerializeToString())


def all_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The tensors of a model, in attributes and graphs within it too."""
    return [m for m in within(model) if isinstance(m, onnx.TensorProto)]


_FORMATS = (None, None, "qdq", "qoperator", "integer", "nbits")


def _judged(attempt: Try, data: bytes, folder: Path | None = None) -> None:
    """What a file gives is a graph or one line; so is what becomes of the graph."""
    rng = attempt.rng
    path = (folder or attempt.folder) / "case.onnx"
    path.write_bytes(data)
    most = LONGEST + len(str(path))
    graph = refused(lambda: pipeline.load(path), most)
    if graph is None:
        return
    if not sound(graph):
        raise Broken("what was read is no program")
    made = attempt.folder / "made.onnx"
    made.unlink(missing_ok=True)
    target = rng.choice(("onnxruntime", "onnx"))
    form = rng.choice(_FORMATS)
    refused(lambda: pipeline.save(graph, made, target=target, format=form, lossy=True), 2 * most)
    if made.exists():
        pipeline.load(made)
    if rng.random() < 0.3 and _quick(graph):
        seed = rng.randrange(2**32)
        refused(lambda: pipeline.run(graph, sample_inputs(graph, seed)), 2 * most)


def _quick(graph: Graph) -> bool:
    """Whether all it holds is small, and nothing in it is repeated."""
    for _, each in graph.walk():
        for node in each:
            if node.op in ("loop", "scan", "foreign", "sequence"):
                return False
            sizes = [dims.known_shape(v.type.shape) for v in node.results]
            if any(s is None or math.prod(max(1, n) for n in s) > 20_000 for s in sizes):
                return False
    return True


def profile_case(attempt: Try) -> None:
    """A broken profile is refused in one line, or is a profile."""
    rng = attempt.rng
    name = rng.choice(profile_names())
    broken = break_text(rng, profile(name).text)
    read_profile = refused(lambda: profiles.parse(broken, name, profile))
    if read_profile is None:
        return
    if (
        profiles.parse(profiles.dumps(read_profile), name, profile).defaults
        != read_profile.defaults
    ):
        raise Broken("a profile that was read does not print as what it is")


def program_case(attempt: Try) -> None:
    """A random integer network gives the same bytes in onnxruntime, reference and kernels."""
    rng = attempt.rng
    seed = rng.randrange(2**32)
    taste = Taste(rng.choice(("u8", "i8")), rng.choice(STYLES), layers=rng.randrange(1, 9))
    model = make(seed, taste, exposed=True)
    expected = run(model.proto, model.feeds, optimize=False)
    graph, where = read(model.proto), f"{taste}, seed {seed}"
    differences = reference_differences(where, graph, model.feeds, expected, UNOPTIMIZED)
    differences += kernel_differences(
        where, graph, model.feeds, expected, threads=rng.randrange(1, 4)
    )
    if differences:
        raise Broken("\n".join(map(str, differences)))
