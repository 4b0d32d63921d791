"""Finds the quantization parameters of a plan, and writes quantize and dequantize.

    graph main as native {
      %a = input() : 4xf32
      %b = input() : 4xf32
      %y = add(%a, %b) : 4xf32
          plan {a = "u8 affine tensor minmax",
          b = "u8 affine tensor minmax",
          result = "u8 affine tensor minmax"}
      output(y=%y)
    }

By `materialize` it becomes:

    graph main as native {
      %a = input() : 4xf32
      %b = input() : 4xf32
      %a.q = quantize(%a) : 4x!quant.uniform<u8:f32, 0.019607844:102>
      %a.dq = dequantize(%a.q) : 4xf32
      %b.q = quantize(%b) : 4x!quant.uniform<u8:f32, 0.019607844:102>
      %b.dq = dequantize(%b.q) : 4xf32
      %y = add(%a.dq, %b.dq) : 4xf32
      %y.q = quantize(%y) : 4x!quant.uniform<u8:f32, 0.019607844:102>
      %y.dq = dequantize(%y.q) : 4xf32
      output(y=%y.dq)
    }

The statistics say that every value lies between -2 and 3. The profile says how such a range gives
scale and zero point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.analysis.activations import drops_unclamping_activations, with_unclamped_scale
from qir.calibration import Key, Log, Readers, Statistics, Summary, parse_rule
from qir.errors import DataError, ProfileError, SchemeError
from qir.ir.attrs import Attr
from qir.ir.calls import make_call
from qir.ir.dtype import F32, U8
from qir.ir.graph import Graph
from qir.ir.layer_channels import layer_data, summed_axis
from qir.ir.lazy_arrays import ArrayData
from qir.ir.node import Node, Value
from qir.ir.numerals import number_text
from qir.ir.ops import spec
from qir.ir.scheme import RESULT, Scheme
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Change, Ledger
from qir.numerics import affine, affine_of, quantize_bias
from qir.numerics.ranges import known_scales
from qir.passes.quantize.quantize_dynamic import ends, finite
from qir.profiles import (
    Profile,
    declared_range_for,
    lazy_quantize,
    parameters_for_range,
    profile,
    query_for_op,
)
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.layer_weights import energy
from qir.rewrite.runner.options import option

Range: TypeAlias = "tuple[float, float]"
"""Least and greatest."""
_INT32 = 2**31 - 1


def read_statistics(path: str | list[str]) -> Statistics:
    """Reads the statistics that a pass is given as a file."""
    if isinstance(path, list):
        raise ValueError("a list")
    return Statistics.load(Path(path))


def _pairs(texts: str | list[str]) -> tuple[tuple[str, str], ...]:
    found = [text.partition("=") for text in ([texts] if isinstance(texts, str) else texts)]
    return tuple((storage, way) for storage, _, way in found)


def _words(pairs: object) -> list[str]:
    return [f"{a}={b}" for a, b in pairs] if isinstance(pairs, tuple) else []


def _scales(text: str | list[str]) -> str:
    return known_scales(str(text))


@dataclass(frozen=True)
class Materialize(Pass):
    """Turns schemes into quantized types in QDQ form, by statistics and weights."""

    name = "materialize"
    nested = False
    ensures = ("no-schemes",)
    tolerance = ANOTHER
    statistics: Statistics = field(
        default_factory=lambda: Statistics(""), metadata=option(read=read_statistics, kind="file")
    )
    """Of the float model; a file that `qir calibrate` wrote."""
    profile: str = "native"
    """Whose rules the numbers are found by."""
    scales: str = field(default="profile", metadata=option(read=_scales))
    """The range rule, or the family of them, that takes the place of the profile's."""
    rounding: tuple[tuple[str, str], ...] = field(
        default=(), metadata=option(read=_pairs, write=_words, kind="list of storage=rounding")
    )
    """How a quantize of what no integer op makes rounds, by storage."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a sum of two inputs, each with a plan for its quantized values."""
        scheme, kind = Scheme(U8), TensorType((4,), F32)
        graph = Graph("main")
        values = [graph.add("input", types=[kind], name=name).result for name in "ab"]
        node = graph.add("add", dict(zip("ab", values, strict=True)), name="y")
        graph.add("output", {"y": node.result})
        statistics = Statistics("sample")
        ramp = np.linspace(-2, 3, 4, dtype=np.float32)
        with statistics.batch("sample", 0) as batch:
            for value in (*values, node.result):
                batch.update(value.lineage.tensor, ramp)
        for slot in ("a", "b", RESULT):
            graph.set_scheme(node, slot, scheme)
        yield cls(statistics), graph

    def run(self, graph: Graph, ledger: Ledger) -> int:
        work = _Materializing(
            graph, self.statistics, self.profile, ledger, self.name, known_scales(self.scales)
        )
        work.rounding = dict(self.rounding)
        return work.run()


