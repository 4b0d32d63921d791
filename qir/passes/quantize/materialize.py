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
from qir.ir.dtype import F32, I64, U8
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
from qir.numerics.scale_rules import known_scales
from qir.passes.quantize.quantize_dynamic import finite_weights, least_and_greatest
from qir.profiles import (
    Profile,
    declared_range_for,
    lazy_quantize,
    parameters_for_range,
    profile_in,
    query_for_op,
)
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.layer_weights import energy
from qir.rewrite.runner.options import option

Range: TypeAlias = "tuple[float, float]"
"""Least and greatest."""


def read_statistics(path: str | list[str]) -> Statistics:
    """Reads the statistics that a pass is given as a file."""
    if isinstance(path, list):
        raise ValueError("a list")
    return Statistics.load(Path(path))


def _read_roundings(texts: str | list[str]) -> tuple[tuple[str, str], ...]:
    parts = [text.partition("=") for text in ([texts] if isinstance(texts, str) else texts)]
    return tuple((storage, rounding) for storage, _, rounding in parts)


def _rounding_texts(pairs: object) -> list[str]:
    return (
        [f"{storage}={rounding}" for storage, rounding in pairs] if isinstance(pairs, tuple) else []
    )


def _read_scale_rule(text: str | list[str]) -> str:
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
    scales: str = field(default="profile", metadata=option(read=_read_scale_rule))
    """The scale rule, or the family of them, that takes the place of the profile's."""
    rounding: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=option(
            read=_read_roundings, write=_rounding_texts, kind="list of storage=rounding"
        ),
    )
    """How a quantize of what no integer op makes rounds, by storage."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a sum of two inputs, each with a plan for its quantized values."""
        scheme, tensor_type = Scheme(U8), TensorType((4,), F32)
        graph = Graph("main")
        values = [graph.add("input", types=[tensor_type], name=name).result for name in "ab"]
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
        self.profile = profile_in(graph, profile_name)
        self.ledger = ledger
        self.step = step
        self.scales = scales
        self.rounding: dict[str, str] = {}
        self.types: dict[str, QuantType] = {}
        self.dequantized: dict[Value, Value] = {}
        """Value -> what dequantizes its quantized values."""
        self.parameters: dict[tuple[Value, Scheme], Value] = {}

    def run(self) -> int:
        planned = [n for n in self.graph if n.schemes]
        wanted = self._planned_activations(planned)
        # Values that name one `share` get one type: what moves integers without changing them, such
        # as concat or max pooling, needs the same scale on both sides.
        groups: dict[str, list[Value]] = {}
        for value, scheme in wanted.items():
            groups.setdefault(scheme.share or value.name, []).append(value)
        again = self._requantized_operands(planned, wanted)
        for value, scheme in dict.fromkeys(again.values()):
            groups[scheme.share].append(value)
        for key, values in groups.items():
            # What is only quantized again comes last.
            self.types[key] = self._shared_type(values, wanted[values[0]])
        # Reads first: each planned operand comes from a dequantize, made once for all of its
        # readers.
        for node in planned:
            for slot in node.schemes:
                if slot != RESULT and not self._is_parameter(node, slot):
                    value = node.operands[slot]
                    read = self._dequantized_value(value, wanted[value])
                    if (node, slot) in again:
                        read = self._quantized_again(read, again[node, slot][1], node)
                    self.graph.set_operand(node, slot, read)
        for value, scheme in wanted.items():
            # Then results: readers without a plan get the dequantized value too.
            self._replace_result(value, scheme)
        for node in planned:
            # Weights come last, since the scale of a bias needs the final type of the data.
            self._quantize_weights(node)
        for node in planned:
            for slot in list(node.schemes):
                self.graph.set_scheme(node, slot, None)
        return len(planned)

    def _planned_activations(self, planned: list[Node]) -> dict[Value, Scheme]:
        planned_schemes: dict[Value, Scheme] = {}
        for node in planned:
            for slot, scheme in node.schemes.items():
                if slot == RESULT:
                    planned_schemes |= dict.fromkeys(node.results, scheme)
                elif not self._is_parameter(node, slot):
                    planned_schemes.setdefault(node.operands[slot], scheme)
        return planned_schemes

    def _requantized_operands(
        self, planned: list[Node], wanted: dict[Value, Scheme]
    ) -> dict[tuple[Node, str], tuple[Value, Scheme]]:
        """Returns the slots that read a stored value by another type than its own."""
        return {
            (node, slot): (value, scheme)
            for node in planned
            for slot, scheme in node.schemes.items()
            if slot != RESULT
            and not self._is_parameter(node, slot)
            and wanted[value := node.operands[slot]].share != scheme.share
        }

    def _is_parameter(self, node: Node, slot: str) -> bool:
        traits = spec(node.op).traits
        return slot == traits.bias or (
            slot == traits.weight and node.operands[slot].constant is not None
        )

    # -- activations --------------------------------------------------------------------------

    def _shared_type(self, values: list[Value], scheme: Scheme) -> QuantType:
        """Returns one quantized type for values that share it: the range covers them all."""
        scheme = self._with_observed_sign(values, scheme)
        # A scheme with a fixed scale, as a kernel may ask for, needs no statistics.
        if scheme.scale is not None:
            return uniform(
                scheme.storage,
                np.asarray(scheme.scale, np.float32),
                scheme.zero or 0,
                bounds=scheme.bounds,
            )
        ranges = [self._range_of(v, scheme) for v in values]
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        ends = np.asarray(low, np.float32), np.asarray(high, np.float32)
        try:
            scale, zero = parameters_for_range(self.profile, *ends, scheme, scales=self.scales)
        except ProfileError as error:
            raise ProfileError(f"{values[0].name}: {error}") from error
        quant_type = self._without_clamping(
            values, uniform(scheme.storage, scale, zero, bounds=scheme.bounds)
        )
        quant_type = self._with_declared_range(quant_type, *ends, scheme, values[0].name)
        for value in values:
            self.ledger.add(
                Change.QUANTIZED,
                self.step,
                value.name,
                f"{scheme.storage} {_parameters_text(quant_type)} for {low:.6g}..{high:.6g} "
                f"({scheme.range})",
            )
        return quant_type

    def _with_observed_sign(self, values: list[Value], scheme: Scheme) -> Scheme:
        """Returns the storage that the sign of what was seen decides, where the scheme leaves it
        open."""
        if scheme.negative is None:
            return scheme
        # A constant shows its sign itself; of other values calibration has seen it.
        is_negative = any(
            bool(v.constant.data.min(initial=0) < 0) if v.constant else self._summary(v).low < 0
            for v in values
        )
        return scheme.with_storage(scheme.negative if is_negative else scheme.storage)

    def _with_declared_range(
        self,
        quant_type: QuantType,
        low: NDArray[np.generic],
        high: NDArray[np.generic],
        scheme: Scheme,
        name: str,
        *,
        weight: bool = False,
    ) -> QuantType:
        """Returns the type with its range next to its scale, where the runtime carries ranges."""
        scales = np.asarray(quant_type.scales())
        declared = declared_range_for(self.profile, low, high, scheme, scales, name, weight=weight)
        return replace(quant_type, declared=declared)

    def _without_clamping(self, values: list[Value], quant_type: QuantType) -> QuantType:
        """Returns a quantized type that clips before integers do not cut, where that lets a runtime
        drop them."""
        clips = [value.node for value in values if value.node.op == "clip"]
        if not clips or self.scales != "profile" or not drops_unclamping_activations(self.profile):
            return quant_type
        return with_unclamped_scale(quant_type, clips)

    def _range_of(self, value: Value, scheme: Scheme) -> Range:
        if (constant := value.constant) is not None:
            data = constant.data
            return float(data.min(initial=0)), float(data.max(initial=0))
        summary = self._summary(value)
        # Rules that search for a range, such as mse and entropy, need the number of steps in it.
        levels = scheme.high - scheme.low + 1
        rule = parse_rule(scheme.range)
        chosen = rule.range(
            summary,
            self._log(value) if rule.ordered else None,
            levels=levels,
            symmetric=scheme.symmetric,
            readers=self._reading_weights(value),
        )
        return float(chosen.low), float(chosen.high)

    def _reading_weights(self, value: Value) -> Readers | None:
        """Returns the weights of the layers that read a value, for rules that weigh channels."""
        energies, axes = np.zeros(()), set()
        for use in value.uses:
            if layer_data(use.node) is value:
                # Channels can be weighed only where all layers sum over the same axis of the value.
                axes.add(summed_axis(use.node, value))
                layer_energy = energy(use.node)
                if energies.ndim and energies.shape != layer_energy.shape:
                    return None
                energies = energies + layer_energy
        axis = next(iter(axes), None)
        summary = self.statistics.get(Key(value.lineage.tensor, axis)) if len(axes) == 1 else None
        if summary is None or axis is None or summary.channel_low.shape != energies.shape:
            return None
        low, high = (np.asarray(s, np.float64) for s in (summary.channel_low, summary.channel_high))
        return Readers(energies, low, high)

    def _summary(self, value: Value) -> Summary:
        key = Key(value.lineage.tensor, None)
        if key not in self.statistics:
            raise DataError(f"no statistics of %{value.name}; calibrate this model first")
        return self.statistics[key]

    def _log(self, value: Value) -> Log:
        return self.statistics.log(Key(value.lineage.tensor, None))

    def _dequantized_value(self, value: Value, scheme: Scheme) -> Value:
        """Returns what dequantizes the quantized values of a value, made once."""
        if value not in self.dequantized:
            tensor_type = value.type.with_element(self.types[scheme.share or value.name])
            if value.constant is not None:
                self.dequantized[value] = self._quantize_constant(value, tensor_type)
            else:
                self.dequantized[value] = self._quantize_dequantize(value, tensor_type)
        return self.dequantized[value]

    def _quantize_dequantize(self, value: Value, tensor_type: TensorType) -> Value:
        """Returns what dequantizes new quantized values of a value, or those that it has by that
        quantized type."""
        graph = self.graph
        if (quantized := _existing_quantized(value, tensor_type)) is not None:
            dequantizes = (use.node for use in quantized.uses if use.node.op == "dequantize")
            existing = next(dequantizes, None) or graph.add("dequantize", {"x": quantized})
            graph.set_lineage(existing.result, value.lineage)
            return existing.result
        first_reader = min((u.node for u in value.uses), key=lambda n: n._rank, default=None)
        attrs: dict[str, Attr] = {}
        if RESULT not in value.node.schemes and tensor_type.quant is not None:
            attrs["round"] = self.rounding.get(str(tensor_type.quant.storage), "")
        quantized = graph.add(
            "quantize",
            {"x": value},
            attrs,
            types=[tensor_type],
            name=graph.fresh(f"{value.name}.q"),
            before=first_reader,
        ).result
        graph.set_lineage(quantized, value.lineage.then("coded"))
        dequantized = graph.add(
            "dequantize",
            {"x": quantized},
            name=graph.fresh(f"{value.name}.dq"),
            before=first_reader,
        ).result
        graph.set_lineage(dequantized, value.lineage)
        return dequantized

    def _quantized_again(self, value: Value, scheme: Scheme, first: Node) -> Value:
        """Returns a dequantized value as another share set has it, made before its first reader."""
        key = value, scheme
        if key not in self.parameters:
            graph = self.graph
            tensor_type = value.type.with_element(self.types[scheme.share])
            stored = value.node.operands["x"]
            before, after = stored.type.quant, tensor_type.quant
            assert before is not None
            assert after is not None
            # Runtimes have a kernel from integers to integers within one storage.
            alike = before.storage == after.storage
            quantized = graph.add(
                "requantize" if alike else "quantize",
                {"x": stored if alike else value},
                {} if alike else {"round": self.rounding.get(str(after.storage), "")},
                types=[tensor_type],
                name=graph.fresh(f"{stored.name}.again"),
                before=first,
            ).result
            graph.set_lineage(quantized, value.lineage.then("coded"))
            read = graph.add(
                "dequantize",
                {"x": quantized},
                name=graph.fresh(f"{value.name}.again"),
                before=first,
            ).result
            graph.set_lineage(read, value.lineage)
            self.parameters[key] = read
        return self.parameters[key]

    def _replace_result(self, value: Value, scheme: Scheme) -> None:
        """A stored result is read as quantized values by everybody."""
        if RESULT not in value.node.schemes:
            return
        dequantized = self._dequantized_value(value, scheme)
        self.graph.replace(value, dequantized, except_in=dequantized.node.operands["x"].node)

    # -- parameters ---------------------------------------------------------------------------

    def _quantize_weights(self, node: Node) -> None:
        traits = spec(node.op).traits
        slot = traits.weight
        if slot is None or slot not in node.schemes or not self._is_parameter(node, slot):
            return
        weight, scheme = node.operands[slot], node.schemes[slot]
        bias = node.operands.get(traits.bias or "")
        axis = channel_axis(node, scheme)
        key = (weight, scheme)
        data_scale = self._data_scale(node)
        # Layers that share a weight share its integers, unless a bias may ask for a larger scale.
        if key not in self.parameters or bias is not None:
            scales, zeros = _weight_parameters(self.profile, weight, scheme, axis, self.scales)
            if bias is not None and traits.bias in node.schemes:
                scales = self._scales_that_fit_bias(node, bias, data_scale, scales)
            quant_type = uniform(
                scheme.storage, scales, zeros, axis=axis, bounds=scheme.bounds, name=weight.name
            )
            weight_range = least_and_greatest(finite_weights(weight), axis)
            quant_type = self._with_declared_range(
                quant_type, *weight_range, scheme, weight.name, weight=True
            )
            self.parameters[key] = self._quantize_constant(
                weight, weight.type.with_element(quant_type)
            )
            self._report_weight(weight, quant_type, scheme)
        self.graph.set_operand(node, slot, self.parameters[key])
        if bias is not None and traits.bias and traits.bias in node.schemes:
            weight_quant = self.parameters[key].node.operands["x"].type.quant
            assert weight_quant is not None
            self._quantize_bias(node, traits.bias, bias, data_scale, weight_quant)

    def _data_scale(self, node: Node) -> np.float32:
        value = node.operands[spec(node.op).traits.data]
        # The unit of an integer bias needs the scale of the data, which only a quantized operand
        # has.
        if value.node.op != "dequantize" or (quant := value.node.operands["x"].type.quant) is None:
            raise SchemeError(f"{node.name}: its weights are planned, its data is not")
        return np.float32(quant.scales())

    def _scales_that_fit_bias(
        self, node: Node, bias: Value, data_scale: np.float32, scales: NDArray[np.floating]
    ) -> NDArray[np.floating]:
        """Raises weight scales where the bias would not fit, as the runtime's tool does."""
        assert bias.constant is not None
        scheme = node.schemes[spec(node.op).traits.bias or ""]
        most = float(scheme.high)
        needed = np.abs(bias.constant.data.astype(np.float64)) / (float(data_scale) * most)
        # |bias| / (data scale * weight scale) <= 2^31 - 1, or what the scheme says, solved for
        # the weight scale. The factor 1 + 2^-20 keeps this true after it is rounded to float32.
        least_scales = (needed if np.ndim(scales) else needed.max(initial=0)) * (1 + 2**-20)
        if np.all(scales >= least_scales):
            return scales
        self.ledger.add(
            Change.QUANTIZED,
            self.step,
            node.name,
            f"weight scale raised so that the bias fits {scheme.storage}",
        )
        return np.asarray(np.maximum(scales, least_scales.astype(np.float32)))

    def _quantize_bias(
        self, node: Node, slot: str, bias: Value, data_scale: np.float32, weight_quant: QuantType
    ) -> None:
        """Quantized values in units of the accumulator, fl32(input scale x weight scale)."""
        assert bias.constant is not None
        # One step of the accumulator: the product of both scales, rounded once to float32.
        unit = np.asarray(data_scale * np.asarray(weight_quant.scales(), np.float32), np.float32)
        axis = 0 if unit.ndim else None
        quant_type = uniform(node.schemes[slot].storage, unit, 0, axis=axis, name=bias.name)
        types = {
            slot: (v.node.operands["x"] if v.node.op == "dequantize" else v).type
            for slot, v in node.operands.items()
        }
        rule = self.profile.resolve(query_for_op(node.op, node.attrs, types, None))
        if quant_type.storage == I64 and rule.acc.type != "i64":
            # The op becomes another before it is computed, whose sums have 64 bits.
            rule = replace(rule, acc=replace(rule.acc, type="i64"))
        quantized = quantize_bias(
            bias.constant.data, affine("i8", np.asarray(data_scale)), affine_of(weight_quant), rule
        )
        new_bias = self._quantize_constant(bias, bias.type.with_element(quant_type), quantized)
        self.graph.set_operand(node, slot, new_bias)

    def _quantize_constant(
        self, value: Value, tensor_type: TensorType, quantized: ArrayData | None = None
    ) -> Value:
        """Returns a constant's quantized values, and what dequantizes them."""
        assert value.constant is not None
        assert tensor_type.quant is not None
        if quantized is None:
            quantized = lazy_quantize(self.profile, value.constant.contents, tensor_type.quant)
        graph = self.graph
        first_reader = min((u.node for u in value.uses), key=lambda n: n._rank)
        stored = graph.constant(
            Array(quantized, tensor_type, value.name),
            name=graph.fresh(f"{value.name}.q"),
            before=first_reader,
        )
        graph.set_origins(stored.node, value.node.origins)
        graph.set_lineage(stored, value.lineage.then("coded"))
        dequantized = graph.add(
            "dequantize", {"x": stored}, name=graph.fresh(f"{value.name}.dq"), before=first_reader
        ).result
        graph.set_lineage(dequantized, value.lineage)
        return dequantized

    def _report_weight(self, weight: Value, quant_type: QuantType, scheme: Scheme) -> None:
        scales = np.asarray(quant_type.scales())
        text = f"{scales.size} scales" if scales.ndim else _parameters_text(quant_type)
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
    parameters = _weight_parameters(profile, weight, scheme, axis, scales)
    return uniform(scheme.storage, *parameters, axis=axis, bounds=scheme.bounds, name=weight.name)


