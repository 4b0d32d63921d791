"""Which part of the house may import which."""

import ast
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent

# The parts of the core: each may import itself and what stands after its name.
CORE = {
    "errors": "",
    "arguments": "errors",
    "atomic": "errors",
    "lazy_exports": "",
    "json_file": "errors",
    "temporary": "",
    "registry": "errors",
    "ir": "errors arguments atomic registry",
    "query": "errors arguments ir",
    "ledger": "errors arguments atomic ir",
    "source": "ir",
    "recipe": "errors atomic registry",
    "trial_cache": "atomic",
    "capability": "errors ir query registry numerics profiles",
    "numerics": "errors ir registry _kernels",
    "profiles": "errors ir registry numerics",
    "frontend": "errors ir ledger registry profiles",
    "target": "errors ir ledger registry profiles capability",
    "programs": "errors arguments registry target",
    "reference": "errors ir ledger registry numerics profiles frontend",
    "rewrite": "errors arguments ir query ledger registry numerics profiles frontend lazy_exports",
    "analysis": "errors ir query ledger registry numerics profiles capability reference "
    "rewrite calibration",
    "calibration": "errors arguments atomic ir ledger registry numerics profiles reference rewrite "
    "_kernels",
    "passes": "errors analysis atomic ir query ledger registry numerics profiles frontend "
    "capability target reference rewrite calibration",
    "_kernels": "",
}
# Classes of any part are made as records.
CORE = {"records": ""} | {
    part: below if part == "_kernels" else f"records {below}" for part, below in CORE.items()
}
BELOW = " ".join(CORE)
CORE |= {
    "quantizing": BELOW,
    "qir_files": BELOW,
    "loading": f"{BELOW} qir_files",
    "execution": BELOW,
    "requantizing": f"{BELOW} quantizing",
    "graph_dump": "errors atomic ir ledger qir_files rewrite",
    "pipeline": f"{BELOW} execution graph_dump loading qir_files quantizing requantizing",
    "evaluating": f"{BELOW} quantizing pipeline inspect",
    "inspect": BELOW,
    "mixed_precision": f"{BELOW} quantizing pipeline inspect evaluating",
    "workflows": f"{BELOW} execution qir_files quantizing requantizing pipeline inspect evaluating "
    "mixed_precision",
    "cli": f"{BELOW} execution graph_dump loading qir_files quantizing requantizing pipeline "
    "inspect evaluating mixed_precision workflows testing __init__",
    "testing": f"{BELOW} pipeline inspect",
    "__init__": f"{BELOW} execution loading pipeline inspect evaluating mixed_precision testing",
    "__main__": "cli",
}

# Graph.query, and how a graph is shown, import what they need when called.
WHEN_CALLED = {("qir.ir.graph", "query")}

# The libraries: _kernels knows only numpy, and printing is for those who print.
LIBRARIES = {"ml_dtypes", "networkx", "numpy", "safetensors"}
MORE_LIBRARIES = {
    "calibration": {"PIL"},
    "cli": {"click", "rich"},
    "inspect": {"rich"},
    "testing": {"hypothesis"},
}
FRAMEWORKS = {"mxnet", "onnx", "onnxruntime", "tensorflow", "torch"}

# A plugin's one framework; onnxruntime runs what onnx writes. Formats of mxnet and ipex need none:
# only the programs that their probes start in another Python have them. `google` is protobuf,
# which onnx brings.
PLUGINS = {
    "frontends.onnx": {"onnx", "onnxruntime"},
    "frontends.torch": {"torch"},
    "frontends.tensorflow": {"google", "tensorflow"},
    "frontends.mxnet": set[str](),
    "backends.onnx": {"onnx", "onnxruntime", "qonnx"},
    "backends.cpu": set[str](),
    "backends.torch": {"torch"},
    "backends.tensorflow": {"tensorflow"},
    "backends.tflite": {"flatbuffers"},
    "backends.mxnet": set[str](),
    "backends.mxnet.child": {"mxnet"},
    "backends.ipex": set[str](),
    "backends.ipex.module": {"torch"},
    "backends.ipex.recurrent": {"torch"},
    "backends.ipex.child": {"intel_extension_for_pytorch", "torch"},
}
CYTHON = {"cpython", "cython", "libc"}

# Modules that import by a name which they compute, and from where it comes.
COMPUTED_NAMES = {
    "qir.lazy_exports": "a package's own table of what stands in which module",
    "backends.tflite.models": "its own table of the packages that hold the interpreter",
}


class Import(NamedTuple):
    """One name that a module imports, and whether it does so while it is loaded."""

    name: str
    relative: bool
    loading: bool
    full: str = ""
    """The name with what is taken from the module; `name` ends at the module."""


def modules(root: Path) -> dict[str, Path]:
    """The file of every module under the three folders, by the name its place gives it."""
    found = {}
    for top in ("qir", "frontends", "backends"):
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


