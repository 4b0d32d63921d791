"""Files that appear whole, what killed writers leave, and what live ones must keep."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qir.atomic import clear_drafts, replacing, replacing_folder, write_text
from qir.errors import InputError

SEED = random.SystemRandom().randrange(2**32)
START = """\
import os, sys, time
from pathlib import Path
from qir.atomic import replacing
folder = Path(sys.argv[1])
"""
HOLD = f"""{START}
with replacing(folder / "held") as draft:
    draft.write_bytes(b"half")
    print("holding", flush=True)
    sys.stdin.readline()
    draft.write_bytes(b"whole")
"""
LOOP = f"""{START}
name, rounds = sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
for i in range(rounds):
    with replacing(folder / name) as draft, draft.open("wb") as file:
        for _ in range(4):
            file.write(name.encode() * 1000)
            file.flush()
"""


def child(script: str, folder: Path, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(folder), *map(str, words)]
    made = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    made.stdout.readline()  # it has started
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_draft_of_a_killed_writer_goes_at_the_next_write(tmp_path: Path) -> None:
    writer = child(HOLD, tmp_path)
    (draft,) = names(tmp_path)
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    assert names(tmp_path) == [draft]
    write_text(tmp_path / "other", "text")
    assert names(tmp_path) == ["other"]


def test_the_draft_of_a_live_writer_stays(tmp_path: Path) -> None:
    writer = child(HOLD, tmp_path)
    clear_drafts(tmp_path)
    write_text(tmp_path / "other", "text")
    with replacing(tmp_path / "third") as draft:
        draft.write_bytes(b"")
        clear_drafts(tmp_path)  # in the process that writes it, too
    assert len(names(tmp_path)) == 3
    _, said = writer.communicate("\n")
    assert (writer.returncode, said) == (0, "")
    assert names(tmp_path) == ["held", "other", "third"]
    assert (tmp_path / "held").read_bytes() == b"whole"


def test_writers_that_live_never_miss_their_drafts_while_others_are_killed(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    live = [child(LOOP, tmp_path, name, 150) for name in "ab"]
    for _ in range(6):
        killed = child(LOOP, tmp_path, "c", 100_000)
        with pytest.raises(subprocess.TimeoutExpired):
            killed.wait(rng.random() * 0.05)
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
    for writer in live:
        _, said = writer.communicate()
        assert (writer.returncode, said) == (0, "")
    write_text(tmp_path / "last", "")
    assert set(names(tmp_path)) <= {"a", "b", "c", "last"}
    for name in "ab":
        assert (tmp_path / name).read_bytes() == name.encode() * 4000


def test_files_of_others_stay(tmp_path: Path) -> None:
    kept = [".qir-notes.draft", ".held.abcd1234", ".qir-abcd1234.drafts", "qir-abcd1234.draft"]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / ".qir-afolder1.draft").mkdir()
    (tmp_path / ".qir-alink123.draft").symlink_to(tmp_path / kept[0])
    write_text(tmp_path / "new", "")
    assert names(tmp_path) == sorted((*kept, ".qir-afolder1.draft", ".qir-alink123.draft", "new"))


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "x") as draft:
            draft.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    with pytest.raises(InputError, match=r"cannot write .*No such file"):
        write_text(tmp_path / "missing" / "x", "")
    assert names(tmp_path) == []


def test_a_folder_arrives_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    with replacing_folder(folder) as draft:
        (draft / "a").write_text("one")
        assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]

    def interrupted() -> None:
        with replacing_folder(folder) as draft:
            (draft / "a").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert (folder / "a").read_text() == "one"
    with replacing_folder(folder) as draft:
        (draft / "b").write_text("two")
    assert [path.name for path in folder.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    with pytest.raises(InputError, match="cannot write"), replacing_folder(tmp_path / "no" / "x"):
        pass
