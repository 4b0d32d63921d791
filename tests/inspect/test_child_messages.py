"""Messages between a program and its child come out as they went in, and run nothing."""

from __future__ import annotations

import io
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

from qir.inspect.pipe import Plain, ask, close, pack, receive, serve


def test_values_come_out_as_they_went_in() -> None:
    value: Plain = {
        "a": (1, 2.5, True, None, "text", -math.inf),
        "b": [{"array": 1}, {}, ()],
        "c": ("tuple", ["x"]),
        "": 0.1 + 0.2,
    }
    stream = io.BytesIO(pack(value) + pack([]))
    assert receive(stream) == value
    assert receive(stream) == []
    with pytest.raises(EOFError):
        receive(stream)


@pytest.mark.parametrize("kind", ["u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?"])
def test_arrays_keep_bytes_type_and_shape(kind: str) -> None:
    rng = np.random.default_rng(3)
    for shape in ((), (0,), (3, 1, 4)):
        array = np.frombuffer(rng.bytes(8 * math.prod(shape)), "u1").astype(kind)
        array = array[: math.prod(shape)].reshape(shape)
        back = receive(io.BytesIO(pack((array, array.T))))
        assert isinstance(back, tuple)
        for found, wanted in zip(back, (array, array.T), strict=True):
            assert isinstance(found, np.ndarray)
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape
            assert found.tobytes() == wanted.tobytes()


def test_what_is_cut_short_ends_and_what_is_no_plain_value_is_refused() -> None:
    whole = pack([1, np.zeros(3)])
    for count in range(len(whole)):
        with pytest.raises(EOFError):
            receive(io.BytesIO(whole[:count]))
    with pytest.raises(TypeError, match="object goes through no pipe"):
        pack([object()])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="allow_pickle=False"):
        pack(np.array([object()]))
    with pytest.raises((ValueError, EOFError, MemoryError, OverflowError)):
        receive(io.BytesIO(pickle.dumps([1, 2, 3])))


def test_what_is_refused_is_answered_and_a_fault_of_its_own_ends_a_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(asked: Plain) -> Plain:
        if asked == "no":
            raise ValueError("no such\nkernel")
        if asked == "fault":
            raise AttributeError("misspelt")
        return [asked]

    def answers(*asked: Plain) -> io.BytesIO:
        given, made = io.BytesIO(b"".join(map(pack, asked))), io.BytesIO()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(given))
        serve(answer, made)
        made.seek(0)
        return made

    made = answers(1, "no", "yes")
    assert [receive(made) for _ in "123"] == [[1], "ValueError: no such kernel", ["yes"]]
    with pytest.raises(EOFError):
        receive(made)
    with pytest.raises(AttributeError):
        answers("fault")


def test_a_child_is_asked_until_it_is_closed_and_one_that_ended_is_an_eof() -> None:
    program = (
        "import sys; from qir.inspect.pipe import serve\n"
        "serve(lambda asked: [asked, 1 // asked], sys.stdout.buffer, (ZeroDivisionError,))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert ask(child, 1) == [1, 1]
        assert str(ask(child, 0)).startswith("ZeroDivisionError: ")
        assert ask(child, 2) == [2, 0]
        close(child)
        assert child.returncode == 0
    with subprocess.Popen(
        [sys.executable, "-c", "pass"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        with pytest.raises(EOFError):
            ask(child, 1)
