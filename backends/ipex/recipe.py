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

from .calls import LAYER_OPS, WEIGHTED, RecipeCall, calls, numbers, plain
from .edges import DYNAMIC, carried, is_dynamic
from .files import FLOAT, ROOT, STORAGES, is_recipe

Entry: TypeAlias = "dict[str, Any]"
_ARGUMENTS = 16
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
    made, _ = carried(graph, ledger, nested=nested)
    if nested:
        _require_no_norms(made)
    for node in made:
        if node.op == "quantize" and any(use.node.op != "dequantize" for use in node.result.uses):
            raise Refused(f"{node.name}: its integers are read as such; recipes have floats there")
    return json.dumps(_Recipe(made, nested).entries(ledger), indent=4)


def _require_no_norms(graph: Graph) -> None:
    """Raises Refused where a batch normalization was folded: IPEX folds what torch.fx traces."""
    for node in graph:
        norms = (o.path for o in node.origins if o.layer.startswith("torch.nn.modules.batchnorm."))
        if node.op in LAYER_OPS and (norm := next(norms, None)) is not None:
            said = (
                f"its weights hold {norm}, and a nested recipe is for modules that IPEX folds not"
            )
            remedy = "fold it in the module: torch.nn.utils.fusion.fuse_conv_bn_eval"
            raise Refused(f"{node.name}: {said}; {remedy}")


@dataclass
class _Recipe:
    graph: Graph
    nested: bool
    ids: dict[Value, int] = field(default_factory=dict)
    owners: dict[str, Entry] = field(default_factory=dict)

    def entries(self, ledger: Ledger) -> Entry:
        found = calls(self.graph, nested=self.nested)
        read = self._read(found)
        for call in found:
            if self.nested:
                for path in _above(call.owner(nested=True)):
                    self._owner(path)
            taken = [self._id(plain(value)) for value in call.operands]
            given = self._id(call.result)
            if call.numbered:
                rows = self._owner(call.owner(nested=self.nested))["q_op_infos"]
                rows[str(len(rows))] = self._row(call, taken, given, read)
        self._owner("")
        ledger.add(Change.EXACT, "write recipe", self.graph.name, f"{len(found)} calls")
        return self.owners

    def _read(self, found: list[RecipeCall]) -> dict[Value, QuantType]:
        """Returns by float value the one type in which calls read it."""
        read: dict[Value, QuantType] = {}
        for call in found:
            for value in call.operands:
                quant = numbers(value)
                if quant is None:
                    continue
                if read.setdefault(plain(value), quant) != quant:
                    said = "a recipe has one scale and zero point for a tensor"
                    raise Refused(
                        f"{call.nodes[0].name}: %{plain(value).name} is read as {quant}"
                        f" and as {read[plain(value)]}: {said}"
                    )
        return read

    def _owner(self, path: str) -> Entry:
        key = path.replace(".", ":") or ROOT
        if key not in self.owners:
            rest: Entry = {"q_op_infos": {}, "nonq_op_infos": {}, "layer_output_infos": []}
            self.owners[key] = rest
        return self.owners[key]

    def _id(self, value: Value) -> int:
        return self.ids.setdefault(value, len(self.ids))

    def _row(
        self, call: RecipeCall, taken: list[int], given: int, read: dict[Value, QuantType]
    ) -> Entry:
        inputs = [self._tensor(i, v, read) for i, v in zip(taken, call.operands, strict=True)]
        weights = [_weight(None) for _ in range(call.floats)]
        weight = None if call.weight is None else numbers(call.weight)
        if call.origin.op in WEIGHTED and call.weight is not None:
            if call.layer:
                weights.append(_weight(weight))
            else:  # one more tensor that the function is given
                number = self._id(plain(call.weight))
                inputs.append({"id": number, **_weight(weight), "force_dtype": _dtype(weight)})
        if not call.layer:
            inputs += [{}] * (_ARGUMENTS - len(inputs))
        return {
            "op_type": call.kind,
            "op_type_is_module": call.layer,
            "fqn": call.name(nested=self.nested),
            "input_tensor_infos": inputs,
            "weight_tensor_infos": weights,
            "output_tensor_infos": [_tensor(given, read.get(call.result))],
            "activation_observer": _observer(self._kind(call, read)),
            "weight_observer": _weight_observer(weight),
        }

    def _tensor(self, number: int, value: Value, read: dict[Value, QuantType]) -> Entry:
        quant = numbers(value)
        entry = _tensor(number, read.get(plain(value)))
        return {**entry, "force_dtype": _dtype(quant)}

    def _kind(self, call: RecipeCall, read: dict[Value, QuantType]) -> QuantType | None:
        """Returns a type of the call's data, else of its result, else any of the graph."""
        types = [numbers(value) for value in call.operands] + [read.get(call.result)]
        return next((t for t in types if t is not None), next(iter(read.values()), None))


def _above(path: str) -> list[str]:
    """Returns a path and those of all modules around it, outermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts) + 1)]


def _dtype(quant: QuantType | None) -> str:
    return FLOAT if quant is None else STORAGES[str(quant.storage)]


def _tensor(number: int, quant: QuantType | None) -> Entry:
    entry: Entry = {"id": number, "orig_dtype": FLOAT, "inf_dtype": _dtype(quant)}
    return entry if quant is None else {**entry, **_numbers(quant)}


def _weight(quant: QuantType | None) -> Entry:
    entry: Entry = {"orig_dtype": FLOAT, "inf_dtype": _dtype(quant)}
    return entry if quant is None else {**entry, **_numbers(quant)}


def _numbers(quant: QuantType) -> Entry:
    scales = np.asarray(quant.scales(), np.float64).reshape(-1)
    zeros = np.broadcast_to(np.asarray(quant.zeros(), np.int64).reshape(-1), scales.shape)
    return {"scale": scales.tolist(), "zero_point": zeros.tolist()}


def _observer(quant: QuantType | None) -> Entry:
    """Returns what would observe data of a type again; nothing observes before that."""
    signed = quant is not None and str(quant.storage) == "i8"
    symmetric = signed or (quant is not None and bool(np.all(np.asarray(quant.zeros()) == 128)))
    low = -128 if signed else 0
    return {
        "name": "MinMaxObserver",
        "dtype": "torch.qint8" if signed else "torch.quint8",
        "qscheme": "torch.per_tensor_symmetric" if symmetric else "torch.per_tensor_affine",
        "reduce_range": False,
        "quant_min": low,
        "quant_max": low + 255,
        "is_dynamic": False,
    }


def _weight_observer(quant: QuantType | None) -> Entry:
    whole = quant is not None and quant.axis is None
    entry: Entry = {"name": "MinMaxObserver" if whole else "PerChannelMinMaxObserver"}
    if not whole:
        entry["ch_axis"] = 0 if quant is None else quant.axis
    return entry | {
        "dtype": "torch.qint8",
        "qscheme": "torch.per_tensor_symmetric" if whole else "torch.per_channel_symmetric",
        "reduce_range": False,
        "quant_min": -128,
        "quant_max": 127,
        "is_dynamic": False,
    }
