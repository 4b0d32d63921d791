"""Recipes: the JSON that `load_qconf_summary` takes for the user's own module."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.source import untouched

from .calls import LAYER_OPS, WEIGHTED, RecipeCall, calls, float_source, quantized_type
from .edges import DYNAMIC, carried, is_dynamic
from .files import FLOAT, ROOT, STORAGES, is_recipe

Entry: TypeAlias = "dict[str, Any]"
_MAX_ARGUMENTS = 16
"""More than any function has: arguments that are no tensors stand as {} in the list of inputs."""


def text(graph: Graph, ledger: Ledger, *, nested: bool) -> str:
    """Returns the recipe of a quantized graph that was read from a module.

    A module that torch.fx traces is numbered as one list of calls, any other (`nested`) module by
    module. Refused for what no recipe holds, where it would quantize nothing, and for a graph that
    was read from no module.
    """
    source = untouched(graph)
    if source is not None and is_recipe(source):
        return source.read_text(encoding="utf-8")
    if is_dynamic(graph):
        raise Refused(f"{graph.name}: {DYNAMIC}")
    reduced, _ = carried(graph, ledger, nested=nested)
    if nested:
        _require_no_norms(reduced)
    for node in reduced:
        if node.op == "quantize" and any(use.node.op != "dequantize" for use in node.result.uses):
            raise Refused(f"{node.name}: its integers are read as such; recipes have floats there")
    return json.dumps(_Recipe(reduced, nested).entries(ledger), indent=4)


def _require_no_norms(graph: Graph) -> None:
    """Raises Refused where a batch normalization was folded: IPEX folds what torch.fx traces."""
    for node in graph:
        norms = (o.path for o in node.origins if o.layer.startswith("torch.nn.modules.batchnorm."))
        if node.op in LAYER_OPS and (norm := next(norms, None)) is not None:
            reason = (
                f"its weights hold {norm}, and a nested recipe is for modules that IPEX folds not"
            )
            remedy = "fold it in the module: torch.nn.utils.fusion.fuse_conv_bn_eval"
            raise Refused(f"{node.name}: {reason}; {remedy}")


@dataclass
class _Recipe:
    graph: Graph
    nested: bool
    ids: dict[Value, int] = field(default_factory=dict)
    owners: dict[str, Entry] = field(default_factory=dict)

    def entries(self, ledger: Ledger) -> Entry:
        recipe_calls = calls(self.graph, nested=self.nested)
        read_types = self._read(recipe_calls)
        for call in recipe_calls:
            if self.nested:
                # A nested recipe has an entry for each module around a call, also without calls of
                # its own.
                for path in _enclosing_paths(call.owner(nested=True)):
                    self._owner(path)
            # Numbers are given in the order in which the extension sees the tensors first.
            operand_ids = [self._id(float_source(value)) for value in call.operands]
            result_id = self._id(call.result)
            if call.numbered:
                entries = self._owner(call.owner(nested=self.nested))["q_op_infos"]
                entries[str(len(entries))] = self._row(call, operand_ids, result_id, read_types)
        self._owner("")
        ledger.add(Change.EXACT, "write recipe", self.graph.name, f"{len(recipe_calls)} calls")
        return self.owners

    def _read(self, found: list[RecipeCall]) -> dict[Value, QuantType]:
        """Returns by float value the one type in which calls read it."""
        read_types: dict[Value, QuantType] = {}
        for call in found:
            for value in call.operands:
                quant = quantized_type(value)
                if quant is None:
                    continue
                if read_types.setdefault(float_source(value), quant) != quant:
                    reason = "a recipe has one scale and zero point for a tensor"
                    raise Refused(
                        f"{call.nodes[0].name}: %{float_source(value).name} is read as {quant}"
                        f" and as {read_types[float_source(value)]}: {reason}"
                    )
        return read_types

    def _owner(self, path: str) -> Entry:
        key = path.replace(".", ":") or ROOT
        if key not in self.owners:
            new_entry: Entry = {"q_op_infos": {}, "nonq_op_infos": {}, "layer_output_infos": []}
            self.owners[key] = new_entry
        return self.owners[key]

    def _id(self, value: Value) -> int:
        return self.ids.setdefault(value, len(self.ids))

    def _row(
        self,
        call: RecipeCall,
        operand_ids: list[int],
        result_id: int,
        read_types: dict[Value, QuantType],
    ) -> Entry:
        inputs = [
            self._tensor(i, v, read_types) for i, v in zip(operand_ids, call.operands, strict=True)
        ]
        weights = [_weight(None) for _ in range(call.floats)]
        weight = None if call.weight is None else quantized_type(call.weight)
        if call.origin.op in WEIGHTED and call.weight is not None:
            if call.layer:
                weights.append(_weight(weight))
            else:  # one more tensor that the function is given
                weight_id = self._id(float_source(call.weight))
                inputs.append({"id": weight_id, **_weight(weight), "force_dtype": _dtype(weight)})
        # Arguments that are no tensors are empty tables, up to any function's number of arguments.
        if not call.layer:
            inputs += [{}] * (_MAX_ARGUMENTS - len(inputs))
        return {
            "op_type": call.kind,
            "op_type_is_module": call.layer,
            "fqn": call.name(nested=self.nested),
            "input_tensor_infos": inputs,
            "weight_tensor_infos": weights,
            "output_tensor_infos": [_tensor(result_id, read_types.get(call.result))],
            "activation_observer": _observer(self._kind(call, read_types)),
            "weight_observer": _weight_observer(weight),
        }

    def _tensor(self, tensor_id: int, value: Value, read_types: dict[Value, QuantType]) -> Entry:
        quant = quantized_type(value)
        entry = _tensor(tensor_id, read_types.get(float_source(value)))
        return {**entry, "force_dtype": _dtype(quant)}

    def _kind(self, call: RecipeCall, read_types: dict[Value, QuantType]) -> QuantType | None:
        """Returns a type of the call's data, else of its result, else any of the graph."""
        types = [quantized_type(value) for value in call.operands] + [read_types.get(call.result)]
        return next((t for t in types if t is not None), next(iter(read_types.values()), None))


