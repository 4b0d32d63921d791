"""A group claims no more than the rule of its first op does, whatever the processor."""

import pytest

from qir.profiles import Query, profile, profile_names
from qir.profiles.evidence import weaker_claim

ISAS = ("any", "avx2", "avx512", "vnni", "amx")


@pytest.mark.parametrize("name", sorted(profile_names()))
def test_no_group_claims_more_than_the_rule_of_its_first_op(name: str) -> None:
    of = profile(name)
    for row in of.groups:
        for isa in ISAS:
            for kind in ("u8", "i8", "i16"):
                storage = {"x": kind, "a": kind, "w": "i8", "b": "i8"}
                if row.result == "codes":
                    storage["result"] = kind
                query = Query(row.chain[0], storage, "channel", row.when.attrs, isa)
                found = of.group(row.chain, query, result=row.result)
                if found is not None:
                    head = of.resolve(query).claim
                    assert found.claim == weaker_claim(found.claim, head), (row.chain, isa)


@pytest.mark.parametrize(
    ("a", "b", "claim"),
    [
        ("exact", "within:1:0.002", "within:1:0.002"),
        ("within:2:0.001", "within:1:0.002", "within:2:0.002"),
        ("unknown", "exact", "unknown"),
        ("close:2e-6", "exact", "close:2e-6"),
    ],
)
def test_the_weaker_of_two_claims(a: str, b: str, claim: str) -> None:
    assert weaker_claim(a, b) == weaker_claim(b, a) == claim
