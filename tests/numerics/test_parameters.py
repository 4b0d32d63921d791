"""Parameters of methods: what a file may say, and that they are those which are executed."""

import inspect

import numpy as np
import pytest

import qir
from qir.errors import ProfileError
from qir.ir.ops import spec
from qir.numerics import MethodField
from qir.profiles import parse, profile
from qir.profiles.methods import fault, tabled
from qir.profiles.profile import Profile, ProfileHead, RuleEntry, When
from tests.overriding import override_profile

HEAD = 'name = "p"\nextends = "native"\n[[rule]]\nop = "add"\n'
_MORE = "method mean_of_steps has no parameter 'lane'; it has lanes, fused, raw, divide"
WRONG = {
    '"vectors"': "method vectors needs lanes, which is a whole number, 0 or more",
    '{name = "vectors"}': "method vectors needs lanes, which is a whole number, 0 or more",
    '{name = "vectors", lanes = -1}': "method vectors: lanes = -1; it is a whole number, 0 or more",
    '{name = "vectors", lanes = 8.0}': "method vectors: lanes = 8.0; it is a whole number, 0 or",
    '{name = "vectors", lanes = true}': "method vectors: lanes = True; it is a whole number, 0 or",
    '{name = "channel_vectors", lanes = 0}': "lanes = 0; it is a whole number, 1 or more",
    '{name = "fixed_sum", sign = 2}': "method fixed_sum: sign = 2; it is 1 or -1",
    '{name = "fixed_sum", sign = nan}': "method fixed_sum: sign = nan; it is 1 or -1",
    '{name = "mean_before", round = "up"}': "mean_before: round = 'up'; it is away or even",
    '{name = "mean_of_steps", raw = 1}': "method mean_of_steps: raw = 1; it is false or true",
    '{name = "mean_of_steps", lane = 1}': _MORE,
    '{name = "reals", lanes = 1}': "method reals has no parameter 'lanes'",
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_parameter_is_told_with_its_line(said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(f"{HEAD}method = {said}\n", "p", profile)
    assert str(caught.value).startswith("p, line 5: "), caught.value
    assert WRONG[said] in str(caught.value)


def test_parameters_are_those_of_the_functions_that_are_executed() -> None:
    for name, method in tabled().items():
        row, taken = method.params, inspect.signature(method.function).parameters
        first = 2 if method.slots is None else 2 * len(method.slots) + 1
        more = set([*taken][first:]) - {*method.attrs, *method.beside}
        attrs = {attr.name for op in method.ops for attr in spec(op).attrs}
        assert row.keys() <= more <= {*row, *attrs, "rule"}, name
        assert method.slots is None or ("rule" in taken) == bool(method.reads), name
        for key, param in row.items():
            default = taken[key].default
            assert (default is inspect.Parameter.empty) == param.needed, (name, key)
            assert param.needed or param.takes(default), (name, key)
            given = {k: 1 for k, p in row.items() if p.needed and k != key}
            for value in param.values or (param.least, 16):
                assert not fault(MethodField(name, {**given, key: value}))


def test_a_method_that_was_made_without_its_parameters_is_refused_by_name() -> None:
    base = profile("native")
    entry = RuleEntry(("relu",), When(), {("", "method"): MethodField("vectors")})
    made = Profile(ProfileHead("bare", base.name), {}, (entry,), (), base, "")
    text = """
    graph main as bare {
      %x = input() : 4x!quant.uniform<u8:f32, 0.25:3>
      %y = relu(%x) : 4x!quant.uniform<u8:f32, 0.5:7>
      output(y=%y)
    }
    """
    with override_profile(made):
        with pytest.raises(ProfileError, match="profile bare: method vectors needs lanes"):
            qir.run(qir.parse(text), {"x": np.arange(4, dtype=np.uint8)})