COMPUTED = "what it computes"


def imports(module: str, path: Path, known: Iterable[str]) -> tuple[Import, ...]:
    """Every import of a file, at any depth, each name resolved as far as modules are known."""
    return _imports(module, path, frozenset(known))


@cache
def _imports(module: str, path: Path, known: frozenset[str]) -> tuple[Import, ...]:
    return tuple(_found_imports(module, path, known))


def _found_imports(module: str, path: Path, known: frozenset[str]) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    importers = {"import_module", "__import__", "run_module"}
    bound: dict[str, str] = {}
    attributes = []
    for node, loading in walked(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    bound[alias.asname or alias.name] = alias.name
                    yield Import(alias.name, False, loading, alias.name)
            case ast.ImportFrom(module=stem, names=names, level=level):
                above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*above, *([stem] if stem else [])])
                for alias in names:
                    whole = f"{base}.{alias.name}"
                    if whole in known:
                        bound[alias.asname or alias.name] = whole
                    if alias.name in importers and alias.asname:
                        importers.add(alias.asname)
                    yield Import(whole if whole in known else base, level > 0, loading, whole)
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[first, *_]
            ) if called in importers:
                name = text_of(first)
                yield Import(name, False, loading, name)
            case ast.Attribute(attr=attr) if attr.startswith("_"):
                attributes.append((ast.unparse(node.value), attr))
    for stem, attr in attributes:
        if stem in bound:
            yield Import(bound[stem], False, False, f"{bound[stem]}.{attr}")


