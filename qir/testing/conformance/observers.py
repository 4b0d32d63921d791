"""What every observer is held to: its range follows from the data, not from how they came."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qir.calibration import Key, Observer, Range, Seen, Statistics, Summary
from qir.errors import DataError, UsageError
from qir.testing.conformance.checklist import Check, Checklist, demand, refusing

Batches = Sequence[NDArray[np.float32]]
_T = Key("t")


def check_observer(given: Observer | type[Observer]) -> tuple[Check, ...]:
    """Holds an observer to its contract, on tensors of many kinds."""
    observer = given() if isinstance(given, type) else given
    checks = Checklist()
    checks.check("has a name and a parameter that its bounds allow", partial(_form, observer))
    for name, look in (
        ("gives a range, no wider than what was seen", _inside),
        ("same data, same range", _same),
        ("the order of the batches does not matter", _order),
        ("merged statistics give the same range", _merged),
        ("leaves the statistics as they are", _untouched),
        ("refuses a tensor without numbers", _nothing),
        ("knows channels, or says that it does not", _channels),
    ):
        checks.check(name, partial(look, observer))
    return checks.told()


def _form(observer: Observer) -> str:
    kind = type(observer)
    demand(isinstance(getattr(kind, "name", None), str), f"{kind.__name__} has no name")
    demand(":" not in kind.name and kind.name, f"{kind.name!r} is no name of a range rule")
    if kind.parameter is None:
        return "no parameter"
    default, most = kind.parameter
    demand(0 < default <= most, f"default {default:g} is not more than 0 and at most {most:g}")
    return f"{kind.name}:{default:g}, at most {most:g}"


def _data() -> Iterator[tuple[str, Batches]]:
    """Tensors of many kinds, in batches."""
    rng = np.random.default_rng(0)

    def cut(values: NDArray[np.generic]) -> Batches:
        return np.array_split(values.astype(np.float32), 5)

    yield "normal", cut(rng.normal(0, 2, 500))
    yield "positive", cut(rng.exponential(3, 500))
    yield "negative", cut(-rng.exponential(3, 500) - 1)
    yield "far from zero", cut(rng.normal(1000, 1, 500))
    yield "an outlier", cut(np.append(rng.normal(0, 1, 499), 1e4))
    yield "zeros", cut(np.zeros(50))
    yield "one number", cut(np.full(50, 3.25))
    yield "mostly zeros", cut(np.where(rng.random(500) < 0.95, 0, rng.normal(0, 1, 500)))
    yield "tiny", cut(rng.normal(0, 1e-38, 500))
    yield "huge", cut(rng.normal(0, 1e37, 500))
    yield "few", [np.array([1.5], np.float32), np.array([-2.0], np.float32)]
    yield "infinities", cut(np.append(rng.normal(0, 1, 498), [np.inf, -np.inf]))


def _statistics(batches: Batches, order: Sequence[int], data: str = "data") -> Statistics:
    out = Statistics("model")
    for number in order:
        with out.batch(data, number) as batch:
            batch.update("t", batches[number])
    return out


def _range(
    observer: Observer, found: Statistics, levels: int = 256, symmetric: bool = False
) -> Range:
    parameter = math.nan if observer.parameter is None else observer.parameter.default
    log = found.log(_T) if observer.ordered else None
    low, high = observer.range(Seen(found[_T], parameter, levels, symmetric, log))
    return Range(np.asarray(low, np.float32), np.asarray(high, np.float32))


def _each(observer: Observer, other: Callable[[Batches], Statistics], what: str) -> str:
    """Demands that statistics that came in another way give the same range."""
    count = 0
    for name, batches in _data():
        a = _range(observer, _statistics(batches, range(len(batches))))
        b = _range(observer, other(batches))
        same = a.low.tobytes() == b.low.tobytes() and a.high.tobytes() == b.high.tobytes()
        demand(same, f"{name}: {a.low}..{a.high}, and {b.low}..{b.high} {what}")
        count += 1
    return f"{count} tensors"


def _inside(observer: Observer) -> str:
    count = 0
    for name, batches in _data():
        found = _statistics(batches, range(len(batches)))
        for levels, symmetric in ((256, False), (256, True), (16, False)):
            low, high = _range(observer, found, levels=levels, symmetric=symmetric)
            said = f"{name}: {low}..{high}"
            demand(low.shape == high.shape == (), f"{said} is not one number at each end")
            demand(np.isfinite(low) and np.isfinite(high), f"{said} is not finite")
            demand(low <= high, f"{said} is upside down")
            least, most = (float(end) for end in found[_T].extremes)
            if symmetric:
                least, most = -max(-least, most), max(-least, most)
            wide = f"{said} is wider than {least:g}..{most:g}, which was seen"
            # A rule may add zero to the range, as every quantized range holds it.
            is_inside = min(least, 0) <= low and high <= max(most, 0)
            demand(is_inside or observer.widens, wide)
            count += 1
    return f"{count} ranges"


def _same(observer: Observer) -> str:
    return _each(observer, lambda b: _statistics(b, range(len(b))), "the second time")


def _order(observer: Observer) -> str:
    return _each(
        observer, lambda b: _statistics(b, range(len(b))[::-1]), "with the batches turned round"
    )


def _merged(observer: Observer) -> str:
    def merged(batches: Batches) -> Statistics:
        odd = _statistics(batches, range(1, len(batches), 2))
        even = _statistics(batches, range(0, len(batches), 2))
        odd.merge(even)
        return odd

    return _each(observer, merged, "from two halves")


def _untouched(observer: Observer) -> None:
    for name, batches in _data():
        found = _statistics(batches, range(len(batches)))
        _range(observer, found)
        same = found == _statistics(batches, range(len(batches)))
        demand(same, f"{name}: the statistics have changed")


def _nothing(observer: Observer) -> None:
    nothing = [np.full(3, np.nan, np.float32)]
    with refusing("a tensor of NaN") as raised:
        _range(observer, _statistics(nothing, [0]))
    demand(isinstance(raised.error, DataError), "a tensor of NaN is refused, but by no DataError")


def _channels(observer: Observer) -> str:
    if observer.ordered:
        return "it reads the log of whole tensors"
    summary = Summary(1)
    summary.update(np.array([[1.0, -2.0, 3.0], [4.0, 0.5, -6.0]], np.float32))
    default = observer.parameter.default if observer.parameter else 1.0
    try:
        low, high = observer.range(Seen(summary, default))
    except UsageError:
        return "whole tensors only"
    shapes = np.shape(low), np.shape(high)
    demand(shapes == ((3,), (3,)), f"a summary of 3 channels gives ends of shapes {shapes}")
    return "channels too"


__all__ = ["check_observer"]
