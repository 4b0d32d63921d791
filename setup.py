"""What pyproject.toml cannot say: the folders that are mapped, and the compiled extensions."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

KERNELS = Path("qir/_kernels")
MAPPED = {"frontends": "qir.frontends", "backends": "qir.backends"}


def packages() -> list[str]:
    """Every package by the name it is installed under."""
    found = find_packages(include=["qir", "qir.*"])
    for folder, package in MAPPED.items():
        for name in find_packages(include=[folder, f"{folder}.*"]):
            found.append(package + name.removeprefix(folder))
    return found


def flags() -> list[str]:
    """What every C file is compiled and linked with; QIR_SANITIZE names sanitizers to add."""
    if sanitizers := os.environ.get("QIR_SANITIZE"):  # such as address,undefined
        # Fields of a struct that nobody sets hold a pattern then, not what the stack had.
        poison = "-ftrivial-auto-var-init=pattern"
        # Unrolled kernels take the compiler ten times as long with all optimizations and checks.
        checks = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-O1"]
        return [*checks, "-g", "-pthread", poison]
    return ["-pthread"]


def extension(name: str, sources: list[Path]) -> Extension:
    """One extension module, `_name.pyx` with its C files."""
    return Extension(
        f"qir._kernels._{name}",
        [str(KERNELS / f"_{name}.pyx"), *map(str, sorted(sources))],
        include_dirs=[str(KERNELS)],
        # Cython copies the headers a .pyx names into its build folder, where they
        # look for their neighbours: so all of them have to be listed.
        depends=sorted(map(str, KERNELS.rglob("*.[hi]*"))),
        extra_compile_args=[
            "-O3",
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-fvisibility=hidden",
            # One rounding more and bytes differ: a*b+c is fused only where it is written so.
            "-ffp-contract=off",
            # Nobody looks at traps or errno; loops with conditions are vectorized without them.
            "-fno-trapping-math",
            "-fno-math-errno",
            *flags(),
        ],
        extra_link_args=flags(),
    )


def scanner() -> Extension:
    """What reads text: compiled Python, with no C of its own."""
    return Extension(
        "qir.ir._scan",
        ["qir/ir/_scan.pyx"],
        extra_compile_args=["-O3", *flags()],
        extra_link_args=flags(),
    )


def view() -> Extension:
    """What patterns are looked for in: a graph as integers."""
    return Extension(
        "qir.rewrite.patterns._view",
        ["qir/rewrite/patterns/_view.pyx"],
        extra_compile_args=["-O3", *flags()],
        extra_link_args=flags(),
    )


def extensions() -> list[Extension]:
    """The kernels; statistics and codes are extensions of their own, without the thread pool."""
    statistics = set(KERNELS.glob("statistics/*.c"))
    codes = set(KERNELS.glob("codes/*.c"))
    return [
        extension("cpu", sorted(set(KERNELS.rglob("*.c")) - statistics - codes)),
        extension("statistics", sorted(statistics)),
        extension("codes", sorted({*codes, KERNELS / "isa.c"})),
        scanner(),
        view(),
    ]


setup(
    packages=packages(),
    package_dir={"qir": "qir"} | {package: folder for folder, package in MAPPED.items()},
    ext_modules=cythonize(extensions(), build_dir="build/cython", language_level=3),
)