def walked(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it is run while the module is loaded."""
    waiting = deque([(tree, True)])
    while waiting:
        node, loading = waiting.popleft()
        yield node, loading
        later: list[ast.stmt] = []
        match node:
            case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
                later = body
            case ast.If(test=test, body=body) if ast.unparse(test).endswith("TYPE_CHECKING"):
                later = body
        for child in ast.iter_child_nodes(node):
            waiting.append((child, loading and child not in later))


def text_of(node: ast.expr) -> str:
    """The module whose name a text is or begins with; COMPUTED where it begins with no text."""
    match node:
        case ast.Constant(value=str(name)):
            return name
        case ast.JoinedStr(values=[ast.Constant(value=str(name)), *_]):
            return name.rpartition(".")[0] or COMPUTED
        case ast.BinOp(left=left, op=ast.Add()):
            name = text_of(left)
            return name.rpartition(".")[0] or name
    return COMPUTED


def is_standard(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


def core_fault(module: str, found: Import) -> str | None:
    """Why a module of the core may not import that, or nothing."""
    part = module.split(".")[1] if "." in module else "__init__"
    top, _, rest = found.name.partition(".")
    if top == "qir":
        wanted = rest.split(".")[0] or "__init__"
        if wanted in {"frontends", "backends"}:
            return "plugins are found by entry point"
        allowed = {part, *CORE[part].split()} if part in CORE else set()
        if (module, wanted) in WHEN_CALLED and not found.loading:
            return None
        return None if wanted in allowed else f"qir.{part} stands below or beside it"
    if top in {"frontends", "backends"}:
        return "plugins are found by entry point"
    if top in FRAMEWORKS:
        return "the core knows no framework"
    libraries = {"numpy"} if part == "_kernels" else LIBRARIES | MORE_LIBRARIES.get(part, set())
    return None if top in libraries or is_standard(top) else "not a library of this part"


def private_fault(module: str, found: Import, known: Iterable[str]) -> str | None:
    """Why a module may not import something private: a module, a package, a name of a module.

    It is private to the package that it stands in; the kernels' modules serve all.
    """
    parts = found.full.split(".")
    if parts[0] not in {"qir", "frontends", "backends"}:
        return None
    start = 3 if parts[1:2] == ["_kernels"] else 1
    at = next((i for i in range(start, len(parts)) if is_private(parts[i])), None)
    if at is None:
        return None
    package = owner = ".".join(parts[:at])
    if owner in known and not any(name.startswith(f"{owner}.") for name in known):
        package = owner.rpartition(".")[0]
    if module == package or module.startswith(f"{package}."):
        return None
    return f"{parts[at]} is private to {package}"


def is_private(word: str) -> bool:
    return word.startswith("_") and not (word.startswith("__") and word.endswith("__"))


def plugin_fault(module: str, found: Import) -> str | None:
    """Why a module of a plugin may not import that, or nothing."""
    own = ".".join(module.split(".")[:2])
    top, _, rest = found.name.partition(".")
    if found.relative:
        inside = found.name == own or found.name.startswith(f"{own}.")
        return None if inside else "a relative import stays in its plugin's folder"
    if top == "qir":
        if rest.split(".")[0] in {"frontends", "backends"}:
            return "own modules are imported relatively, other plugins not at all"
        return None
    if top in LIBRARIES | PLUGINS.get(module, PLUGINS.get(own, set())) or is_standard(top):
        return None
    return "neither qir nor the plugin's own framework"


def faults(root: Path) -> list[str]:
    """Every import that breaks the rule, and every cycle of modules that load each other."""
    known = modules(root)
    graph = nx.DiGraph()
    found = []
    for module, path in known.items():
        part = module.partition(".")[2].split(".")[0]
        if module.startswith("qir.") and part not in CORE:
            found.append(f"{module}: no such part of the core, give {part} a place in CORE")
            continue
        fault = core_fault if module.split(".")[0] == "qir" else plugin_fault
        for entry in imports(module, path, known):
            if entry.name == COMPUTED:
                if module not in COMPUTED_NAMES:
                    found.append(f"{module} imports {COMPUTED}: say the module's name as text")
            elif reason := fault(module, entry) or private_fault(module, entry, known):
                found.append(f"{module} imports {entry.full}: {reason}")
            if entry.name in known and entry.loading and entry.name != module:
                graph.add_edge(module, entry.name)
    for knot in nx.strongly_connected_components(graph):
        if len(knot) > 1:
            found.append(f"modules load each other: {', '.join(sorted(knot))}")
    return sorted(set(found))


def test_imports_stay_in_their_layer() -> None:
    assert modules(ROOT), f"no module found under {ROOT}"
    assert not faults(ROOT), "\n".join(faults(ROOT))


# Modules that name each other when called or in annotations: a graph and what is asked of it by
# methods.
MUTUAL = {("qir", "ir")}


def test_modules_name_each_other_only_where_they_are_recursive() -> None:
    known = modules(ROOT)
    graph = nx.DiGraph()
    for module, path in known.items():
        names = (entry.name for entry in imports(module, path, known))
        graph.add_edges_from((module, name) for name in names if name in known and name != module)
    knots = [knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
    assert {tuple(name.split(".")[:2]) for knot in knots for name in knot} == MUTUAL


def test_no_pass_runs_other_passes() -> None:
    """The order of passes is said by `qir/quantizing.py`, the pipeline and targets alone."""
    passes = {entry.attr for entry in entry_points(group="qir.passes")}
    for path in sorted((ROOT / "qir/passes").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        assert "run_passes" not in names, path
        runs = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "run"]
        made = [n.value.func for n in runs if isinstance(n.value, ast.Call)]
        own = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)} | {"super"}
        others = {f.id for f in made if isinstance(f, ast.Name)} & passes - own
        assert not others, f"{path.name} runs {others}"


def test_compiled_code_knows_only_numpy_and_the_standard_library() -> None:
    doors = sorted((ROOT / "qir").rglob("*.p[yx][xd]"))
    assert doors
    allowed = {"numpy", *CYTHON}
    for path in doors:
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"\s*(?:from|c?import)\s+([\w.]+)", line):
                top = found[1].split(".")[0]
                own = found[1].startswith("qir._kernels.")
                assert not top or own or top in allowed or is_standard(top), f"{path.name}: {line}"


PLANTED = {
    "a lower part imports a higher one": ("qir/ir/a.py", "from qir.passes import b"),
    "a graph imports questions about it while it is loaded": (
        "qir/ir/graph.py",
        "from qir.query import html",
    ),
    "two parts of one height import each other": ("qir/reference/a.py", "import qir.rewrite"),
    "the ledger imports numerics": ("qir/ledger.py", "from qir import numerics"),
    "the registry imports the ir": ("qir/registry.py", "from qir.ir import Graph"),
    "the core imports its own front door": ("qir/ir/a.py", "from qir import load"),
    "the core imports a framework": ("qir/passes/a.py", "import onnx"),
    "the core imports a framework inside a function": (
        "qir/pipeline.py",
        "def f():\n    from torch import nn",
    ),
    "the core imports a framework by its name as text": (
        "qir/pipeline.py",
        "import importlib\nimportlib.import_module('tensorflow')",
    ),
    "the core imports a plugin": ("qir/cli/a.py", "from qir.frontends.onnx import OnnxFrontend"),
    "the core imports a plugin by its folder": ("qir/cli/a.py", "import backends.cpu"),
    "a part that prints nothing imports rich": ("qir/passes/a.py", "import rich"),
    "a module imports a private one of another package": (
        "qir/passes/a.py",
        "from qir.ir._scan import scan",
    ),
    "a module imports from a private package of another": (
        "qir/passes/a.py",
        "from qir.ir._b.c import d",
    ),
    "a module imports a private package of another by another name": (
        "qir/passes/a.py",
        "import qir.ir._b.c as d",
    ),
    "a module imports a private name of another package": (
        "qir/passes/a.py",
        "from qir.ir.graph import _secret",
    ),
    "a plugin imports a private name of the core": (
        "backends/cpu/a.py",
        "from qir.ir.graph import _secret",
    ),
    "a module uses a private name of another package's": (
        "qir/passes/a.py",
        "import qir.ir.graph as g\ng._secret()",
    ),
    "a module imports a private name of the kernels": (
        "qir/passes/a.py",
        "from qir._kernels._cpu import _plan",
    ),
    "the core imports a plugin by a name that it puts together": (
        "qir/cli/a.py",
        "import importlib\nimportlib.import_module(f'qir.backends.{x}')",
    ),
    "the core imports a plugin by a name that it adds": (
        "qir/cli/a.py",
        "import importlib\nimportlib.import_module('backends.' + x)",
    ),
    "the core imports a framework by another name of the importer": (
        "qir/cli/a.py",
        "from importlib import import_module as im\nim('torch')",
    ),
    "the core imports what it computes": (
        "qir/cli/a.py",
        "from importlib import import_module\nimport_module(x)",
    ),
    "the core imports what begins with what it computes": (
        "qir/cli/a.py",
        "from importlib import import_module\nimport_module(f'{x}.a')",
    ),
    "the kernels import the core": ("qir/_kernels/a.py", "from qir.errors import QirError"),
    "the kernels import more than numpy": ("qir/_kernels/a.py", "import networkx"),
    "a plugin imports another": ("backends/cpu/a.py", "from qir.backends.onnx import b"),
    "a plugin imports itself absolutely": ("backends/cpu/a.py", "from qir.backends.cpu import b"),
    "a plugin climbs out of its folder": ("backends/cpu/a.py", "from ..onnx import b"),
    "a plugin imports another's framework": ("frontends/onnx/a.py", "import torch"),
    "a probe imports what only its child has": ("backends/ipex/probe.py", "import torch"),
    "the core has a part that no rule knows": ("qir/utils.py", "import numpy"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_breach_is_found(fault: str, tmp_path: Path) -> None:
    name, text = PLANTED[fault]
    plant(tmp_path, {name: text})
    assert len(faults(tmp_path)) == 1, f"{fault}: {faults(tmp_path)}"


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "qir/ir/a.py": "from qir.ir import b",
            "qir/ir/b.py": "if True:\n    from qir.ir.c import x",
            "qir/ir/c.py": "from . import a",
        },
    )
    assert faults(tmp_path) == ["modules load each other: qir.ir.a, qir.ir.b, qir.ir.c"]


def test_what_the_rule_allows_is_not_a_fault(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "qir/__init__.py": "from qir.pipeline import quantize",
            "qir/ir/__init__.py": "from qir.ir.a import A",
            "qir/ir/a.py": "import networkx\nfrom qir.errors import QirError",
            "qir/ir/b.py": (
                "from typing import TYPE_CHECKING\nfrom qir.ir.a import A\n"
                "if TYPE_CHECKING:\n    from qir.ir.c import C"
            ),
            "qir/ir/c.py": "from qir.ir.b import B\nfrom qir.ir.d import D",
            "qir/ir/graph.py": "def query():\n    from qir.query.query import select",
            "qir/ir/d.py": "class D:\n    def __str__(self):\n        import qir.ir.c",
            "qir/cli/show.py": "import click, rich\nimport qir\nfrom qir.inspect import report",
            "frontends/onnx/__init__.py": "import onnx\nfrom .read import read\nimport qir.ir",
            "frontends/onnx/read.py": "import numpy",
            "qir/ir/_scan.py": "from qir.ir.a import _inner",
            "qir/ir/lexer.py": "import qir.ir.a\nimport qir.ir._scan\nqir.ir.a._inner()",
            "qir/numerics/a.py": "from qir._kernels._cpu import A\nfrom qir._kernels import _cpu",
            "qir/cli/version.py": "from qir import __version__",
        },
    )
    assert faults(tmp_path) == []


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


IMPORT = """
import sys, time
start = time.perf_counter()
import qir
print(time.perf_counter() - start)
print(*{name.split(".")[0] for name in sys.modules})
"""


def test_importing_qir_is_quick_and_loads_no_framework() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        for _ in range(5)
    ]
    seconds, loaded = zip(*(run.stdout.splitlines() for run in runs), strict=True)
    assert not FRAMEWORKS & set(loaded[0].split())
    assert min(map(float, seconds)) < 0.3, f"import qir took {seconds} s"


ALONE = """
import sys
sys.modules["hypothesis"] = None
import qir.testing
qir.testing.random_graph(1)
try:
    qir.testing.graphs()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_strategies_without_hypothesis_are_refused_with_what_to_install() -> None:
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    told = 'PluginError: strategies of qir.testing need hypothesis: pip install "qir[test]"\n'
    assert run.stdout == told