class _Materializing:
    def __init__(
        self,
        graph: Graph,
        statistics: Statistics,
        profile_name: str,
        ledger: Ledger,
        step: str,
        scales: str,
    ) -> None:
        self.graph = graph
        self.statistics = statistics
        self.profile = profile(profile_name)
        self.ledger = ledger
        self.step = step
        self.scales = scales
        self.rounding: dict[str, str] = {}
        self.types: dict[str, QuantType] = {}
        self.real: dict[Value, Value] = {}
        """Value -> what dequantizes its quantized values."""
        self.parameters: dict[tuple[Value, Scheme], Value] = {}

    def run(self) -> int:
        planned = [n for n in self.graph if n.schemes]
        wanted = self._activations(planned)
        groups: dict[str, list[Value]] = {}
        for value, scheme in wanted.items():
            groups.setdefault(scheme.share or value.name, []).append(value)
        for key, values in groups.items():
            self.types[key] = self._type(values, wanted[values[0]])
        for node in planned:
            for slot in node.schemes:
                if slot != RESULT and not self._parameter(node, slot):
                    value = node.operands[slot]
                    self.graph.set_operand(node, slot, self._stored(value, wanted[value]))
        for value, scheme in wanted.items():
            self._result(value, scheme)
        for node in planned:
            self._weights(node)
        for node in planned:
            for slot in list(node.schemes):
                self.graph.set_scheme(node, slot, None)
        return len(planned)

    def _activations(self, planned: list[Node]) -> dict[Value, Scheme]:
        out: dict[Value, Scheme] = {}
        for node in planned:
            for slot, scheme in node.schemes.items():
                if slot == RESULT:
                    out |= dict.fromkeys(node.results, scheme)
                elif not self._parameter(node, slot):
                    out[node.operands[slot]] = scheme
        return out

    def _parameter(self, node: Node, slot: str) -> bool:
        traits = spec(node.op).traits
        return slot == traits.bias or (
            slot == traits.weight and node.operands[slot].constant is not None
        )

    # -- activations --------------------------------------------------------------------------

    def _type(self, values: list[Value], scheme: Scheme) -> QuantType:
        """Returns one quantized type for values that share it: the range covers them all."""
        scheme = self._signed(values, scheme)
        if scheme.scale is not None:
            return uniform(
                scheme.storage,
                np.asarray(scheme.scale, np.float32),
                scheme.zero or 0,
                bounds=scheme.bounds,
            )
        ranges = [self._range(v, scheme) for v in values]
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        ends = np.asarray(low, np.float32), np.asarray(high, np.float32)
        try:
            scale, zero = parameters_for_range(self.profile, *ends, scheme, scales=self.scales)
        except ProfileError as error:
            raise ProfileError(f"{values[0].name}: {error}") from error
        kind = self._uncut(values, uniform(scheme.storage, scale, zero, bounds=scheme.bounds))
        kind = self._declaring(kind, *ends, scheme, values[0].name)
        for value in values:
            self.ledger.add(
                Change.QUANTIZED,
                self.step,
                value.name,
                f"{scheme.storage} {_numbers(kind)} for {low:.6g}..{high:.6g} ({scheme.range})",
            )
        return kind

    def _signed(self, values: list[Value], scheme: Scheme) -> Scheme:
        """Returns the storage that the sign of what was seen decides, where the scheme leaves it
        open."""
        if scheme.negative is None:
            return scheme
        below = any(
            bool(v.constant.data.min(initial=0) < 0) if v.constant else self._summary(v).low < 0
            for v in values
        )
        return scheme.with_storage(scheme.negative if below else scheme.storage)

    def _declaring(
        self,
        kind: QuantType,
        low: NDArray[np.generic],
        high: NDArray[np.generic],
        scheme: Scheme,
        name: str,
        *,
        weight: bool = False,
    ) -> QuantType:
        """Returns the type with its range next to its scale, where the runtime carries ranges."""
        scales = np.asarray(kind.scales())
        found = declared_range_for(self.profile, low, high, scheme, scales, name, weight=weight)
        return replace(kind, declared=found)

    def _uncut(self, values: list[Value], kind: QuantType) -> QuantType:
        """Returns a quantized type that clips before integers do not cut, where that lets a runtime
        drop them."""
        clips = [v.node for v in values if v.node.op == "clip"]
        if not clips or self.scales != "profile" or not drops_unclamping_activations(self.profile):
            return kind
        return with_unclamped_scale(kind, clips)

    def _range(self, value: Value, scheme: Scheme) -> Range:
        if (constant := value.constant) is not None:
            data = constant.data
            return float(data.min(initial=0)), float(data.max(initial=0))
        summary = self._summary(value)
        levels = scheme.high - scheme.low + 1
        rule = parse_rule(scheme.range)
        found = rule.range(
            summary,
            self._log(value) if rule.ordered else None,
            levels=levels,
            symmetric=scheme.symmetric,
            readers=self._readers(value),
        )
        return float(found.low), float(found.high)

    def _readers(self, value: Value) -> Readers | None:
        """Returns the weights of the layers that read a value, for rules that weigh channels."""
        total, axes = np.zeros(()), set()
        for use in value.uses:
            if layer_data(use.node) is value:
                axes.add(summed_axis(use.node, value))
                made = energy(use.node)
                if total.ndim and total.shape != made.shape:
                    return None
                total = total + made
        axis = next(iter(axes), None)
        summary = self.statistics.get(Key(value.lineage.tensor, axis)) if len(axes) == 1 else None
        if summary is None or axis is None or summary.channel_low.shape != total.shape:
            return None
        low, high = (np.asarray(s, np.float64) for s in (summary.channel_low, summary.channel_high))
        return Readers(total, low, high)

    def _summary(self, value: Value) -> Summary:
        key = Key(value.lineage.tensor, None)
        if key not in self.statistics:
            raise DataError(f"no statistics of %{value.name}; calibrate this model first")
        return self.statistics[key]

    def _log(self, value: Value) -> Log:
        return self.statistics.log(Key(value.lineage.tensor, None))

    def _stored(self, value: Value, scheme: Scheme) -> Value:
        """Returns what dequantizes the quantized values of a value, made once."""
        if value not in self.real:
            kind = value.type.with_element(self.types[scheme.share or value.name])
            if value.constant is not None:
                self.real[value] = self._constant(value, kind)
            else:
                self.real[value] = self._pair(value, kind)
        return self.real[value]

    def _pair(self, value: Value, kind: TensorType) -> Value:
        """Returns what dequantizes new quantized values of a value, or those that it has by that
        quantized type."""
        graph = self.graph
        if (known := _known_codes(value, kind)) is not None:
            readers = (use.node for use in known.uses if use.node.op == "dequantize")
            found = next(readers, None) or graph.add("dequantize", {"x": known})
            graph.set_lineage(found.result, value.lineage)
            return found.result
        first = min((u.node for u in value.uses), key=lambda n: n._rank, default=None)
        attrs: dict[str, Attr] = {}
        if RESULT not in value.node.schemes and kind.quant is not None:
            attrs["round"] = self.rounding.get(str(kind.quant.storage), "")
        codes = graph.add(
            "quantize",
            {"x": value},
            attrs,
            types=[kind],
            name=graph.fresh(f"{value.name}.q"),
            before=first,
        ).result
        graph.set_lineage(codes, value.lineage.then("coded"))
        reals = graph.add(
            "dequantize", {"x": codes}, name=graph.fresh(f"{value.name}.dq"), before=first
        ).result
        graph.set_lineage(reals, value.lineage)
        return reals

    def _result(self, value: Value, scheme: Scheme) -> None:
        """A stored result is read as quantized values by everybody."""
        if RESULT not in value.node.schemes:
            return
        reals = self._stored(value, scheme)
        self.graph.replace(value, reals, except_in=reals.node.operands["x"].node)

    # -- parameters ---------------------------------------------------------------------------

    def _weights(self, node: Node) -> None:
        traits = spec(node.op).traits
        slot = traits.weight
        if slot is None or slot not in node.schemes or not self._parameter(node, slot):
            return
        weight, scheme = node.operands[slot], node.schemes[slot]
        bias = node.operands.get(traits.bias or "")
        axis = channel_axis(node, scheme)
        key = (weight, scheme)
        data = self._data_scale(node)
        if key not in self.parameters or bias is not None:
            scales, zeros = _weight_numbers(self.profile, weight, scheme, axis, self.scales)
            if bias is not None and traits.bias in node.schemes:
                scales = self._room_for_bias(node, bias, data, scales)
            kind = uniform(
                scheme.storage, scales, zeros, axis=axis, bounds=scheme.bounds, name=weight.name
            )
            found = ends(finite(weight), axis)
            kind = self._declaring(kind, *found, scheme, weight.name, weight=True)
            self.parameters[key] = self._constant(weight, weight.type.with_element(kind))
            self._say(weight, kind, scheme)
        self.graph.set_operand(node, slot, self.parameters[key])
        if bias is not None and traits.bias and traits.bias in node.schemes:
            source = self.parameters[key].node.operands["x"].type.quant
            assert source is not None
            self._bias(node, traits.bias, bias, data, source)

    def _data_scale(self, node: Node) -> np.float32:
        value = node.operands[spec(node.op).traits.data]
        if value.node.op != "dequantize" or (quant := value.node.operands["x"].type.quant) is None:
            raise SchemeError(f"{node.name}: its weights are planned, its data is not")
        return np.float32(quant.scales())

    def _room_for_bias(
        self, node: Node, bias: Value, data: np.float32, scales: NDArray[np.floating]
    ) -> NDArray[np.floating]:
        """Raises weight scales where the bias would not fit 32 bits, as the runtime's tool does."""
        assert bias.constant is not None
        needed = np.abs(bias.constant.data.astype(np.float64)) / (float(data) * _INT32)
        least = (needed if np.ndim(scales) else needed.max(initial=0)) * (1 + 2**-20)
        if np.all(scales >= least):
            return scales
        self.ledger.add(
            Change.QUANTIZED, self.step, node.name, "weight scale raised so that the bias fits i32"
        )
        return np.asarray(np.maximum(scales, least.astype(np.float32)))

    def _bias(self, node: Node, slot: str, bias: Value, data: np.float32, w: QuantType) -> None:
        """Quantized values in units of the accumulator, fl32(input scale x weight scale)."""
        assert bias.constant is not None
        unit = np.asarray(data * np.asarray(w.scales(), np.float32), np.float32)
        axis = 0 if unit.ndim else None
        kind = uniform(node.schemes[slot].storage, unit, 0, axis=axis, name=bias.name)
        types = {
            slot: (v.node.operands["x"] if v.node.op == "dequantize" else v).type
            for slot, v in node.operands.items()
        }
        rule = self.profile.resolve(query_for_op(node.op, node.attrs, types, None))
        codes = quantize_bias(
            bias.constant.data, affine("i8", np.asarray(data)), affine_of(w), rule
        )
        made = self._constant(bias, bias.type.with_element(kind), codes)
        self.graph.set_operand(node, slot, made)

    def _constant(self, value: Value, kind: TensorType, codes: ArrayData | None = None) -> Value:
        """Returns a constant's quantized values, and what dequantizes them."""
        assert value.constant is not None
        assert kind.quant is not None
        if codes is None:
            codes = lazy_quantize(self.profile, value.constant.contents, kind.quant)
        graph = self.graph
        first = min((u.node for u in value.uses), key=lambda n: n._rank)
        made = graph.constant(
            Array(codes, kind, value.name), name=graph.fresh(f"{value.name}.q"), before=first
        )
        graph.set_origins(made.node, value.node.origins)
        graph.set_lineage(made, value.lineage.then("coded"))
        reals = graph.add(
            "dequantize", {"x": made}, name=graph.fresh(f"{value.name}.dq"), before=first
        ).result
        graph.set_lineage(reals, value.lineage)
        return reals

    def _say(self, weight: Value, kind: QuantType, scheme: Scheme) -> None:
        scales = np.asarray(kind.scales())
        text = f"{scales.size} scales" if scales.ndim else _numbers(kind)
        self.ledger.add(
            Change.QUANTIZED,
            self.step,
            weight.name,
            f"{scheme.storage} {scheme.granularity}, {text}",
        )


