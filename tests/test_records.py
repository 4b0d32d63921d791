"""A record is what a frozen dataclass with slots is."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from inspect import signature
from typing import Any

import pytest

from qir.records import KeptHash, record

NAN = float("nan")


class Fields:
    """The fields of the classes that are compared."""

    first: int
    second: float = NAN
    many: list[int] = field(default_factory=list)
    aside: str = field(default="aside", compare=False, repr=False)
    made: dict[str, int] = field(init=False, default_factory=dict, compare=False)


class Checked:
    """One that changes a field after it was made."""

    number: int
    double: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", self.number * 2)


class Described:
    """One with methods of its own."""

    number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    def __repr__(self) -> str:
        return "told"


Pickled: Any = record(type("Pickled", (), {**vars(Checked)}))


def pair(kind: type) -> tuple[Any, Any]:
    """Returns the class as a dataclass and as a record."""
    members = {k: v for k, v in vars(kind).items() if k not in ("__dict__", "__weakref__")}
    both = [type("Same", (), dict(members)) for _ in range(2)]
    return dataclass(frozen=True, slots=True)(both[0]), record(both[1])


@pytest.mark.parametrize("kind", [Fields, Checked, Described])
def test_its_signature_its_fields_and_its_text_are_those_of_a_dataclass(kind: type) -> None:
    ours, theirs = reversed(pair(kind))
    assert str(signature(ours)) == str(signature(theirs))
    assert [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__slots__ == theirs.__slots__
    assert repr(ours(3)) == repr(theirs(3))
    assert asdict(ours(3)) == asdict(theirs(3)) or kind is Fields


@pytest.mark.parametrize("kind", [Checked, Described])
def test_equal_records_have_equal_hashes(kind: type) -> None:
    for made in pair(kind):
        assert made(3) == made(3)
        assert hash(made(3)) == hash(made(3))
        assert made(3) != object()
        assert len({made(3), made(3)}) == 1


def test_what_is_compared_is_what_a_dataclass_compares() -> None:
    for made in pair(Fields):
        assert made(1) == made(1, aside="another")  # also: one and the same NaN
        assert made(1) != made(2)
        assert made(1, many=[1]) != made(1)
        with pytest.raises(TypeError, match="unhashable"):
            hash(made(1))
    for made in pair(Checked):
        assert (made(1) == made(2)) is False


def test_records_of_one_field_that_holds_nan_are_equal_as_those_of_a_dataclass_are() -> None:
    for made in pair(type("One", (), {"__annotations__": {"x": float}})):
        assert made(NAN) == made(NAN)


def test_each_has_a_default_of_its_own() -> None:
    made = pair(Fields)[1]
    made(1).many.append(3)
    assert made(1).many == []
    assert made(1).made == {}


def test_it_cannot_be_changed_and_replace_makes_another() -> None:
    for made in pair(Checked):
        one = made(3)
        with pytest.raises(FrozenInstanceError, match="number"):
            one.number = 4
        with pytest.raises(FrozenInstanceError, match="number"):
            del one.number
        assert (replace(one, number=4).double, one.double) == (8, 6)
        assert not hasattr(one, "__dict__")


def test_it_is_copied_and_pickled() -> None:
    one = Pickled(3)
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert (other, other.double) == (one, 6)


def test_without_eq_it_is_compared_by_identity() -> None:
    made: Any = record(eq=False)(type("Same", (), {"__annotations__": {"x": int}}))
    assert made(1) != made(1)
    assert len({made(1), made(1)}) == 2


@pytest.mark.parametrize("extend", [record, dataclass(frozen=True, slots=True)])
@pytest.mark.parametrize("begin", [record, dataclass(frozen=True, slots=True)])
def test_a_record_extends_another_and_a_frozen_dataclass(begin: Any, extend: Any) -> None:
    base: Any = begin(type("Base", (), {"__annotations__": {"x": int}}))
    made: Any = extend(type("More", (base,), {"__annotations__": {"y": int}, "y": 2}))
    assert (made(1).x, made(1).y, made(1) == made(1, 3)) == (1, 2, False)
    assert repr(made(1)) == "More(x=1, y=2)"
    with pytest.raises(FrozenInstanceError, match="x"):
        made(1).x = 3


def test_a_wrong_call_is_refused_as_that_of_a_dataclass() -> None:
    for made in pair(Checked):
        with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument"):
            made()
        with pytest.raises(TypeError, match="unexpected keyword argument 'double'"):
            made(1, double=3)


def test_a_hash_that_is_kept_is_computed_once_and_not_copied() -> None:
    asked: list[int] = []

    class Counted:
        def __hash__(self) -> int:
            asked.append(1)
            return 3

    members = {"__annotations__": {"x": object}}
    made: Any = record(type("Kept", (KeptHash,), members))
    plain: Any = record(type("Plain", (), members))
    part = Counted()
    one = made(part)
    assert hash(one) == hash(one) == hash(plain(part))
    before = len(asked)
    assert {one: 1}[one] == 1
    assert len(asked) == before
    assert replace(one, x=4) != one
    assert hash(replace(one, x=4)) == hash(made(4))


def test_fields_by_keyword_alone_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Named\.x: records have no keyword-only fields"):

        @record
        class Named:
            x: int = field(kw_only=True)
