"""The specification of an op: its slots, attributes, type rule, traits and cost."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dims import Shape
from qir.ir.dtype import DType
from qir.ir.types import Array, QuantType, TensorType
from qir.records import record


@record
class Slot:
    """A named operand; a variadic one holds `xs.0`, `xs.1`, ..."""

    name: str
    optional: bool = False
    variadic: bool = False


@record
class AttrSpec:
    """An attribute's name, what it may hold (`int`, `ints`, `float`, ...), and its default."""

    name: str
    kind: str
    default: Attr = None
    required: bool = False

    def accepts(self, value: Attr) -> bool:
        """Returns whether it may hold a value."""
        return _fits(value, self)


@record
class BodySignature:
    """What a body takes and gives, in order."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@record
class Call:
    """One use of an op, as its type rule sees it: operand types and attributes.

    `types` are those of the op's own slots; scales and zeros that come as operands of their own
    are `companions`, by the name they have on the node (`a.scale`).
    """

    op: str
    types: Mapping[str, TensorType]
    attrs: Mapping[str, Attr]
    constants: Mapping[str, Array] = field(default_factory=dict)
    companions: Mapping[str, TensorType] = field(default_factory=dict)
    bodies: Mapping[str, BodySignature] = field(default_factory=dict)

    def fail(self, message: str) -> TypeRuleError:
        """Returns the error to raise, which names the op."""
        return TypeRuleError(f"{self.op}: {message}")

    def shape(self, slot: str) -> Shape:
        """Shape of an operand; raises TypeRuleError where it is missing."""
        return self._type(slot).shape

    def express(self, slot: str) -> DType:
        """Returns what the elements of an operand mean; raises TypeRuleError where it is
        missing."""
        return self._type(slot).express

    def _type(self, slot: str) -> TensorType:
        type_ = self.types.get(slot)
        if type_ is None:
            raise self.fail(f"{slot} is missing")
        return type_

    def variadic(self, prefix: str) -> list[TensorType]:
        """Types of the operands of a variadic slot, in order."""
        slots = [k for k in self.types if k.startswith(f"{prefix}.")]
        return [self.types[k] for k in sorted(slots, key=lambda k: int(k.rsplit(".", 1)[1]))]

    def int_attr(self, name: str) -> int:
        """Returns an integer attribute; raises TypeRuleError where it is none."""
        value = self.attrs[name]
        # `type(...) is int` keeps True and False out, which are Python ints too.
        if type(value) is not int:
            raise self.fail(f"{name} = {value!r} is no whole number")
        return value

    def int_list_attr(self, name: str, count: int | None = None) -> tuple[int, ...]:
        """Returns an attribute that is a list of integers, `count` of them where that is given."""
        value = self.attrs[name]
        if not isinstance(value, tuple) or not all(type(v) is int for v in value):
            raise self.fail(f"{name} = {value!r} is no list of whole numbers")
        if count is not None and len(value) != count:
            raise self.fail(f"{name} = {value!r} wants {count} numbers")
        return tuple(v for v in value if isinstance(v, int))

    def float_list_attr(self, name: str) -> tuple[float, ...]:
        """Returns an attribute that is a list of floats."""
        value = self.attrs[name]
        if not isinstance(value, tuple) or not all(isinstance(v, float) for v in value):
            raise self.fail(f"{name} = {value!r} is no list of numbers")
        return tuple(v for v in value if isinstance(v, float))

    def text_list_attr(self, name: str) -> tuple[str, ...]:
        """Returns an attribute that is a list of texts."""
        value = self.attrs[name]
        if not isinstance(value, tuple) or not all(isinstance(v, str) for v in value):
            raise self.fail(f"{name} = {value!r} is no list of texts")
        return tuple(v for v in value if isinstance(v, str))

    def text_attr(self, name: str) -> str:
        """Returns a text attribute."""
        value = self.attrs[name]
        if not isinstance(value, str):
            raise self.fail(f"{name} = {value!r} is no text")
        return value

    def bool_attr(self, name: str) -> bool:
        """Returns a boolean attribute."""
        return self.attrs[name] is True

    def axis_attr(self, name: str, rank: int) -> int:
        """Returns an axis attribute counted from the front."""
        value = self.int_attr(name)
        if not -rank <= value < rank:
            raise self.fail(f"{name} = {value}, but x has {rank} axes")
        return value % rank

    def axes_attr(self, name: str, rank: int) -> tuple[int, ...]:
        """Returns an attribute of axes, counted from the front, each named once."""
        values = self.int_list_attr(name)
        if any(not -rank <= a < rank for a in values):
            raise self.fail(f"{name} {values}, but there are {rank} axes")
        axes = tuple(a % rank for a in values)
        if len(set(axes)) < len(axes):
            raise self.fail(f"{name} {values} name one axis twice")
        return axes

    def constant(self, slot: str) -> NDArray[np.generic] | None:
        """Returns the operand's elements where it is a constant."""
        return self.constants[slot].data if slot in self.constants else None

    # Type rules of plugins written before these were renamed use the short names.
    whole = int_attr
    wholes = int_list_attr
    reals = float_list_attr
    texts = text_list_attr
    text = text_attr
    flag = bool_attr
    axis = axis_attr
    axes = axes_attr


