"""Kernels of each instruction set against their scalar twins, in C, for Arm by qemu too.

`twins/` is a program that runs both on the same random cases and compares their bytes. What Arm's
scalar kernels make is compared with this processor's: their own tests are beside this one.
"""

import platform
import random
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS, TWINS = ROOT / "qir" / "_kernels", Path(__file__).parent / "twins"
SOURCES = [*sorted(KERNELS.rglob("*.c")), *sorted(TWINS.glob("*.c"))]
ON_ARM = platform.machine() in ("aarch64", "arm64")
COMPILER = "cc" if ON_ARM else "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
CASES = "300"  # of each family
FAULTS = (
    ("gemm/arm_neondot.c", "b->x_flip ^ 0x80", "b->x_flip", "convolutions"),
    ("gemm/arm_neondot.c", "STEP(2) STEP(3)", "STEP(3) STEP(2)", "matrices"),
    ("gemm/arm_tiles.h", "y, row, to->columns *", "y, row, to->columns / 2 *", "dynamic"),
    ("gemm/arm_neon.c", "STEP(6) STEP(7)", "STEP(7) STEP(6)", "convolutions"),
    ("depthwise/arm_neondot.c", "vqaddq_s16", "vaddq_s16", "depthwise"),
    (
        "depthwise/arm_neondot.c",
        "const int tap = group * LANES + i",
        "const int tap = i",
        "depthwise",
    ),
    ("depthwise/arm_neondot.c", "(window > LANES) add_lines", "(0) add_lines", "depthwise"),
    ("depthwise/arm_neondot.c", "k - b->run->before", "k", "depthwise"),
    ("grouped/arm_neondot.c", "copy->flip ^ 0x80", "copy->flip", "groups"),
    ("grouped/arm_neondot.c", "vst4q_f32(row, all)", "memcpy(row, &all, sizeof row)", "groups"),
    ("elementwise/arm_neon.c", "i < 4; ++i) {", "i < 3; ++i) {", "tables"),
    (
        "floats/arm_neon.c",
        "vbslq_f32(vcgtq_f32(a, b), a, b)",
        "vmaxnmq_f32(a, b)",
        "float_products",
    ),
    ("floats/arm_neon.c", "vfmaq_f32(c, a, b)", "vaddq_f32(c, vmulq_f32(a, b))", "float_products"),
    ("floats/arm_neon.c", "l < of.high", "l < of.high - 1", "float_convolutions"),
    ("arm_vectors.h", "vcvtnq_s32_f32", "vcvtaq_s32_f32", "convolutions"),
    ("arm_vectors.h", "vmaxnmq_f32", "vmaxq_f32", "convolutions"),
    ("arm_vectors.h", "memcpy(y, tail, n)", "memcpy(y, tail, n - 1)", "convolutions"),
)
"""A kernel's file, what is written there, what is planted instead, and the family that sees it."""