def _enclosing_paths(path: str) -> list[str]:
    """Returns a path and those of all modules around it, outermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts) + 1)]


def _dtype(quant: QuantType | None) -> str:
    return FLOAT if quant is None else STORAGES[str(quant.storage)]


def _tensor(tensor_id: int, quant: QuantType | None) -> Entry:
    entry: Entry = {"id": tensor_id, "orig_dtype": FLOAT, "inf_dtype": _dtype(quant)}
    return entry if quant is None else {**entry, **_scale_and_zero_lists(quant)}


def _weight(quant: QuantType | None) -> Entry:
    entry: Entry = {"orig_dtype": FLOAT, "inf_dtype": _dtype(quant)}
    return entry if quant is None else {**entry, **_scale_and_zero_lists(quant)}


def _scale_and_zero_lists(quant: QuantType) -> Entry:
    scales = np.asarray(quant.scales(), np.float64).reshape(-1)
    zeros = np.broadcast_to(np.asarray(quant.zeros(), np.int64).reshape(-1), scales.shape)
    return {"scale": scales.tolist(), "zero_point": zeros.tolist()}


def _observer(quant: QuantType | None) -> Entry:
    """Returns what would observe data of a type again; nothing observes before that."""
    is_signed = quant is not None and str(quant.storage) == "i8"
    symmetric = is_signed or (quant is not None and bool(np.all(np.asarray(quant.zeros()) == 128)))
    low = -128 if is_signed else 0
    return {
        "name": "MinMaxObserver",
        "dtype": "torch.qint8" if is_signed else "torch.quint8",
        "qscheme": "torch.per_tensor_symmetric" if symmetric else "torch.per_tensor_affine",
        "reduce_range": False,
        "quant_min": low,
        "quant_max": low + 255,
        "is_dynamic": False,
    }


def _weight_observer(quant: QuantType | None) -> Entry:
    per_tensor = quant is not None and quant.axis is None
    entry: Entry = {"name": "MinMaxObserver" if per_tensor else "PerChannelMinMaxObserver"}
    if not per_tensor:
        entry["ch_axis"] = 0 if quant is None else quant.axis
    return entry | {
        "dtype": "torch.qint8",
        "qscheme": "torch.per_tensor_symmetric" if per_tensor else "torch.per_channel_symmetric",
        "reduce_range": False,
        "quant_min": -128,
        "quant_max": 127,
        "is_dynamic": False,
    }