COMPANIONS = ("scale", "zero", "min", "max")
"""Slots that give a type the numbers it leaves open: `a.scale` for operand a, `scale` bare."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")

TypeRule: TypeAlias = Callable[[Call], tuple[TensorType, ...]]
ElementRule: TypeAlias = Callable[[Call, QuantType], "QuantType | None"]


Layer: TypeAlias = Literal["convolution", "transposed", "matrix"]


@record
class Traits:
    """Properties of an op that passes use instead of lists of op names."""

    same_params: tuple[str, ...] = ()
    """Operand slots that are quantized of the result's own quantized type when quantized."""
    value_preserving: bool = False
    """Every result element is an operand element (or a pad)."""
    weight: str | None = None
    weight_axis: Callable[[Call], int] | None = None
    """Output channel of the weight, counted from the front."""
    result_axis: Callable[[Call], int] | None = None
    """Where that channel is in the result."""
    bias: str | None = None
    """Slot whose unit is scale(data) * scale(weight) in integer form."""
    data: str = "x"
    """The slot that carries the activations where there is a weight."""
    commutative: bool = False
    elementwise: bool = False
    """One operand, one result, each element by itself."""
    divisor: str | None = None
    """The slot whose values may not become 0; of `pow` where the exponent is negative."""
    averages: bool = False
    """Its results are means of elements: none is outside their range, or beyond zero by padding."""
    near_zero: bool = False
    """Its result is near 0 where its operand is."""
    layer: Layer | None = None
    """What kind of layer it is: one whose weights are usually constant."""
    lowering: Callable[[Mapping[str, Attr]], str] | None = None
    """Returns the name of the pass that rewrites it, by its attributes, as ops that more targets
    have in integers; empty where none does."""


