"""One step as a function of arrays: a plan of that step alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qir._kernels._cpu import EXTERNAL, Plan, caps

CODES: dict[str, type[np.uint8 | np.int8]] = {"u8": np.uint8, "i8": np.int8}
BOUNDS = {"u8": (0, 255), "i8": (-128, 127)}
ISAS = caps()


def one(
    kind: str,
    inputs: Sequence[NDArray[np.generic]],
    shape: Sequence[int],
    dtype: type[np.generic],
    /,
    *constants: object,
    isa: str | None = None,
    threads: int = 1,
    **options: object,
) -> NDArray[np.generic]:
    """The result, of `shape` and `dtype`, of the step that the plan's method `kind` adds."""
    y = np.zeros(tuple(shape), dtype)
    y.reshape(-1).view(np.uint8)[...] = 0xA5  # what a step leaves out is seen
    arrays = [*(np.ascontiguousarray(x) for x in inputs), y]
    plan = Plan(0, [(EXTERNAL, array.nbytes) for array in arrays], isa=isa)
    getattr(plan, kind)("step", *range(len(arrays)), *constants, **options)
    plan.run(arrays, threads=threads)
    return y


def random_integers(
    rng: np.random.Generator, kind: str, shape: Sequence[int], ends: bool = False
) -> NDArray[np.uint8 | np.int8]:
    """Random integers; with `ends` only the least and the greatest."""
    low, high = BOUNDS[kind]
    values = rng.integers(low, high + 1, tuple(shape))
    if ends:
        values = np.where(values > (low + high) // 2, high, low)
    return values.astype(CODES[kind])
