"""A new target."""

from __future__ import annotations

from collections.abc import Mapping

FILES: Mapping[str, str] = {
    "=points": """\
[project.entry-points."qir.targets"]
$name = "$module:$Class"

[project.entry-points."qir.profiles"]
$name = "$module:PROFILES"
""",
    "=about": """\
A target for QIR: what a backend can run (`capability.toml`), how it computes
(`profiles/$name.toml`), and how models are written for it. To begin with it writes QIR's own form
under its own suffix and runs models by the reference; put your runtime in the place of both.""",
    "=use": """\
Then quantize for it, see what it supports, and compare its results with the reference:

```text
qir plan model.onnx --target $name
qir quantize model.onnx --data samples.npy --target $name -o model.$module
```""",
    "$module/capability.toml": """\
# What may be asked of this backend in integers: for each op the storage that each slot may have,
# best first. A slot that is not named stays float; an op that is not here stays float as a whole.
name = "$name"

[[op]]
op = ["conv2d", "linear"]
constant = ["w", "bias"]
[op.slots]
x = "u8 affine tensor"
w = "i8<-127:127> symmetric channel"
bias = "i32 symmetric channel"
result = "u8 affine tensor"

[[op]]
op = "add"
slots = { a = "u8 affine tensor", b = "u8 affine tensor", result = "u8 affine tensor" }

[[op]]
op = "relu"
slots = { x = "u8 affine tensor", result = "u8 affine tensor" }

[[op]]
op = ["max_pool2d", "reshape", "flatten", "transpose"]
slots = { x = "u8 affine tensor", result = "u8 affine tensor" }
share = ["x", "result"]

# One kernel, one rounding at its end.
[[chain]]
chain = ["conv2d", "relu"]
""",
    "$module/profiles/$name.toml": """\
# How this runtime computes. What is not said here is as in the profile that it extends; what each
# field means is in QIR's docs/reference/numerics.md.
name = "$name"
extends = "native"
backend = "$name"
versions = ">=0.1"
groups = "inherited"
evidence = "none yet: hold it against the runtime"
""",
    "$module/__init__.py": '''\
"""A backend: what it takes, how it computes, and how models are written for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from qir import pipeline
from qir.atomic import replacing
from qir.capability import Capability, load
from qir.errors import UsageError
from qir.ir import file
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from qir.target import Executable, Target

qir_api = 1

PROFILES = Path(__file__).parent / "profiles"
"""The folder of the profiles that this package brings."""


class $Class(Target):
    """Writes QIR's own form, and runs it by the reference under this backend's profile."""

    name = "$name"
    profile = "$name"
    formats = ("plain",)
    suffix = ".$module"

    def capability(self) -> Capability:
        """What may be asked of this backend."""
        return load(Path(__file__).with_name("capability.toml"))

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes a model; the file is there as a whole, or not at all."""
        if format not in (None, *self.formats):
            raise UsageError(f"target {self.name} has no format {format!r}; it has plain")
        ledger.check(lossy=lossy)
        with replacing(path) as draft:
            file.write(draft, file.Bundle(graph))  # here goes your own writer

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Makes a model ready to run."""
        return Compiled(run_passes(graph, [Group(self.profile)], Ledger()), self.profile)

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        """Makes a file that it wrote ready to run; the checks hold the file to the model by it."""
        return self.compile(file.read(path).graph, threads=threads)


class Compiled(Executable):
    """A model that runs; here goes your own runtime."""

    def __init__(self, graph: Graph, profile: str) -> None:
        self.graph = graph
        self.profile = profile

    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs it on arrays by input name; results by output name."""
        arrays = {name: np.asarray(data) for name, data in inputs.items()}
        return dict(pipeline.run(self.graph, arrays, profile=self.profile))
''',
    "tests/test_$module.py": '''\
"""The target does what it says, and keeps the contract of targets."""

from pathlib import Path

import numpy as np
import qir
from qir.ir import file
from qir.testing import check_target, random_graph, require, sample_inputs

from $module import $Class


def test_what_it_writes_is_the_model(tmp_path: Path) -> None:
    graph = random_graph(1)
    path = tmp_path / "model.$module"
    qir.save(graph, path, target="$name")
    assert str(file.read(path).graph) == str(graph)


def test_a_model_is_quantized_for_it_and_runs() -> None:
    graph = random_graph(1)
    samples = [sample_inputs(graph, seed) for seed in range(4)]
    statistics = qir.calibrate(graph, samples)
    quantized = qir.quantize(graph, statistics, target="$name")
    assert quantized.profile == "$name"
    made = qir.compile(quantized, target="$name")(**samples[0])
    assert all(np.isfinite(np.asarray(array)).all() for array in made.values())


def test_it_keeps_the_contract_of_targets() -> None:
    require(check_target($Class))
''',
}
