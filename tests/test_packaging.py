"""What is shipped: an sdist that builds, and a wheel that works far from this folder."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
MAPPED = {"qir": "qir", "frontends": "qir/frontends", "backends": "qir/backends"}
SHIPPED = {".json", ".py", ".pyi", ".toml", ".typed"}
SOURCES = {".c", ".h", ".inc", ".pyx", ".pxd", ".pxi"}
UNTRACKED = (".git", ".venv", "build", "dist", "*.egg-info", "*.so", "__pycache__", ".*_cache")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def build(tree: Path, kind: str, out: Path, **environment: str) -> Path:
    """Build an sdist or a wheel with the tools of this environment."""
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        f"--{kind}",
        "-o",
        out,
        tree,
        cwd=out,
        **environment,
    )
    (built,) = out.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    # A copy, so that nothing built here before slips in.
    shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*UNTRACKED))
    return build(folder / "tree", "sdist", folder)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    # What is tested is which files there are: the compiler need not optimize for long.
    compiler = folder / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O1\n')
    compiler.chmod(0o755)
    return build(tree, "wheel", folder, CC=str(compiler))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"),
        *("--target", site, wheel),
        cwd=site,
    )
    return site


def tree_files(suffixes: set[str]) -> set[str]:
    """Files of these kinds in the three folders, by the path a wheel gives them."""
    return {
        str(PurePosixPath(package, path.relative_to(ROOT / folder).as_posix()))
        for folder, package in MAPPED.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes
    }


def test_the_sdist_holds_every_source_and_nothing_built(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {str(PurePosixPath(*PurePosixPath(n).parts[1:])) for n in archive.getnames()}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in MAPPED
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SHIPPED | SOURCES
    }
    assert wanted <= names
    others = {"LICENSE", "Makefile", "README.md", "setup.py", "tests/test_packaging.py"}
    assert others <= names
    assert {n for n in names if n.endswith((".so", ".pyc")) or ".venv" in n} == set()


def test_what_is_installed_holds_every_python_module_and_its_data(
    sdist: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path / "lib", cwd=tree)
    files = (path for path in (tmp_path / "lib").rglob("*") if path.is_file())
    found = {path.relative_to(tmp_path / "lib").as_posix() for path in files}
    assert found == tree_files(SHIPPED)


@pytest.mark.long
def test_the_wheel_holds_every_module_and_no_c_source(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    code = {name for name in names if ".dist-info/" not in name}
    compiled = {name for name in code if name.endswith(".so")}
    assert code - compiled == tree_files(SHIPPED)
    assert {name.partition(".")[0] for name in compiled} == {
        name.removesuffix(".pyx") for name in tree_files({".pyx"})
    }
    assert {name for name in names if PurePosixPath(name).suffix in SOURCES} == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)


LOAD = """
import sys
from importlib.metadata import distribution
import qir, qir._kernels._codes, qir._kernels._cpu, qir._kernels._statistics
from qir import backends, frontends
from qir._kernels import _codes, _cpu, _statistics
points = [p for p in distribution("qir").entry_points if p.group.startswith("qir.")]
for point in points:
    point.load()
for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "qir"]:
    print(module.__file__)
print(len(points), distribution("qir").version, qir.__version__)
"""


@pytest.mark.long
def test_the_installed_wheel_works_from_another_folder(installed: Path, tmp_path: Path) -> None:
    lines = run(sys.executable, "-c", LOAD, cwd=tmp_path, PYTHONPATH=str(installed)).splitlines()
    assert [path for path in lines[:-1] if not path.startswith(str(installed))] == []
    count, distributed, imported = lines[-1].split()
    assert int(count) > 10
    assert distributed == imported


@pytest.mark.long
def test_the_installed_command_line_tells_its_version(installed: Path, tmp_path: Path) -> None:
    output = run(
        *(sys.executable, "-m", "qir", "--version"), cwd=tmp_path, PYTHONPATH=str(installed)
    )
    assert output.split()[-1] in next(installed.glob("qir-*.dist-info")).name


@pytest.mark.long
def test_the_installed_wheel_is_typed(installed: Path, tmp_path: Path) -> None:
    user = tmp_path / "user.py"
    user.write_text("import qir\n\nreveal_type(qir.__version__)\n", encoding="utf-8")
    output = run(
        *(
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--ignore-missing-imports",
            "--no-incremental",
            user,
        ),
        cwd=tmp_path,
        MYPYPATH=str(installed),
    )
    assert 'Revealed type is "str"' in output
