"""LSTM and GRU layers against their formulas in float64."""

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels._cpu import EXTERNAL, Plan

from .one import ISAS

Tensor = NDArray[np.float32]
Wide = NDArray[np.float64]


def logistic(x: Wide) -> Wide:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm_step(sums: Wide, rest: Wide, c: Wide, peephole: Wide | None) -> tuple[Wide, Wide]:
    i, o, f, g = np.split(sums + rest, 4, axis=1)
    of_i, of_o, of_f = np.zeros(3) if peephole is None else np.split(peephole, 3)
    c = logistic(f + of_f * c) * c + logistic(i + of_i * c) * np.tanh(g)
    return logistic(o + of_o * c) * np.tanh(c), c


def run(
    op: str,
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    start: tuple[Tensor, ...],
    *,
    isa: str,
    threads: int = 1,
    back: bool = False,
    batch_first: bool = False,
    reset_after: bool = False,
    peephole: Tensor | None = None,
) -> list[Tensor]:
    w, r, bias = weights
    ways, hidden = w.shape[0], r.shape[2]
    batch, steps = x.shape[:2] if batch_first else x.shape[1::-1]
    y = (batch, steps, ways, hidden) if batch_first else (steps, ways, batch, hidden)
    state = (batch, ways, hidden) if batch_first else (ways, batch, hidden)
    outs = [np.zeros(y, np.float32), *(np.zeros(state, np.float32) for _ in range(2))]
    arrays = [x, *outs, *start]
    plan = Plan(0, [(EXTERNAL, a.nbytes) for a in arrays], isa=isa)
    plan.recurrent(
        "layer",
        0,
        1,
        2,
        3,
        w,
        r,
        bias,
        op=op,
        steps=steps,
        batch=batch,
        h0=4 if start else None,
        c0=5 if len(start) > 1 else None,
        back=back,
        batch_first=batch_first,
        reset_after=reset_after,
        peephole=None if peephole is None else peephole.reshape(-1),
    )
    plan.run(arrays, threads=threads)
    return outs if op == "lstm" else outs[:2]


