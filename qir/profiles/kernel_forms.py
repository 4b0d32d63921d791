"""Forms of layers: what decides which kernel a runtime takes and is not an attribute, by name.

A rule asks for one with `when = {form = "..."}`; a layer may have several. Forms are found by the
entry point `qir.forms`: those of one runtime are in its backend's folder, those below are used by
several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qir import registry
from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.ops import layers, spec
from qir.ir.types import QuantType, TensorType
from qir.records import record

KIND = "qir.forms"
"""The entry points of forms; each names a `Form` or a table of them by name."""
CONVOLUTIONS = tuple(sorted(layers.CONVOLUTIONS))
TRANSPOSED = tuple(sorted(layers.TRANSPOSED_CONVOLUTIONS))


@record
class Axis:
    """One spatial axis of a convolution."""

    taps: int
    pads: tuple[int, int]
    stride: int
    dilation: int
    size: int | None

    @property
    def count(self) -> int | None:
        """The number of windows along it."""
        if self.size is None:
            return None
        span = self.size + sum(self.pads) - (self.taps - 1) * self.dilation - 1
        return max(span // self.stride + 1, 0)


@dataclass(frozen=True)
class KernelLayer:
    """What forms look at: a convolution, a product, a sum, a pool or a concat."""

    op: str
    weights: tuple[int, ...]
    """The shape of the second operand; of convolutions [out, in / groups, ...]. 0 where a size is
    unknown; empty for a matmul."""
    sizes: tuple[int | None, ...]
    """Of a convolution the spatial sizes of its data, of a matmul the whole shape of its first
    operand, of other ops all axes but the last; None where a size is unknown."""
    quant: QuantType | None
    """The quantized type of the weights, or of the second operand."""
    data: QuantType | None
    """The quantized type of the data, or of the first operand."""
    attrs: Mapping[str, Attr]
    result: QuantType | None = None
    """The quantized type of the result."""
    joined: tuple[QuantType | None, ...] = ()
    """The quantized types of all operands of a variadic slot."""
    biased: bool = False
    """Whether it has a bias."""

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.weights) - 2

    @property
    def kernel(self) -> tuple[int, ...]:
        """The window."""
        return self.weights[2:]

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        groups = self.attrs.get("groups", 1)
        return groups if isinstance(groups, int) else 1

    def ints(self, name: str) -> tuple[int, ...]:
        """Returns an attribute that is a list of integers."""
        value = self.attrs.get(name)
        return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """The padding before and after each spatial axis."""
        pad, n = self.ints("pad"), self.rank
        return tuple((pad[i], pad[i + n]) for i in range(n))

    @cached_property  # many forms of a convolution ask for it
    def axes(self) -> tuple[Axis, ...]:
        """The spatial axes of a convolution."""
        steps = (self.ints("stride"), self.ints("dilation"))
        rows = zip(self.kernel, self.pads, *steps, self.sizes, strict=True)
        return tuple(Axis(*row) for row in rows)


@record
class Form:
    """A form that layers may have."""

    description: str
    """What it means, for documentation and errors."""
    has: Callable[[KernelLayer], bool]
    ops: tuple[str, ...]
    """The ops that can have it; `has` is asked of these only."""


SHARED: Mapping[str, Form] = {
    "grouped": Form(
        "a convolution in two groups or more",
        lambda of: of.groups > 1,
        (*CONVOLUTIONS, *TRANSPOSED),
    ),
    "single_channels": Form(
        "a convolution, no transposed one, of one channel a group",
        lambda of: of.weights[1] == 1,
        CONVOLUTIONS,
    ),
    "held_ranges": Form(
        "concat whose result has a range that holds that of each operand, as in runtimes that "
        "compute the range themselves",
        lambda of: has_declared_ranges(of.result, of.joined),
        ("concat",),
    ),
}
"""Forms that the profiles of several backends name."""


def forms() -> Mapping[str, Form]:
    """Returns all forms that rules may name."""
    return registry.entries(KIND, Form)


def why_never(form_names: Iterable[str], ops: Iterable[str]) -> str:
    """Returns why layers of some ops cannot have all named forms; empty where they can."""
    for form in form_names:
        possible_ops = forms()[form].ops
        for op in ops:
            if op != "*" and op not in possible_ops:
                return f"no {op} is {form}: {', '.join(possible_ops)} are"
    return ""


def forms_of(
    op: str,
    types: Mapping[str, TensorType],
    attrs: Mapping[str, Attr],
    result: QuantType | None = None,
) -> tuple[str, ...]:
    """Returns the forms of an op on operands of these types; none where sizes or types are
    unknown."""
    candidates = [(name, form) for name, form in forms().items() if op in form.ops]
    layer = _kernel_layer(op, types, attrs, result) if candidates else None
    return () if layer is None else tuple(name for name, form in candidates if form.has(layer))


class LazyForms(Collection[str]):
    """What `forms_of` returns, computed once somebody asks: few profiles name a form."""

    __slots__ = ("_asked", "_found")

    def __init__(
        self,
        op: str,
        types: Mapping[str, TensorType],
        attrs: Mapping[str, Attr],
        result: QuantType | None = None,
    ) -> None:
        self._asked = op, types, attrs, result
        self._found: tuple[str, ...] | None = None

    def _names(self) -> tuple[str, ...]:
        if self._found is None:
            self._found = forms_of(*self._asked)
        return self._found

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyForms | tuple) and self._names() == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._names())


def _kernel_layer(
    op: str, types: Mapping[str, TensorType], attrs: Mapping[str, Attr], result: QuantType | None
) -> KernelLayer | None:
    """Returns what forms look at, or None for a convolution of unknown weights and the like."""
    slots = _operands(op, types)
    if not slots:
        return None
    data_type, weight_type = types[slots[0]], types[slots[-1]]
    quants = (weight_type.quant, data_type.quant)
    if op in CONVOLUTIONS or op in TRANSPOSED:
        known = tuple(d for d in weight_type.shape if isinstance(d, int))
        if (
            len(known) < weight_type.rank
            or data_type.rank != weight_type.rank
            or weight_type.rank < 3
        ):
            return None
        spatial = data_type.shape[1:-1] if attrs.get("layout") == "NHWC" else data_type.shape[2:]
        return (
            KernelLayer(op, known, _known(spatial), *quants, attrs) if "stride" in attrs else None
        )
    if op == "matmul":
        are_batched = data_type.rank == weight_type.rank == 3
        return KernelLayer(op, (), _known(data_type.shape), *quants, attrs) if are_batched else None
    weights = tuple(d if isinstance(d, int) else 0 for d in weight_type.shape)
    joined = tuple(kind.quant for slot, kind in types.items() if "." in slot)
    return KernelLayer(
        op, weights, _known(data_type.shape[:-1]), *quants, attrs, result, joined, "bias" in types
    )


def _operands(op: str, types: Mapping[str, TensorType]) -> list[str]:
    """Returns the slots of the required operands, at most two; none where one has no type."""
    slots = [s.name + ".0" * s.variadic for s in spec(op).operands if not s.optional][:2]
    return slots if all(slot in types for slot in slots) else []


def _known(shape: Iterable[Dim]) -> tuple[int | None, ...]:
    return tuple(d if isinstance(d, int) else None for d in shape)


def has_declared_ranges(result: QuantType | None, joined: Iterable[QuantType | None]) -> bool:
    """Returns whether a result's range reaches as far as those of all operands."""
    result_range = _range(result)
    parts = [_range(part) for part in joined]
    return result_range is not None and all(
        part is not None and result_range[0] <= part[0] and part[1] <= result_range[1]
        for part in parts
    )


def _range(quant: QuantType | None) -> tuple[np.float32, np.float32] | None:
    """Returns what a type of one scale declares, else what its ends mean."""
    if quant is None or quant.scale is None or quant.granularity is not None or quant.dynamic:
        return None
    if not quant.storage.is_integer:
        return None
    if quant.declared is not None and isinstance(quant.declared.low, tuple):
        assert isinstance(quant.declared.high, tuple)
        return np.float32(quant.declared.low[0]), np.float32(quant.declared.high[0])
    zero, scale = quant.zeros().astype(np.float64), quant.scales()
    low, high = ((end - zero) * scale for end in (quant.low, quant.high))
    return np.float32(low), np.float32(high)
