"""Which instruction sets are used: by the processor, QIR_ISA, and what is asked for by name."""

import os
import subprocess
import sys

import pytest

from qir._kernels import _cpu
from qir._kernels._environment import InstructionSets

BITS = dict(_cpu.SETS.bits)
ASKED = _cpu.SETS.asked


def processor(*names: str) -> InstructionSets:
    bits = 0
    for name in names:
        bits |= BITS[name]
    return InstructionSets(BITS, bits, ASKED)


def used(sets: InstructionSets, cap: str | None = None) -> list[str]:
    return sets.names(sets.allowed(cap))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QIR_ISA", raising=False)


def test_each_name_is_a_bit_of_its_own_and_the_last_is_none() -> None:
    *some, last = BITS
    assert last == "scalar"
    assert BITS[last] == 0
    assert sorted(bit.bit_count() for bit in BITS.values()) == [0] + [1] * len(some)
    assert len(set(BITS.values())) == len(BITS)


def test_avx_vnni_is_used_only_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    client = processor("avx2", "avxvnni")
    assert used(client) == ["avx2", "scalar"]
    assert used(client, "avxvnni") == client.caps() == ["avxvnni", "avx2", "scalar"]
    monkeypatch.setenv("QIR_ISA", "avx512vbmi")  # allows it, and names another
    assert used(client) == ["avx2", "scalar"]
    monkeypatch.setenv("QIR_ISA", "avxvnni")
    assert used(client) == ["avxvnni", "avx2", "scalar"]
    assert used(client, "avx2") == ["avx2", "scalar"]
    monkeypatch.setenv("QIR_ISA", "avx2")
    assert used(client, "avxvnni") == client.caps() == ["avx2", "scalar"]


def test_avx512_without_vnni_is_a_set_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    server = processor("avx2", "avx512")
    assert used(server) == ["avx512", "avx2", "scalar"]
    newer = processor("avx2", "avx512", "avx512vnni", "avxvnni_evex")
    assert used(newer) == ["avx512vnni", "avx512", "avx2", "scalar"]
    assert used(newer, "avx512") == ["avx512", "avx2", "scalar"]
    assert used(newer, "avxvnni_evex") == ["avxvnni_evex", "avx2", "scalar"]
    monkeypatch.setenv("QIR_ISA", "avx512")
    assert used(newer) == ["avx512", "avx2", "scalar"]


def test_what_the_processor_has_is_what_the_system_says() -> None:
    try:
        with open("/proc/cpuinfo") as file:
            flags = next(line for line in file if line.startswith("flags")).split()
    except (OSError, StopIteration):
        pytest.skip("no list of what an x86 processor has")
    wide = {"avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl"}
    needs = {
        "avx2": {"avx2", "fma"},
        "avxvnni": {"avx2", "fma", "avx_vnni"},
        "avx512": wide,
        "avx512vnni": wide | {"avx512_vnni"},
        "avxvnni_evex": wide | {"avx512_vnni"},
        "avx512vbmi": wide | {"avx512vbmi"},
    }
    found = _cpu.cpu_features()
    assert {name for name in needs if name in found} == {
        name for name, all_of in needs.items() if all_of <= set(flags)
    }


@pytest.mark.parametrize("name", ["avxvnni", "avxvnni_evex"])
def test_calibration_with_avx_vnni_uses_avx2(name: str) -> None:
    code = "from qir._kernels._statistics import DEFAULT, ISAS; print(DEFAULT, *ISAS)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"QIR_ISA": name},
        capture_output=True,
        text=True,
        check=True,
    )
    default, *known = run.stdout.split()
    assert default == ("avx2" if "avx2" in known else "scalar")