def flags() -> list[str]:
    """What setup.py compiles the kernels with."""
    listed = re.findall(r'^ +"(-[^"]+)",$', (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert {"-O3", "-std=c11", "-ffp-contract=off"} <= set(listed), listed
    return [*listed, "-pthread"]


@dataclass(frozen=True)
class Build:
    """The program of one processor, with its object files by source."""

    compiler: str
    folder: Path
    options: tuple[str, ...] = ("-Werror",)

    def compile(self, source: Path, to: Path, *before: Path) -> Path:
        """Compiles a file, which looks for headers in the folders `before` first."""
        folders = [f"-I{folder}" for folder in (*before, KERNELS, TWINS)]
        self._run(*flags(), *self.options, *folders, "-c", str(source), "-o", str(to))
        return to

    def object(self, source: Path) -> Path:
        return self.folder / f"{source.parent.name}_{source.stem}.o"

    def link(self, objects: list[Path], program: Path) -> Path:
        self._run("-static", "-pthread", *map(str, objects), "-lm", "-o", str(program))
        return program

    def all(self) -> Path:
        with ThreadPoolExecutor(2) as pool:
            made = list(pool.map(lambda source: self.compile(source, self.object(source)), SOURCES))
        assert len(set(made)) == len(made)
        return self.link(made, self.folder / "twins")

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [self.compiler, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]


def run(program: Path, *arguments: str, cpu: str | None = None) -> tuple[int, str]:
    """The status and output of a program; `cpu` is the processor that qemu is."""
    emulated = [EMULATOR, "-cpu", cpu] if cpu else []
    done = subprocess.run(
        [*emulated, str(program), *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def checksums(output: str) -> dict[str, str]:
    """The checksum of each family's scalar results."""
    return dict(re.findall(r"^(\w+) +\d+ cases, checksum (\w+)$", output, re.MULTILINE))


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Build:
    needed = [COMPILER] if ON_ARM else [COMPILER, EMULATOR]
    if missing := [name for name in needed if not shutil.which(name)]:
        pytest.skip(f"no {' and no '.join(missing)}; CONTRIBUTING.md says where they come from")
    build = Build(COMPILER, tmp_path_factory.mktemp("arm"))
    build.all()
    return build


MAX = None if ON_ARM else "max"


@pytest.mark.slow
def test_arm_kernels_give_the_bytes_of_their_scalar_twins(arm: Build) -> None:
    seed = str(random.randrange(10**6))
    status, output = run(arm.folder / "twins", seed, CASES, cpu=MAX)
    assert status == 0, output
    assert "sets neondot neon scalar" in output
    assert len(checksums(output)) == 18


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "sets"),
    [
        ("max", "neondot neon scalar"),
        ("cortex-a76", "neondot neon scalar"),
        ("cortex-a72", "neon scalar"),
        ("cortex-a53", "neon scalar"),
    ],
)
def test_dot_products_are_used_where_the_processor_has_them(
    cpu: str, sets: str, arm: Build
) -> None:
    if ON_ARM:
        pytest.skip("no processor but this one without qemu")
    status, output = run(arm.folder / "twins", "1", "5", cpu=cpu)
    assert status == 0, output
    assert f"sets {sets}\n" in output


@pytest.mark.slow
def test_scalar_kernels_give_the_same_bytes_on_arm_as_on_x86(arm: Build, tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or not shutil.which("cc"):
        pytest.skip("no x86-64 compiler beside Arm's")
    here = Build("cc", tmp_path, ("-O1", "-w")).all()  # the same bytes, and soon compiled
    seed = str(random.randrange(10**6))
    status, output = run(here, seed, CASES)
    assert status == 0, output  # of this processor's sets, too
    _, theirs = run(arm.folder / "twins", seed, CASES, cpu=MAX)
    assert checksums(theirs) == checksums(output), f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize(("file", "written", "planted", "family"), FAULTS)
def test_a_fault_in_an_arm_kernel_is_found(
    file: str, written: str, planted: str, family: str, arm: Build, tmp_path: Path
) -> None:
    true = KERNELS / file
    text = true.read_text()
    assert text.count(written) == 1, (file, written)
    (tmp_path / true.name).write_text(text.replace(written, planted))  # found before the true one
    included = f'#include "{true.name}"'
    changed = [s for s in SOURCES if s == true or included in s.read_text()]
    objects = [arm.object(source) for source in SOURCES if source not in changed]
    build = replace(arm, options=("-w",))
    for source in changed:
        copy = tmp_path / "copies" / arm.object(source).with_suffix(".c").name
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(tmp_path / true.name if source == true else source, copy)
        objects.append(build.compile(copy, copy.with_suffix(".o"), tmp_path, source.parent))
    status, output = run(arm.link(objects, tmp_path / "twins"), "1", CASES, family, cpu=MAX)
    assert status == 1, output
    assert "with neon" in output
