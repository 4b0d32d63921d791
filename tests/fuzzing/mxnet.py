"""Cases of MXNet's files: broken symbols and parameters of small networks."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from qir import pipeline
from qir.frontends.mxnet import MxnetFrontend
from qir.frontends.mxnet.samples import parameter_bytes
from qir.ledger import Ledger
from tests.frontends.mxnet.recorded_cases import cases
from tests.fuzzing.breaking import break_bytes, break_json, break_text
from tests.fuzzing.judging import LONGEST, Broken, Try, refused
from tests.fuzzing.texts import sound

ODD: tuple[object, ...] = (
    *(0, 1, -1, 2, 7, 2**31, 2**60, 2**63, -(2**63), 0.5, 1e308, True, None, "", [], {}, [[0, 0]]),
    *("null", "Convolution", "FullyConnected", "Pooling", "Reshape", "RNN", "Foo", "_zeros"),
    "tile",
    *("_sg_mkldnn_conv", "_contrib_quantize_v2", "_contrib_quantized_concat", "SliceChannel"),
    *("True", "False", "None", "(1,)", "(0, 0)", "(2, 3, 4, 5, 6)", "(-1, -2, -3, -4)", "nan"),
    *("1152921504606846976", "(999999999999, 999999999999)", "1e30", "-inf", "int8", "float16"),
    *("int32", "avg", "full", "lstm", "gelu", "max", "data", "-4", "a\nb", "x" * 60),
)
FAMILIES = ("layers", "moves", "points", "quantized", "uncalibrated")


@dataclass(frozen=True)
class Files:
    """The two files of a network, and example inputs."""

    symbol: str
    store: bytes
    inputs: tuple[object, ...]


@lru_cache(1)
def intact_files() -> list[Files]:
    """Returns right files, of every operator that is recorded."""
    found = [
        Files(case.symbol, parameter_bytes(case.parameters), tuple(case.given()))
        for family in FAMILIES
        for case in cases(family)
    ]
    with TemporaryDirectory() as folder:
        for path in MxnetFrontend().samples(Path(folder)):
            store = path.with_name(path.name.replace("-symbol.json", "-0000.params"))
            held = store.read_bytes() if store.exists() else parameter_bytes({})
            found += [Files(path.read_text(), held, ())] * 40
    return found


def _symbol(rng: random.Random, text: str) -> bytes:
    if rng.random() < 0.2:
        return break_text(rng, text).encode("utf-8", "surrogatepass")
    held = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        break_json(rng, held, ODD)
    return json.dumps(held).encode()


def mxnet_case(attempt: Try) -> None:
    """Broken files are refused in one line, or are a graph; so is what is made of that."""
    rng = attempt.rng
    files = rng.choice(intact_files())
    path = attempt.folder / "case-symbol.json"
    symbol, store = files.symbol.encode(), files.store
    if rng.random() < 0.7:
        symbol = _symbol(rng, files.symbol)
    else:
        store = break_bytes(rng, store)
    path.write_bytes(symbol)
    (attempt.folder / "case-0000.params").write_bytes(store)
    most = LONGEST + len(str(path))
    inputs = files.inputs if files.inputs and rng.random() < 0.8 else None
    graph = refused(lambda: MxnetFrontend().load_object(path, Ledger(), inputs), most)
    if graph is None:
        return
    if not sound(graph):
        raise Broken("what was read is no program")
    made = attempt.folder / "made-symbol.json"
    target, to = rng.choice((("mxnet-onednn", made), ("onnxruntime", made.with_suffix(".onnx"))))
    refused(lambda: pipeline.save(graph, to, target=target, lossy=True, force=True), 2 * most)
