"""One field of the profiles of onnxruntime's other versions changed: what was recorded finds it."""

from __future__ import annotations

from functools import partial

import pytest

from tests.differential.onnxruntime.test_ort_versions import chosen_wrong, wrong
from tests.mutation.fields import Mutant
from tests.mutation.indistinct import all_found, none_found
from tests.overriding import override_profile

VERSIONS = {"ort-1.28": "1.28.0", "ort-1.30": "1.30.0", "ort-1.32": "1.32.0"}
NAMES = [f"{name}{suffix}" for name in VERSIONS for suffix in ("", ".noopt")]


def agrees(name: str, mutant: Mutant) -> None:
    """Fails where a changed profile does not give what its version gave."""
    version = VERSIONS[name.removesuffix(".noopt")]
    with override_profile(mutant.profile):
        assert not chosen_wrong(version, name)
        assert not wrong(version, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_field_is_found_or_listed(name: str) -> None:
    all_found(name, partial(agrees, name))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_is_not_found(name: str) -> None:
    none_found(name, partial(agrees, name))
