"""One field of the profiles of torch's other versions changed: what was recorded finds it."""

from __future__ import annotations

from functools import partial

import pytest

from tests.differential.torch.test_torch_versions import conversion, programs
from tests.mutation.fields import Mutant
from tests.mutation.indistinct import all_found, none_found
from tests.overriding import override_profile

NAMES = (
    *(f"torch-2.15.{engine}" for engine in ("fbgemm", "x86", "onednn", "qnnpack")),
    "torch-2.14.onednn",
)


def agrees(name: str, mutant: Mutant) -> None:
    """Fails where a changed profile does not give what its version gave."""
    with override_profile(mutant.profile):
        if not mutant.ops or "quantize" in mutant.ops:
            assert not conversion(name)
        assert not programs(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_field_is_found_or_listed(name: str) -> None:
    all_found(name, partial(agrees, name))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_is_not_found(name: str) -> None:
    none_found(name, partial(agrees, name))