@record
class OpSpec:
    """The definition of an op: slots, attributes, type rule, traits and cost."""

    name: str
    operands: tuple[Slot, ...]
    rule: TypeRule
    attrs: tuple[AttrSpec, ...] = ()
    traits: Traits = Traits()
    move: ElementRule | None = None
    """Returns the result's quantized type from the data operand's; None: the op computes."""
    cost: Callable[[Call, Shape], int] | None = None
    """Multiply-adds, for a known result shape."""
    results: int | None = 1
    """How many values it makes; None: any number."""
    doc: str = ""
    inner: tuple[str, ...] = ()
    """Names of values that it rounds within itself, which may have a type and a scheme."""
    bodies: tuple[str, ...] = ()
    """Names of the closed graphs that it holds."""
    attrs_by_name: Mapping[str, AttrSpec] = field(init=False, repr=False, compare=False)
    """Its attributes by name."""
    default_attrs: Mapping[str, Attr] | None = field(init=False, repr=False, compare=False)
    """The attributes of a node that states none; None where an attribute is required."""

    checked_operand_names: set[tuple[str, ...]] = field(init=False, repr=False, compare=False)
    """Operand names that `check_slots` has accepted before: graphs repeat a few combinations."""

    def __post_init__(self) -> None:
        # The dataclass is frozen and has slots, so derived fields are set this way.
        object.__setattr__(self, "checked_operand_names", set())
        all_optional = all(a.accepts(a.default) and not a.required for a in self.attrs)
        defaults = {a.name: a.default for a in self.attrs} if all_optional else None
        object.__setattr__(self, "attrs_by_name", {a.name: a for a in self.attrs})
        object.__setattr__(self, "default_attrs", defaults)

    def slot(self, name: str) -> Slot | None:
        """Returns the slot that an operand name belongs to."""
        base, _, index = name.partition(".")
        for slot in self.operands:
            # `xs.0` belongs to the variadic slot `xs`; `xs` alone names nothing.
            if slot.variadic and slot.name == base and _INDEX.fullmatch(index):
                return slot
            if not slot.variadic and slot.name == name:
                return slot
        return None

    def is_companion(self, name: str) -> bool:
        """Returns whether an operand name is a companion of a slot, of an inner slot or of the
        result."""
        base, _, last = name.rpartition(".")
        if last not in COMPANIONS:
            return False
        known = not base or base in self.inner or self.slot(base) is not None
        # A slot of the op's own that is called `scale` or `zero` is no companion.
        return known and self.slot(name) is None

    def complete_attrs(self, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
        """Returns the attributes in the spec's order with defaults filled in.

        Raises TypeRuleError for an unknown attribute or a value of another kind.
        """
        for name in attrs:
            if name not in self.attrs_by_name:
                near = difflib.get_close_matches(name, self.attrs_by_name, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise TypeRuleError(f"{self.name} has no attribute {name}{hint}")
        out: dict[str, Attr] = {}
        # The spec's order, whatever the caller's: printing and hashing depend on it.
        for name, spec in self.attrs_by_name.items():
            if name in attrs:
                value = as_kind(attrs[name], spec.kind)
            elif spec.required:
                raise TypeRuleError(f"{self.name} needs {name}")
            else:
                value = spec.default
            # Defaults were checked once, when the spec was made.
            is_default = self.default_attrs is not None and value is spec.default
            if not is_default and not _fits(value, spec):
                message = f"{self.name}: {name} = {value!r} is not {spec.kind}"
                raise TypeRuleError(message + _KIND_HINTS.get(spec.kind, "").format(name))
            out[name] = value
        return out


def as_kind(value: Attr, kind: str) -> Attr:
    """Returns an integer as a float where floats are wanted, a list as a tuple, else the value."""
    item_or_list: object = value
    if kind == "float" and type(item_or_list) is int:
        with suppress(OverflowError):
            return float(item_or_list)
    if kind in ("ints", "floats", "texts") and isinstance(item_or_list, list | tuple):
        return tuple(as_kind(item, kind[:-1]) for item in item_or_list)
    return value


_KIND_HINTS = {
    "array": "; arrays are declared before the graph, as `array @v : f32`, and named: {} = @v"
}


def _fits(value: Attr, spec: AttrSpec) -> bool:
    if value is None:
        return spec.default is None and not spec.required
    match spec.kind:
        case "int":
            return type(value) is int
        case "float":
            return isinstance(value, float)
        case "bool":
            return isinstance(value, bool)
        case "text":
            return isinstance(value, str)
        case "ints":
            return isinstance(value, tuple) and all(type(v) is int for v in value)
        case "floats":
            return isinstance(value, tuple) and all(isinstance(v, float) for v in value)
        case "texts":
            return isinstance(value, tuple) and all(isinstance(v, str) for v in value)
        case "dtype":
            return isinstance(value, DType)
        case "array":
            return isinstance(value, Array)
    return True
