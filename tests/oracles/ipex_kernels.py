"""Records what kernels of the extension compute that no program of `ipex_programs` has.

    ATEN_CPU_CAPABILITY=avx512_vnni ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI \
        build/oracles/ipex/bin/python -m tests.oracles.ipex_kernels FILE

In the extension's own Python; `make oracle-ipex` does it. Without `ATEN_CPU_CAPABILITY` it records
weight-only layers. A case is arrays under one name; scales
are those of its integers, in the order of the operands and the result last.
"""

# mypy: ignore-errors

from __future__ import annotations

import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import intel_extension_for_pytorch as ipex  # noqa: E402, F401  it registers its kernels
import numpy as np  # noqa: E402
import torch  # noqa: E402
from intel_extension_for_pytorch import quantization  # noqa: E402

F = np.float32
ONLY_PLAIN = os.environ.get("ATEN_CPU_CAPABILITY") is None
"""Weight-only layers compute in integers where the processor has AVX512-FP16, and may show it."""
KERNELS = torch.ops.ipex


def coded(quantized, scale, zero=0):
    return torch._make_per_tensor_quantized_tensor(
        torch.from_numpy(quantized), float(scale), int(zero)
    )


def signed(rng, *shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def scales(rng, plan, count):
    """Powers of two, of which halves come, or any."""
    if plan == "dyadic":
        return 2.0 ** -rng.integers(2, 5, count)
    return rng.uniform(0.02, 0.2, count).astype(F).astype(np.float64)


def bags(rng, plan):
    """Sums of rows; of bags of nothing one run gives zeros and another what was in memory."""
    for number, width in enumerate((1, 3, 16, 33, 64, 70, 128)):
        (w_scale,) = scales(rng, plan, 1)
        w_scale *= 1.5 if plan == "dyadic" else 1
        y_scale = w_scale / 1.5  # of any scale, halves that one factor makes and two do not
        y_scale *= 2 if number % 2 else 1
        w, indices = signed(rng, 24, width), rng.integers(0, 24, 60)
        offsets = np.array([0, 1, 3, 4, 8, 9, 11, 25, 26, 27, 28, 29, 30, 31, 50])
        yield f"bag_{width}", w, indices, offsets, w_scale, float(F(y_scale))
    # A row alone is moved where the result's scale is greater by 0.0001 at most.
    w_scale, y_scale = (2.0**-13, 2.0**-12.5) if plan == "dyadic" else (0.5, 0.5 + 2.0**-12)
    w = signed(np.random.default_rng(11), 24, 16)
    yield "bag_close", w, np.arange(20), np.array([0, 1, 2, 4, 5, 8]), w_scale, float(F(y_scale))


def bag(w, indices, offsets, w_scale, y_scale):
    given = coded(w, w_scale), torch.from_numpy(indices), torch.from_numpy(offsets)
    return KERNELS.qembedding_bag(*given, False, False, y_scale, 0, torch.qint8)


def merged(w, indices, offsets, w_scale, y_scale):
    """The same sums behind rows of another table."""
    dense = coded(np.zeros((len(offsets), w.shape[1]), np.int8), w_scale)
    given = [coded(w, w_scale)], [torch.from_numpy(indices)], [torch.from_numpy(offsets)]
    made = KERNELS.qmerged_embeddingbag_cat(*given, dense, y_scale, 0, torch.qint8)
    return made[:, w.shape[1] :]


def interactions(rng, plan):
    """Several tables' rows, and the scale of what they make of each other."""
    for width, count in ((128, 27), (128, 4), (64, 3), (33, 5), (7, 4), (1, 3)):
        steps = scales(rng, plan, count)
        low = 2.0 ** np.round(np.log2(width) / 2)
        y_scale = float(F(low if plan == "dyadic" else low * rng.uniform(0.25, 0.5)))
        if plan == "any" and count < 6:  # halves of products of any scale
            steps[:] = steps[0]
            y_scale = float(F(steps[0] * steps[0])) * 2.0 ** np.round(np.log2(width**0.5))
        quantized = signed(rng, count, 12, width)
        if plan == "dyadic":  # in three rows of four integers small enough that sums come to halves
            steps, y_scale = np.where(steps < 0.25, 0.75, 1.5), 1.5
            steps[0] = 0.75
            small = quantized // int(14 * width**0.25)
            quantized = np.where(np.arange(12).reshape(1, -1, 1) % 4, small, quantized).astype(
                np.int8
            )
        quantized = quantized // 9 if plan == "any" and count < 6 else quantized
        yield f"interaction_{width}_{count}", quantized, steps, y_scale


def interaction(xs, steps, y_scale):
    given = [coded(x, scale) for x, scale in zip(xs, steps, strict=True)]
    return KERNELS.qinteraction(given, y_scale, 0, torch.qint8)


def layers(rng, plan):
    """Recurrent layers: integers, first state and cell, weights, their scales, biases."""
    for number, ways in enumerate((1, 1, 1, 2)):
        steps, batch, size, hidden = ((1, 8, 3, 1), (9, 5, 33, 20), (6, 4, 64, 70), (5, 3, 17, 16))[
            number
        ]
        scale, zero = F(1 / 128 if plan == "dyadic" else rng.uniform(0.004, 0.02)), 131
        x = rng.integers(0, 256, (steps, batch, size)).astype(np.uint8)
        w, r = signed(rng, ways, 4 * hidden, size), signed(rng, ways, 4 * hidden, hidden)
        units = (rng.uniform(0.5, 2, 4 * hidden) / 64 / np.sqrt(size + hidden)).astype(F)
        bias = (rng.normal(size=(ways, 2, 4 * hidden)) * 0.3).astype(F)
        h, c = (rng.normal(size=(ways, batch, hidden)).astype(F) for _ in range(2))
        parts = {"x": x, "h": h, "c": c, "w": w, "r": r, "units": units, "bias": bias}
        yield f"lstm_{number}", parts | {"scales": [scale, zero]}


def rows_of(quantized, units):
    zeros = torch.zeros(len(units), dtype=torch.long)
    given = torch.from_numpy(quantized), torch.from_numpy(units.astype(np.float64)), zeros
    return torch._make_per_channel_quantized_tensor(*given, 0)


def layer(x, h, c, w, r, units, bias, scales):
    scale, zero = float(scales[0]), int(scales[1])
    weights = []
    for one, other, added in zip(w, r, bias, strict=True):
        weights += [rows_of(one, units), rows_of(other, units), *map(torch.from_numpy, added)]
    states = [torch.from_numpy(h), torch.from_numpy(c)]
    plain = (True, 1, 0.0, False, len(w) == 2, False)
    made = KERNELS.quantized_lstm(
        coded(x, scale, zero), states, weights, *plain, scale, zero, torch.quint8
    )
    return {"y": made[0].int_repr().numpy(), "last": made[1].numpy(), "cell": made[2].numpy()}


def plain_layers(rng, plan):
    """Weight-only layers: bits, terms, the group of a scale, how floats become integers."""
    kinds = [(bits, terms, group, "PER_BATCH_IC_BLOCK_SYM") for bits, terms, group in GROUPS]
    for bits, terms, group, mode in [*kinds, *((8, 192, -1, mode) for mode in MODES)]:
        x = (rng.integers(-254, 255, (5, terms)) / 128).astype(F)
        if plan == "any":
            x = rng.normal(size=(5, terms)).astype(F)
        else:
            x[:, ::32] = 127 / 64  # then halves of a step are ties
        yield f"woq_{bits}_{terms}_{group}_{mode}", x, bits, terms, group, mode


GROUPS = (
    *((8, terms, -1) for terms in (32, 64, 96, 128, 256, 512)),
    *((bits, 256, group) for bits in (8, 4) for group in (32, 64, 128)),
    *((4, terms, -1) for terms in (64, 128, 256)),
)
MODES = ("PER_TENSOR_SYM", "PER_BATCH_SYM", "PER_TENSOR", "PER_BATCH")


def plain_layer(rng, x, bits, terms, group, mode):
    made = torch.nn.Linear(terms, 16).eval()
    with torch.no_grad():
        made.weight.copy_(torch.from_numpy(rng.normal(size=(16, terms)).astype(F)))
        made.bias.copy_(torch.from_numpy(rng.normal(size=16).astype(F)))
    told = quantization.get_weight_only_quant_qconfig_mapping(
        weight_dtype=getattr(quantization.WoqWeightDtype, f"INT{bits}"),
        lowp_mode=quantization.WoqLowpMode.INT8,
        act_quant_mode=getattr(quantization.WoqActQuantMode, mode),
        group_size=group,
    )
    held = quantization.prepare(torch.nn.Sequential(made), told, inplace=False)
    held = quantization.convert(held, inplace=False)
    context = getattr(held, "0")._op_context
    units = context.get_scales().detach().numpy().reshape(16, -1).astype(F)
    zeros = context.get_zero_points()
    zeros = np.zeros(units.shape, F) if zeros is None else zeros.detach().numpy().reshape(16, -1)
    each = terms // units.shape[1]
    full, shift = (np.repeat(a, each, axis=1) for a in (units, zeros))
    ends = (-128, 127) if bits == 8 else (0, 15)
    w = np.clip(np.rint(made.weight.detach().numpy() / full) + shift, *ends)
    with torch.no_grad():
        y = held(torch.from_numpy(x)).numpy()
    parts = {
        "x": x,
        "w": w.astype(np.int8 if bits == 8 else np.uint8),
        "bias": made.bias.detach().numpy(),
    }
    return parts | {"units": units, "zeros": zeros.astype(np.int64), "y": y}


def padded(rng):
    """Images with rows and columns around them that are those of the other side."""
    for storage, kind in (("u8", np.uint8), ("i8", np.int8)):
        x = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, (2, 3, 6, 5)).astype(kind)
        y = KERNELS.qpad_circular(coded(x, 0.25, 7), [1, 2, 3, 1]).int_repr().numpy()
        yield f"pad_{storage}", {"x": x, "y": y}


