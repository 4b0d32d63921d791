"""A profile that puts torch's tensors elsewhere in memory: the comparison of networks finds it."""

from __future__ import annotations

import pytest

from qir.numerics import profile
from qir.numerics.library import replaced
from tests.differential import test_torch_groups as groups
from tests.differential import test_torch_memory as memory
from tests.differential.test_torch_groups import pytestmark as here

from .test_grouping_faults import head, still

pytestmark = here


@pytest.mark.parametrize(("engine", "field"), [("fbgemm", "memory"), ("qnnpack", "clips")])
def test_it_is_found(engine: str, field: str) -> None:
    wrong = head(field, "kept")(profile(f"torch-2.13.{engine}"))
    with replaced(wrong), pytest.raises(AssertionError, match=r"seed \d+"):
        memory.agrees(engine)


def test_views_that_leave_codes_behind_are_found() -> None:
    with replaced(still(profile("torch-2.13.fbgemm"))), pytest.raises(AssertionError):
        groups.test_views_without_codes_of_their_own_are_views_of_codes("fbgemm")