def weight_type(
    profile: Profile, node: Node, weight: Value, scheme: Scheme, scales: str = "profile"
) -> QuantType:
    """Returns the type that a layer's weights get, unless its bias asks for larger scales."""
    axis = channel_axis(node, scheme)
    numbers = _weight_numbers(profile, weight, scheme, axis, scales)
    return uniform(scheme.storage, *numbers, axis=axis, bounds=scheme.bounds, name=weight.name)


def channel_axis(node: Node, scheme: Scheme) -> int | None:
    """Returns the axis of a layer's weights along which scales are; None where there is one
    scale."""
    rule = spec(node.op).traits.weight_axis
    if scheme.granularity != "channel" or rule is None:
        return None
    return rule(make_call(node.op, node.operands, node.attrs))


def _weight_numbers(
    profile: Profile, weight: Value, scheme: Scheme, axis: int | None, scales: str
) -> tuple[NDArray[np.floating], NDArray[np.integer]]:
    low, high = ends(finite(weight), axis)
    try:
        return parameters_for_range(profile, low, high, scheme, weight=True, scales=scales)
    except ProfileError as error:
        raise ProfileError(f"{weight.name}: {error}") from error


def _known_codes(value: Value, kind: TensorType) -> Value | None:
    """Returns the quantized values of that quantized type that are made of a value already."""
    for use in value.uses:
        node = use.node
        if node.op == "quantize" and use.slot == "x" and not node.attrs["round"]:
            quant = node.result.type.quant
            if quant is not None and kind.quant is not None and quant.has_same_mapping(kind.quant):
                return node.result
    return None


def _numbers(kind: QuantType) -> str:
    zero = int(kind.zeros()) if not kind.granularity else 0
    return f"{number_text(float(np.float32(kind.scales())))}:{zero}"
