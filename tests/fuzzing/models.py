"""Cases of models, profiles and programs."""

from __future__ import annotations

from qir import pipeline
from qir.ir.text import print_graph
from qir.numerics import profile, profile_names
from qir.numerics import reading as profiles
from tests.differential.comparison import kernel_differences, read, reference_differences
from tests.differential.models import STYLES, Taste, make
from tests.differential.networks import network
from tests.differential.runtime import run
from tests.fuzzing.breaking import break_bytes, break_model, break_text
from tests.fuzzing.judging import Broken, Try, refused


def onnx_case(given: Try) -> None:
    """A broken ONNX model is refused in one line, or is a graph."""
    rng = given.rng
    seed = rng.randrange(2**32)
    if rng.random() < 0.5:
        model = network(seed, layers=3).proto
    else:
        model = make(seed, Taste(layers=3), qdq=rng.random() < 0.5).proto
    data = model.SerializeToString()
    if rng.random() < 0.6:
        for _ in range(rng.choice((1, 1, 2, 3))):
            break_model(rng, model)
        data = model.SerializeToString()
    else:
        data = break_bytes(rng, data)
    path = given.folder / "case.onnx"
    path.write_bytes(data)
    graph = refused(lambda: pipeline.load(path))
    if graph is not None:
        print_graph(graph)


def profile_case(given: Try) -> None:
    """A broken profile is refused in one line, or is a profile."""
    rng = given.rng
    name = rng.choice(profile_names())
    broken = break_text(rng, profile(name).text)
    made = refused(lambda: profiles.parse(broken, name, profile))
    if made is None:
        return
    if profiles.parse(profiles.dumps(made), name, profile).defaults != made.defaults:
        raise Broken("a profile that was read does not print as what it is")


def program_case(given: Try) -> None:
    """A random integer network gives the same bytes in onnxruntime, reference and kernels."""
    rng = given.rng
    seed = rng.randrange(2**32)
    taste = Taste(rng.choice(("u8", "i8")), rng.choice(STYLES), layers=rng.randrange(1, 9))
    model = make(seed, taste, exposed=True)
    judge = run(model.proto, model.feeds, optimize=False)
    graph, where = read(model.proto), f"{taste}, seed {seed}"
    found = reference_differences(where, graph, model.feeds, judge, "ort-1.31.noopt")
    found += kernel_differences(where, graph, model.feeds, judge, threads=rng.randrange(1, 4))
    if found:
        raise Broken("\n".join(map(str, found)))