def channel_axis(node: Node, scheme: Scheme) -> int | None:
    """Returns the axis of a layer's weights along which scales are; None where there is one
    scale."""
    rule = spec(node.op).traits.weight_axis
    if scheme.granularity != "channel" or rule is None:
        return None
    return rule(make_call(node.op, node.operands, node.attrs))


def _weight_parameters(
    profile: Profile, weight: Value, scheme: Scheme, axis: int | None, scales: str
) -> tuple[NDArray[np.floating], NDArray[np.integer]]:
    low, high = least_and_greatest(finite_weights(weight), axis)
    try:
        return parameters_for_range(profile, low, high, scheme, weight=True, scales=scales)
    except ProfileError as error:
        raise ProfileError(f"{weight.name}: {error}") from error


def _existing_quantized(value: Value, tensor_type: TensorType) -> Value | None:
    """Returns the quantized values of that quantized type that are made of a value already."""
    for use in value.uses:
        node = use.node
        if node.op == "quantize" and use.slot == "x" and not node.attrs["round"]:
            quant = node.result.type.quant
            if (
                quant is not None
                and tensor_type.quant is not None
                and quant.has_same_mapping(tensor_type.quant)
            ):
                return node.result
    return None


def _parameters_text(quant_type: QuantType) -> str:
    zero = int(quant_type.zeros()) if not quant_type.granularity else 0
    return f"{number_text(float(np.float32(quant_type.scales())))}:{zero}"