def recorded():
    if ONLY_PLAIN:
        return plain_recorded()
    found = {}
    for plan in ("dyadic", "any"):
        rng = np.random.default_rng(7 if plan == "any" else 8)
        for name, w, indices, offsets, w_scale, y_scale in bags(rng, plan):
            asked = {"w": w, "indices": indices, "offsets": offsets, "scales": [w_scale, y_scale]}
            for kind, kernel in (("", bag), ("merged_", merged)):
                y = kernel(w, indices, offsets, w_scale, y_scale).int_repr().numpy()
                found[f"{kind}{name}.{plan}"] = asked | {"y": y}
        for name, xs, steps, y_scale in interactions(rng, plan):
            y = interaction(xs, steps, y_scale).int_repr().numpy()
            found[f"{name}.{plan}"] = {"xs": xs, "scales": [*steps, y_scale], "y": y}
        found |= dict(padded(rng)) if plan == "any" else {}
        for name, parts in layers(rng, plan):
            found[f"{name}.{plan}"] = parts | layer(**parts)
    return found


def plain_recorded():
    found = {}
    for plan in ("dyadic", "any"):
        rng = np.random.default_rng(9 if plan == "any" else 10)
        for name, *asked in plain_layers(rng, plan):
            with torch.no_grad():
                found[f"{name}.{plan}"] = plain_layer(rng, *asked)
    return found


def main(path):
    torch.set_num_threads(1)
    made = {
        f"{n}/{part}": np.asarray(a) for n, case in recorded().items() for part, a in case.items()
    }
    if os.path.exists(path):
        with np.load(path) as held:
            same = sum(n in held and np.array_equal(held[n], a) for n, a in made.items())
            print(f"{same} of {len(made)} arrays are those that were here")
            if same == len(made) == len(held.files):
                return
    np.savez_compressed(path, **made)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # the extension's threads may wait for each other at the end
