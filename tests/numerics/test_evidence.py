"""A claim rests on what was measured, and on nothing weaker than itself."""

from __future__ import annotations

import pytest

from qir.errors import ProfileError
from qir.profiles import parse, profile

UNPROVED = [
    ("", "line 5: claim = 'exact' needs evidence with how many results were compared"),
    ("0 differ", "line 6: claim = 'exact' needs evidence"),
    ("every length 1..70: 0 differ", "line 6: claim = 'exact' needs evidence"),
    ("the manual", "line 6: claim = 'exact' needs evidence"),
    ("2 of 700 differ", "line 6: claim = 'exact', and 2 of 700 differ by its evidence"),
    ("700 results, 2 differ", "line 6: claim = 'exact', and 2 of 700 differ"),
    ("as tanh", "line 6: no other rule of tanh has a measurement"),
    ("as conv2d of nobody", "line 6: no other rule of conv2d of nobody has a measurement"),
    ("as conv2d", "line 6: no other rule of conv2d has a measurement"),
    ("as conv2d of p", "line 6: no other rule of conv2d of p has a measurement"),
    ("moves: codes are moved", "line 6: claim = 'exact': only methods `move` and `reals` rest on"),
]


@pytest.mark.parametrize(("evidence", "told"), UNPROVED)
def test_a_claim_that_its_evidence_does_not_bear_is_refused(evidence: str, told: str) -> None:
    said = f'evidence = "{evidence}"\n' if evidence else ""
    text = f'name = "p"\nextends = "native"\n[[rule]]\nop = "conv2d"\nclaim = "exact"\n{said}'
    with pytest.raises(ProfileError) as caught:
        parse(text, "p.toml", profile)
    assert str(caught.value).startswith(f"p.toml, {told}")


def test_a_claim_rests_on_numbers_or_on_those_of_another_rule_or_computes_nothing() -> None:
    head = 'name = "p"\nextends = "native"\n[[rule]]\nop = '
    for text in (
        '"conv2d"\nclaim = "exact"\nevidence = "0 of 7,000 differ; halves away 5 of 90"\n',
        '"conv2d"\nclaim = "within:1:0.01"\nevidence = "7 of 700 results are one off"\n',
        '"conv2d"\nclaim = "exact"\nevidence = "as conv2d of ort-1.31: the same kernel"\n',
        '"gemm"\nclaim = "exact"\nevidence = "as conv2d, whose kernel it is"\n',
        '"slice"\nmethod = "move"\nclaim = "exact"\nevidence = "moves: codes go on"\n',
        '"tanh"\nmethod = "reals"\nclaim = "close:0.1"\n',
    ):
        parse(head + text, "p.toml", profile)
    with pytest.raises(ProfileError, match=r"claim = 'within:1:0.01', and 8 of 700 differ"):
        parse(
            f'{head}"conv2d"\nclaim = "within:1:0.01"\nevidence = "8 of 700 differ"\n', "p", profile
        )


def test_claims_that_rest_on_each_other_rest_on_nothing() -> None:
    rule = '[[rule]]\nop = "{}"\nclaim = "exact"\nevidence = "as {}"\n'
    text = 'name = "p"\nextends = "native"\n' + rule.format("linear", "conv2d")
    parse(text, "p.toml", profile)  # conv2d is native's, which has numbers
    with pytest.raises(ProfileError, match=r"p\.toml, line 6: no other rule of conv2d has"):
        parse(text + rule.format("conv2d", "linear"), "p.toml", profile)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            'op = "linear"\nrequant = {round = "away"}\nclaim = "exact"\nevidence = "as conv2d"\n',
            "line 7: linear is computed otherwise than conv2d: requant.round is away, not even",
        ),
        (
            'op = "avg_pool1d"\nclaim = "exact"\nevidence = "as avg_pool2d of ort-1.31.noopt"\n',
            "line 6: avg_pool1d is computed otherwise than avg_pool2d: method is ",
        ),
    ],
)
def test_what_is_computed_otherwise_rests_on_no_other_op(rule: str, told: str) -> None:
    text = f'name = "p"\nextends = "native"\n[[rule]]\n{rule}'
    with pytest.raises(ProfileError) as caught:
        parse(text, "p.toml", profile)
    assert str(caught.value).startswith(f"p.toml, {told}")


WEAKER = """name = "p"
extends = "native"
[[rule]]
op = "conv2d"
requant = {round = "away"}
claim = "within:1:0.01"
evidence = "3 of 1000 differ"
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[[rule]]\nop = "linear"\nrequant = {{round = "away"}}\nclaim = "{}"\n'
            'evidence = "as conv2d"\n',
            "line 12: no other rule",
        ),
        (
            '[[group]]\nchain = "conv2d"\nclaim = "{}"\nevidence = "its kernel"\n',
            "no rule of conv2d",
        ),
    ],
)
def test_a_claim_does_not_rest_on_a_weaker_one(text: str, told: str) -> None:
    parse(WEAKER + text.format("within:1:0.02"), "p.toml", profile)
    for claim in ("exact", "within:1:0.001"):
        with pytest.raises(ProfileError, match=told):
            parse(WEAKER + text.format(claim), "p.toml", profile)


def test_a_group_has_ops_of_one_result() -> None:
    with pytest.raises(ProfileError, match="line 4: split gives more than one result"):
        parse('name = "p"\nextends = "native"\n[[group]]\nchain = "split"\n', "p.toml", profile)


@pytest.mark.parametrize(("op", "method"), [("sigmoid", "reals"), ("linear", "reals")])
def test_what_computes_does_not_only_move(op: str, method: str) -> None:
    said = f'method = "{method}"\nclaim = "exact"\nevidence = "moves: i say so"\n'
    with pytest.raises(ProfileError, match=r"line 7: claim = .exact.: only methods `move`"):
        parse(f'name = "p"\nextends = "native"\n[[rule]]\nop = "{op}"\n{said}', "p.toml", profile)
