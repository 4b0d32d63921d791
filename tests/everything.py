"""Runs all that `make test` leaves out too, and writes docs/test-all.md: `make test-all`."""

import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tests import processors

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "test-all.md"
PACKAGES = ("qir", "numpy", "onnx", "onnxruntime", "torch", "hypothesis")


class Step(NamedTuple):
    """One part of the run: its name, what it printed last, how long it took, whether it passed."""

    name: str
    closing: str
    seconds: float
    passed: bool


def run(name: str, *command: str) -> Step:
    """Run a part, show what it prints as it comes, and keep the last line."""
    print(f"== {name}", flush=True)
    start = time.monotonic()
    closing = ""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = line.strip(" =\n") or closing
    return Step(name, closing, time.monotonic() - start, process.returncode == 0)


def page(steps: list[Step]) -> str:
    """What the documentation keeps of a run."""
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    rows = "".join(
        f"| {s.name} | {'passed' if s.passed else 'FAILED'} | {s.closing} | {s.seconds:.0f} s |\n"
        for s in steps
    )
    return (
        "# The last run of everything\n\n"
        "`make test-all` writes this page.\n\n"
        f"- {datetime.now(UTC):%Y-%m-%d}, {sum(s.seconds for s in steps) / 60:.0f} minutes\n"
        f"- {processors.name()}\n"
        f"- Python {platform.python_version()}, {versions}\n"
        f"- {compiler.stdout.splitlines()[0]}\n\n"
        f"| part | result | last line | time |\n|---|---|---|---|\n{rows}"
    )


def main() -> int:
    """Run every part, also after one that failed; the status is 1 if any did."""
    steps = [
        run("tests", sys.executable, "-P", "-m", "pytest", "--whole", *sys.argv[1:]),
        *(
            run(name, "make", "--no-print-directory", name)
            for name in ("test-loopback", "sanitize", "fuzz", "bench")
        ),
    ]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(steps), encoding="utf-8")
    print(f"written to {PAGE.relative_to(ROOT)}")
    return 0 if all(step.passed for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main())