def drawn(
    op: str, seed: int, ways: int, steps: int, batch: int, width: int, hidden: int
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    rng = np.random.default_rng(seed)
    rows = (4 if op == "lstm" else 3) * hidden

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        return rng.normal(0, scale, shape).astype(np.float32)

    weights = (
        some(ways, rows, width, scale=0.7),
        some(ways, rows, hidden, scale=1 / np.sqrt(hidden)),
        some(ways, 2 * rows, scale=0.3),
    )
    start = tuple(some(ways, batch, hidden) for _ in range(2 if op == "lstm" else 1))
    return some(steps, batch, width), weights, start


def expected(
    op: str,
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    start: tuple[Tensor, ...],
    *,
    back: bool = False,
    reset_after: bool = False,
    peephole: Tensor | None = None,
) -> list[Wide]:
    """The layer as ONNX writes it, in float64; x is [steps, batch, width]."""
    w, r, bias = (a.astype(np.float64) for a in weights)
    ways, steps = w.shape[0], x.shape[0]
    rows, hidden = w.shape[1], r.shape[2]
    y = np.zeros((steps, ways, x.shape[1], hidden))
    ends: list[list[Wide]] = [[], []]
    for way in range(ways):
        h = start[0][way].astype(np.float64)
        c = start[-1][way].astype(np.float64)
        order = range(steps)
        for t in reversed(order) if (way == 1 or back) else order:
            sums = x[t].astype(np.float64) @ w[way].T + bias[way, :rows]
            shift = bias[way, rows:]
            if op == "lstm":
                seen = None if peephole is None else peephole[way].astype(np.float64)
                h, c = lstm_step(sums, h @ r[way].T + shift, c, seen)
            else:
                z, q, n = (slice(i * hidden, (i + 1) * hidden) for i in range(3))
                rest = h @ r[way].T + shift
                update, reset = logistic(sums[:, z] + rest[:, z]), logistic(sums[:, q] + rest[:, q])
                inner = rest[:, n] if reset_after else (reset * h) @ r[way][n].T + shift[n]
                fresh = np.tanh(sums[:, n] + (reset * inner if reset_after else inner))
                h = (1 - update) * fresh + update * h
            y[t, way] = h
        ends[0].append(h)
        ends[1].append(c)
    return [y, np.stack(ends[0]), np.stack(ends[1])][: 3 if op == "lstm" else 2]


SIZES = [(1, 3, 2, 5, 7), (2, 5, 3, 10, 33), (1, 2, 1, 64, 128), (2, 1, 1, 1, 1)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["lstm", "gru"])
@pytest.mark.parametrize("sizes", SIZES)
def test_layers_compute_their_formulas(
    isa: str, op: str, sizes: tuple[int, int, int, int, int]
) -> None:
    x, weights, start = drawn(op, 3, *sizes)
    for back in (False, True) if sizes[0] == 1 else (False,):
        for after in (False, True) if op == "gru" else (False,):
            got = run(op, x, weights, start, isa=isa, back=back, reset_after=after)
            wanted = expected(op, x, weights, start, back=back, reset_after=after)
            for mine, theirs in zip(got, wanted, strict=True):
                near = np.spacing(np.abs(theirs).astype(np.float32))
                assert (np.abs(mine.astype(np.float64) - theirs) <= 0.51 * near).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", SIZES)
def test_peepholes_see_the_old_state_and_the_new_one(
    isa: str, sizes: tuple[int, int, int, int, int]
) -> None:
    x, weights, start = drawn("lstm", 5, *sizes)
    peephole = np.random.default_rng(6).normal(size=(sizes[0], 3 * sizes[-1])).astype(np.float32)
    got = run("lstm", x, weights, start, isa=isa, threads=2, peephole=peephole)
    wanted = expected("lstm", x, weights, start, peephole=peephole)
    for mine, theirs in zip(got, wanted, strict=True):
        near = np.spacing(np.abs(theirs).astype(np.float32))
        assert (np.abs(mine.astype(np.float64) - theirs) <= 0.51 * near).all()


@pytest.mark.parametrize("op", ["lstm", "gru"])
def test_every_instruction_set_and_thread_count_gives_the_same_bytes(op: str) -> None:
    x, weights, start = drawn(op, 7, 2, 9, 3, 21, 45)
    first = run(op, x, weights, start, isa="scalar")
    for isa in ISAS:
        for threads in (1, 2):
            again = run(op, x, weights, start, isa=isa, threads=threads)
            assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), isa


@pytest.mark.parametrize("op", ["lstm", "gru"])
def test_batch_first_is_the_same_layer_with_axes_swapped(op: str) -> None:
    x, weights, start = drawn(op, 9, 2, 4, 3, 6, 8)
    plain = run(op, x, weights, start, isa=ISAS[0])
    moved = tuple(np.ascontiguousarray(s.swapaxes(0, 1)) for s in start)
    y, *ends = run(
        op, np.ascontiguousarray(x.swapaxes(0, 1)), weights, moved, isa=ISAS[0], batch_first=True
    )
    assert np.array_equal(y, np.moveaxis(plain[0], 2, 0))
    for mine, theirs in zip(ends, plain[1:], strict=True):
        assert np.array_equal(mine, theirs.swapaxes(0, 1))


@pytest.mark.parametrize("isa", ISAS)
def test_large_and_odd_numbers_end_as_the_formulas_say(isa: str) -> None:
    x = np.array([[[1e4]], [[-1e4]], [[np.nan]]], np.float32)
    w = np.ones((1, 4, 1), np.float32)
    r, bias = np.zeros((1, 4, 1), np.float32), np.zeros((1, 8), np.float32)
    y = run("lstm", x, (w, r, bias), (), isa=isa)[0].reshape(-1)
    assert y[0] == np.float32(np.tanh(1.0))
    assert y[1] == 0
    assert np.isnan(y[2])


def test_layers_name_weights_that_do_not_fit() -> None:
    x, (w, r, bias), start = drawn("lstm", 1, 1, 2, 1, 3, 4)
    with pytest.raises(ValueError, match="do not fit 4 gates"):
        run("lstm", x, (w, r[:, :8], bias), start, isa="scalar")
    with pytest.raises(ValueError, match="peephole has 4 numbers, not 12"):
        run("lstm", x, (w, r, bias), start, isa="scalar", peephole=np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError, match="known are lstm, gru"):
        run("rnn", x, (w, r, bias), start, isa="scalar")
