"""Tables fit the terminal, and pipes get everything."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qir.cli.run import _show_differences
from qir.cli.screen import (
    Column,
    Screen,
    StyledText,
    TimeLeft,
    aligned,
    amount,
    layout,
    number_text,
    percent,
    plural,
    size,
)
from qir.inspect.compare import OutputDifference
from qir.ir.text import parse
from qir.pipeline import save
from qir.query.display import span
from tests.cli.command import qir

WORDS = st.text("abcxyz_/.", max_size=30)
COLUMNS = (
    Column("name", fit="fold"),
    Column("count", "right"),
    Column("why", fit="wrap"),
    Column("more", fit="drop"),
)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@given(
    st.lists(st.tuples(WORDS, st.integers(0, 10**6).map(str), WORDS, WORDS), min_size=1),
    st.integers(60, 200),
)
def test_no_table_is_wider_than_the_terminal(
    rows: list[tuple[str, str, str, str]], width: int
) -> None:
    shown, widths = layout(COLUMNS, [[StyledText(text) for text in row] for row in rows], width)
    assert sum(widths) + 2 * len(widths) <= width, f"{width}: columns {shown} are {widths}"


def test_a_pipe_gets_names_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a/very/long/name/" * 20
    Screen().table(COLUMNS, [(name, "1", "because " * 40, "more")])
    head, row = lines(capsys)
    assert name in row
    assert row.endswith("more")
    assert head.split() == ["name", "count", "why", "more"]


def test_a_terminal_gets_long_names_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    name = "StatefulPartitionedCall/a/very/long/name/of/a/tensor:0" * 3
    screen = Screen()
    screen.width = 60
    screen.table((Column("name", fit="fold"), Column("count", "right")), [(name, "17")])
    _, *rows = lines(capsys)
    assert max(map(len, rows)) <= 60
    assert "".join(row.replace("17", "").strip() for row in rows) == name


def test_the_time_left_is_known_from_the_first_step_on() -> None:
    left = TimeLeft()
    assert left.after(0, 10, 100.0) == ""
    assert left.after(1, 10, 102.0) == "0:00:18 left"
    assert left.after(5, 10, 1100.0) == "0:16:40 left"
    assert left.after(0, 4, 1100.0) == ""  # another phase
    assert left.after(2, 4, 8300.0) == "2:00:00 left"
    assert left.after(3, None, 8300.0) == ""


def test_what_was_done_before_takes_no_time() -> None:
    left = TimeLeft()
    assert left.after(90, 100, 7.0) == ""
    assert left.after(91, 100, 8.0) == "0:00:09 left"


def test_numbers_stand_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().table((Column("a"), Column("n", "right")), [("x", "5"), ("longer", "1,234")])
    assert lines(capsys) == ["  a           n", "  x           5", "  longer  1,234"]


def test_an_empty_column_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().table((Column("a"), Column("b"), Column("c")), [("1", "", StyledText("3", "red"))])
    assert lines(capsys) == ["  a  c", "  1  3"]


def test_a_quiet_screen_prints_only_json(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(quiet=True)
    screen.line("text")
    screen.facts({"a": "b"})
    screen.table((Column("a"),), [("1",)])
    screen.json({"a": 1})
    assert lines(capsys) == ["{", ' "a": 1', "}"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 k"),
        (99_949, "99.9 k"),
        (99_951, "100 k"),
        (884_736, "885 k"),
        (999_499, "999 k"),
        (999_500, "1.00 M"),
        (12_340_000, "12.3 M"),
        (4_100_000_000, "4.10 G"),
        (5e15, "5000 T"),
        (None, "?"),
    ],
)
def test_amounts_have_three_figures(count: float | None, text: str) -> None:
    assert amount(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(96, "96 B"), (241_000, "241 KB"), (1_834_567, "1.83 MB")]
)
def test_sizes_have_three_figures(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.99999, "99.9 %"),
        (1e-9, "0.1 %"),
        (0.5, "50.0 %"),
        (1.269, "126.9 %"),
    ],
)
def test_a_share_is_all_or_nothing_only_where_it_is(share: float, text: str) -> None:
    assert percent(share) == text


def test_other_words_for_numbers() -> None:
    assert aligned(None) == "-"
    assert [aligned(x) for x in (0.0, -5.6449, 1e-9, 2e6)] == [
        "0.000",
        "-5.645",
        "1.0e-09",
        "2.0e+06",
    ]
    assert plural(1, "node") == "1 node"
    assert plural(1200, "batch", "batches") == "1,200 batches"


def in_terminal(columns: int, folder: Path, *words: str) -> str:
    """What a command prints in a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-m", "qir", *words],
        cwd=folder,
        env=environment | {"TERM": "xterm"},
        stdin=follower,
        stdout=follower,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        os.close(follower)
        parts = []
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # the terminal is gone with its last user
                break
            if not part:
                break
            parts.append(part)
        os.close(leader)
        assert running.stderr is not None
        assert running.stderr.read() == b""
    return b"".join(parts).decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize(
    "command",
    [
        "show quantized.onnx",
        "show model.onnx",
        "show quantized.onnx --node relu1",
        "plan model.onnx",
        "verify model.onnx",
        "run model.onnx --data samples.npy",
        "doctor",
    ],
)
def test_what_is_printed_fits_a_terminal(folder: Path, columns: int, command: str) -> None:
    text = in_terminal(columns, folder, *command.split())
    assert "\x1b[" in text, "a terminal has some colour"
    wide = [line for line in plain(text).splitlines() if len(line) > columns]
    assert not wide, f"{columns}: {wide}"
    assert plain(text).strip()


def test_a_wide_terminal_shows_what_a_pipe_gets(folder: Path) -> None:
    shown = in_terminal(400, folder, "show", "quantized.onnx")
    piped = subprocess.run(
        [sys.executable, "-m", "qir", "show", "quantized.onnx"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "\x1b" not in piped
    assert [line.rstrip() for line in plain(shown).splitlines()] == piped.splitlines()


def test_integers_are_shown_with_all_their_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = parse("""
graph main {
  %x = input() : 1x4xf32
  %q = quantize(%x) : 1x4x!quant.uniform<u16:f32, 0.125:41933>
  output(q=%q)
}
""")
    save(graph, tmp_path / "wide.qir")
    np.save(tmp_path / "x.npy", np.array([[0, 1e5, -1e5, 3]], np.float32))
    shown = qir("show", tmp_path / "wide.qir")
    assert shown.status == 0, shown
    assert "0.125:41933" in shown.out
    ran = qir("run", tmp_path / "wide.qir", "--data", tmp_path / "x.npy")
    assert ran.status == 0, ran
    assert " 65535 " in ran.out, ran
    _show_differences(
        Screen(), ("a", "b"), "1 sample", [OutputDifference("q", 4, 1, 65533.0, 65533.0)]
    )
    assert capsys.readouterr().out.split().count("65533") == 2
    assert span((1234567, 7654321)) == "2 in 1234567..7654321"
    assert span((1234567,)) == "1234567"
    assert [number_text(v, 3) for v in (-41933.0, 0.12345, None, 1e300)] == [
        "-41933",
        "0.123",
        "-",
        "1e+300",
    ]
