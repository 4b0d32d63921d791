"""Records small programs and what a version of torch computed of them, by its tests.

For each version: an environment with that torch, QIR and the packages of its tests, and in it
python -m tests.oracles.torch_vectors
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VECTORS = Path(__file__).parents[1] / "differential" / "vectors" / "torch"
REALS, MOST, EACH = 240, 3000, 3
F = np.float32
Check = Callable[[], None]


def random_floats(seed: int, scale: np.float32) -> NDArray[np.float32]:
    """Random numbers, halves of integers, and what 32 bits do not hold."""
    rng = np.random.default_rng(seed)
    ties = (rng.integers(-300, 300, REALS) + F(0.5)) * scale
    far = [np.nan, np.inf, -np.inf, *(scale * F(2.0) ** rng.uniform(28, 40, 5)), -1e30, 1e30]
    return np.concatenate([ties, rng.normal(size=REALS) * 90 * scale, far]).astype(F)


def conversions() -> Iterator[tuple[str, bool, np.float32, int, NDArray[np.float32]]]:
    """Storage, whether there is a scale for each channel, scale, zero point and floats."""
    for k, kind in enumerate(("u8", "i8", "i32")):
        for seed in range(6):
            rng = np.random.default_rng([seed, k])
            scale = F(0.5) ** seed if seed % 2 else F(np.exp(rng.normal()))
            low = 0 if kind == "u8" else -128
            zero = int(rng.integers(low, low + 256))
            yield kind, bool(seed // 2 % 2), scale, zero, random_floats(seed, scale)


def converted(
    kind: str, many: bool, scale: np.float32, zero: int, x: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """The bytes of the integers that torch makes of floats."""
    import torch

    storage = {"u8": torch.quint8, "i8": torch.qint8, "i32": torch.qint32}[kind]
    given = torch.from_numpy(x)
    if many:
        scales = torch.full((len(x),), float(scale), dtype=torch.float64)
        zeros = torch.full((len(x),), zero, dtype=torch.int64)
        made = torch.quantize_per_channel(given, scales, zeros, 0, storage)
    else:
        made = torch.quantize_per_tensor(given, float(scale), zero, storage)
    return np.asarray(made.int_repr().numpy()).view(np.uint8)


def checks() -> Iterator[Check]:
    """Comparisons whose programs are recorded."""
    from tests.differential.torch import test_torch_depthwise as depth
    from tests.differential.torch import test_torch_elements as elements
    from tests.differential.torch import test_torch_layers as layers
    from tests.differential.torch import test_torch_means as means
    from tests.differential.torch import test_torch_scales as scales
    from tests.differential.torch.kernels import processor
    from tests.differential.torch.test_torch_products import test_linear_is_the_engines as linear

    for engine in ("fbgemm", "qnnpack"):
        for kind in ("u8", "i8"):
            added = elements.test_sums_and_products_of_codes_are_torchs
            yield from (partial(added, engine, "add", kind, relu) for relu in (False, True))
            yield partial(elements.test_bounds_are_torchs, engine, kind)
            yield partial(means.test_ties_of_parts_are_torchs, engine, kind)
            yield partial(means.test_ties_of_means_are_torchs, engine, kind)
            yield partial(means.test_means_along_lines_and_over_volumes_are_torchs, engine, kind)
            yield partial(means.test_a_mean_in_another_map_is_torchs_mean_requantized, engine, kind)
            for op in scales.UNARY:
                yield partial(unary, engine, op, kind)
    yield partial(means.test_means_over_images_are_those_of_qnnpack, True)
    spread = scales.SPREADS[0]
    yield partial(scales.test_operands_of_two_shapes_are_left_to_vectors_by_qnnpack, spread)
    for kind in ("u8", "i8"):
        for last in (False, True):
            yield partial(elements.test_average_pools_are_torchs, kind, last)
            yield partial(elements.test_global_means_are_torchs, kind, last)
            yield partial(elements.test_concat_is_torchs, kind, last, False, "fbgemm")
            yield partial(layers.test_resizes_are_torchs, "bilinear", kind, last, "fbgemm")
        yield partial(elements.test_means_of_parts_and_of_volumes_are_torchs, kind)
        yield partial(scales.test_sums_beyond_32_bits_turn_round_after_a_relu, kind, False)
        joined = scales.test_concat_along_all_axes_but_the_last_of_images
        yield partial(joined, kind, "channels of one")
    for rank in (2, 3):
        yield partial(depth.test_depthwise_layers_are_fbgemms, rank, False)
    with processor("AVX512_CORE_VNNI") as pool:
        for many in (False, True):
            yield partial(linear, "onednn", many, pool)


def unary(engine: str, op: str, kind: str) -> None:
    """A function of integers, where the engine has it."""
    from tests.differential.torch import test_torch_scales as scales

    scales.functions(engine, op, kind, 24)


def record() -> None:
    """Writes conversions, and programs that the profiles of torch 2.13 do not foresee."""
    import torch

    from qir.ir.file import graph_bytes
    from qir.reference.interpreter import run
    from tests.mutation.replay import Replay

    rows: list[list[object]] = []
    held: dict[str, Any] = {}
    count = Counter[tuple[str, ...]]()
    for check in checks():
        replay = Replay()
        try:
            replay.add(check)
        except Exception as error:  # a comparison that an engine does not have
            print(check, repr(error)[:160])
            continue
        for ran in sorted(replay.exact, key=lambda r: sum(a.nbytes for a in r.fed.values())):
            name, wanted = ran.graph.profile, ran.right if ran.wanted is None else ran.wanted
            node = ran.graph.outputs["y"].node
            data = graph_bytes(ran.graph)
            size = len(data) + wanted.nbytes + sum(a.nbytes for a in ran.fed.values())
            layout = str(node.attrs.get("layout"))
            row = (name, node.op, str(wanted.dtype), layout, str(wanted.ndim))
            (found,) = run(ran.graph, ran.fed, profile=name.replace("2.15", "2.13")).values()
            if size > 3 * MOST or count[row] >= EACH or np.array_equal(found, wanted):
                continue
            count[row] += 1
            key = f"p{len(rows)}"
            rows.append([name.rpartition(".")[2], node.op, [*ran.fed]])
            held[key] = np.frombuffer(data, np.uint8)
            held[f"{key}.y"] = wanted
            held |= {f"{key}.{slot}": array for slot, array in ran.fed.items()}
    for number, case in enumerate(conversions()):
        held[f"c{number}"] = converted(*case)
    version = torch.__version__.partition("+")[0]
    VECTORS.mkdir(exist_ok=True)
    path = VECTORS / f"{version}.npz"
    np.savez_compressed(path, rows=np.array(json.dumps(rows)), **held)
    print(path.stat().st_size, len(rows), count)


if __name__ == "__main__":
    record()
