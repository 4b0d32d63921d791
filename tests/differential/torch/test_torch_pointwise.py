"""What oneDNN's kernels for torch do after their sums, and on which processors: every byte."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from qir.profiles import Profile, Query, profile
from qir.profiles.kernel_forms import forms_of
from tests.differential.torch.kernels import (
    Asked,
    F,
    Held,
    Product,
    Tally,
    computed,
    engine,
    kind_of,
    of,
    processor,
    product_of,
    random_integers,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named
from tests.overriding import override_profile

from .draws_of_torch import image
from .pointwise_of_torch import ACTIVATIONS, Form, in_engine, made, predicted
from .test_torch_elements import OPS
from .test_torch_products import chained, conv, exact_floats, linear, made_by, pytestmark, summed

__all__ = ["pytestmark"]
NAME, ENGINE = named("pt2e"), named("onednn")
QUERY = {"x": "u8", "w": "i8", "result": "u8"}


def plain(op: str, seed: int) -> Product:
    case = linear(seed, True) if op == "linear" else conv(seed, True, 2)
    return replace(case, relu=False)


def with_summand(op: str, seed: int) -> Product:
    if op == "conv2d":
        return replace(summed(4 * seed + 2), relu=False)
    case, rng = plain(op, seed), np.random.default_rng(seed)
    shape = (case.x.data.shape[0], len(case.w.data))
    scale = F(case.out.scale * F(rng.choice([0.5, 1, 1.5])))
    held = Held(random_integers(rng, "u8", *shape), of("u8", scale, int(rng.integers(0, 255)) | 1))
    return replace(case, summand=held)


def compared(forms: list[Form], wanted: list[np.ndarray], name: str) -> Tally:
    tally = Tally()
    for number, (form, found) in enumerate(zip(forms, wanted, strict=True)):
        tally.add(predicted(form, name), found, f"{form.tail} {number}")
    return tally


def claim(chain: tuple[str, ...], name: str = NAME, *, real: bool = False) -> str:
    found = profile(name).group(chain, Query(chain[0], QUERY), result="real" if real else "codes")
    assert found is not None, chain
    return found.claim


@pytest.mark.parametrize("tail", ["", "relu"])
@pytest.mark.parametrize("op", ["conv2d", "linear"])
def test_summands(op: str, tail: str, vnni: ProcessPoolExecutor) -> None:
    forms = [Form(with_summand(op, seed), tail) for seed in range(24)]
    chain = (op, "add", *((tail,) if tail else ()))
    compared(forms, vnni.submit(made, forms).result(), NAME).within(claim(chain))


@pytest.mark.parametrize(
    ("op", "tail"),
    [
        *((op, tail) for op in ("conv2d", "linear") for tail in ("relu6", "hard_swish", "silu")),
        *(("linear", tail) for tail in ("gelu", "gelu_tanh")),
    ],
)
def test_activations(op: str, tail: str, vnni: ProcessPoolExecutor) -> None:
    few = 48 if tail == "silu" else 16  # of which rounding once is the last bit apart
    forms = [Form(plain(op, seed), tail) for seed in range(few)]
    chain = (op, ACTIVATIONS[tail].op)
    compared(forms, vnni.submit(made, forms).result(), NAME).within(claim(chain))


@pytest.mark.parametrize("tail", ["", "relu"])
@pytest.mark.parametrize("op", ["conv2d", "linear"])
def test_real_results(op: str, tail: str, vnni: ProcessPoolExecutor) -> None:
    forms = [Form(plain(op, seed), tail, real=True) for seed in range(16)]
    chain = (op, tail) if tail else (op,)
    compared(forms, vnni.submit(made, forms).result(), NAME).within(claim(chain, real=True))


@pytest.mark.parametrize("tail", ["leaky_relu", "tanh"])
def test_tails_that_only_engine_onednn_has(tail: str, vnni: ProcessPoolExecutor) -> None:
    cases = [replace(linear(seed, bool(seed & 1)), relu=False) for seed in range(24)]
    if tail == "leaky_relu":  # what is low is a quarter of it
        outs = (of("u8", F(case.out.scale * F(2 / 3)), 41) for case in cases)
        cases = [replace(case, out=out) for case, out in zip(cases, outs, strict=True)]
    forms = [Form(case, tail) for case in cases]
    found = vnni.submit(in_engine, forms).result()
    compared(forms, found, ENGINE).within(claim(("linear", tail), ENGINE))


ISAS = {"amx": "AVX512_CORE_AMX", "avx2": "AVX2", "avx512": "AVX512_CORE"}
"""What oneDNN may take the processor for, by the name that profiles have for it."""


UNSATURATED = "within:1:0.01"
"""To what convolutions are held of which nothing is claimed: they were claimed so much of, until
pairs of terms were tried that leave 16 bits, of which 4 % differ. Here none does."""


def rules_of(name: str, isa: str) -> list[str]:
    """The ops of which a profile says something on that processor alone, of whatever form."""
    held = profile(name)
    rules = [rule for rule in held.rules if isa in rule.when.isa and not rule.when.form]
    return [op for rule in rules for op in rule.ops]


def claimed_of(held: Profile, case: Product) -> str:
    """What a profile claims of a product, whose shapes decide which kernel is taken."""
    types = {"x": kind_of(case.x), "w": kind_of(case.w)}
    forms = forms_of(case.op, types, case.attrs)
    return held.resolve(Query(case.op, QUERY, "channel", case.attrs, forms=forms)).claim


@pytest.mark.parametrize("isa", ISAS)
def test_rules_of_other_processors(isa: str) -> None:
    """Each rule of a processor is compared on oneDNN that takes this one for it. Engine x86 asks
    fbgemm on processors before VNNI: test_torch_older.py."""
    shown = 0
    with processor(ISAS[isa]) as pool:
        for engine in ("pt2e", "x86", "onednn") if isa == "amx" else ("pt2e", "onednn"):
            name = named(engine)
            known = [
                op for op in ("conv1d", "conv2d", "conv3d", "linear") if op in rules_of(name, isa)
            ]
            other = profile(name).on(isa)
            with override_profile(other):
                for op in known:
                    few = 12 if op == "conv3d" else 24
                    cases = [
                        linear(seed, True) if op == "linear" else conv(seed, True, int(op[4]))
                        for seed in range(few)
                    ]
                    if (engine, op) == ("pt2e", "conv3d"):  # no activation follows those
                        cases = [replace(case, relu=False) for case in cases]
                    tallies: dict[str, Tally] = defaultdict(Tally)
                    for case, wanted in zip(cases, made_by(pool, engine, cases), strict=True):
                        tally = tallies[claimed_of(other, case)]
                        tally.see(exact_floats(case), case.out)
                        tally.add(product_of(case, name), wanted, f"{name} {isa} {op}")
                    for claimed, tally in tallies.items():
                        tally.within(UNSATURATED if claimed == "unknown" else claimed)
                    max(tallies.values(), key=lambda t: t.total).rich()
                    shown += 1
    if not shown:  # no rule of its own: the numbers are those of VNNI, but for pairs
        with processor(ISAS[isa]) as pool:
            cases = [linear(seed, True) for seed in range(24)]
            tally = Tally()
            for case, wanted in zip(cases, made_by(pool, "pt2e", cases), strict=True):
                tally.add(product_of(case, NAME), wanted, isa)
            tally.exact()


def test_sums_of_engine_onednn(vnni: ProcessPoolExecutor) -> None:
    cases = [summed(seed) for seed in range(24, 64)]
    tally = Tally()
    for case, wanted in zip(cases, made_by(vnni, "onednn", cases), strict=True):
        tally.add(chained(case, ENGINE), wanted, "a sum")
    tally.within(claim(("conv2d", "add"), ENGINE))


@pytest.mark.parametrize("tail", ["", "_relu"])
@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_numbers_beside_codes(kind: str, op: str, tail: str) -> None:
    """add_scalar and mul_scalar, whose result's numbers torch makes of the operand's."""
    tally, name = Tally(), named("fbgemm")
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        x = image(rng, kind, 3, length)
        number = F(rng.normal() * 2 * 10.0 ** rng.integers(-1, 2))
        with engine("fbgemm"):
            made = getattr(OPS, f"{op}_scalar{tail}")(tensor(x), float(number))
        out = of(kind, F(made.q_scale()), made.q_zero_point())
        operands = {"a": x, "b": Held(np.asarray(number))}
        asked = Asked(op, operands, out, tails=("relu",) if tail else ())
        tally.add(computed(asked, name), taken(made), f"{op} {length}")
    tally.within(profile(name).resolve(Query(op)).claim)
