"""Reads recipes: with the graph of their module they become its quantized types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError, QirError, Refused
from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.scheme import Scheme
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Change, Ledger
from qir.quantizing import fold
from qir.source import remember

from .calls import RecipeCall, calls
from .files import FLOAT, ROOT, STORAGES, read_calls

_TYPES = {said: U8 if kind == "u8" else I8 for kind, said in STORAGES.items()}
_MAX_ID = 2**31 - 1
"""More than any module has tensors."""
_RULES: Mapping[str, str] = {
    "MinMaxObserver": "minmax",
    "PerChannelMinMaxObserver": "minmax",
    "MovingAverageMinMaxObserver": "average",
    "HistogramObserver": "mse",
}
"""By observer: the range rule that is nearest to it."""


def read_recipe(path: str | Path, graph: Graph, ledger: Ledger | None = None) -> Graph:
    """Returns the float graph of a module with the quantized types of a recipe.

    Raises InputError, naming file and entry, for what is no recipe, and for one of another module.
    """
    ledger = ledger if ledger is not None else Ledger()
    result = _Reading(Path(path), fold(graph, ledger)).graph_of(read_calls(Path(path)))
    ledger.add(Change.QUANTIZED, "read recipe", graph.name, f"as {Path(path).name} has it")
    remember(result, Path(path))
    return result


def read_schemes(path: str | Path) -> dict[str, Scheme]:
    """Returns the schemes of the data of each call of a recipe, by `MODULE/INDEX`.

    Raises InputError, naming file and entry.
    """
    path, schemes = Path(path), {}
    for owner, entries in read_calls(path).items():
        for index, entry in entries.items():
            where = f"{owner.strip()}/{index}"
            schemes[where] = _scheme(path, where, entry.get("activation_observer"))
    return schemes


def _scheme(path: Path, where: str, observer: Any) -> Scheme:
    """Returns what an observer asks for."""
    if not isinstance(observer, dict) or str(observer.get("dtype")) not in _TYPES:
        raise InputError(f"{path}: {where} has no activation_observer of quint8 or qint8")
    rule = _RULES.get(str(observer.get("name")))
    if rule is None:
        problem = f"the observer {str(observer.get('name'))[:60]!r}, which is not known"
        raise InputError(f"{path}: {where} has {problem}")
    symmetric = observer.get("qscheme") == "torch.per_tensor_symmetric"
    return Scheme(_TYPES[observer["dtype"]], symmetric, range=rule)


def _float_list(held: Any) -> NDArray[np.float32] | None:
    """Returns the scales or zero points of a tensor; None for what is no list of numbers."""
    values = held if isinstance(held, list) else [held]
    if not values or not all(type(value) in (int, float) and abs(value) < 1e18 for value in values):
        return None
    return np.asarray(values, np.float32)


@dataclass
class _Reading:
    path: Path
    graph: Graph
    twins: dict[tuple[Value, QuantType], Value] = field(default_factory=dict)
    """The dequantized twin of a value, by its type."""

    def graph_of(self, recipe: dict[str, dict[str, dict[str, Any]]]) -> Graph:
        # A recipe of a module that torch.fx traces has one entry, for the module itself.
        nested = len(recipe) > 1
        try:
            # Some modules of one entry are numbered module by module, too.
            numbered_calls = self._numbered(nested=nested)
            if len(numbered_calls) != sum(map(len, recipe.values())):
                numbered_calls = self._numbered(nested=True)
        except Refused as error:
            raise InputError(f"{self.path}: {error}") from error
        # The calls of each module are numbered from 0, in the order of the graph.
        counts = dict.fromkeys(recipe, 0)
        for call in numbered_calls:
            owner = call.owner(nested=nested).replace(".", ":") or ROOT
            index = str(counts.get(owner, 0))
            entry = recipe.get(owner, {}).get(index)
            where = f"entry {owner!r}, call {index}"
            self._require(call, entry, where, nested=nested)
            assert entry is not None
            counts[owner] += 1
            self._require_ids(entry, where)
            self._quantize(call, entry, where)
        for owner, entries in recipe.items():
            if counts[owner] != len(entries):
                raise self._other(f"entry {owner!r} has {len(entries)} calls, not {counts[owner]}")
        self.graph.prune()
        self.graph.profile = "ipex-2.8"
        return self.graph

    def _numbered(self, *, nested: bool) -> list[RecipeCall]:
        return [call for call in calls(self.graph, nested=nested) if call.numbered]

    def _require(self, call: RecipeCall, entry: Any, where: str, *, nested: bool) -> None:
        expected = call.name(nested=nested)
        if entry is None:
            raise self._other(f"{where} is not there, where {expected or call.origin.op} is called")
        layer = entry.get("op_type_is_module")
        is_same_call = entry.get("fqn") == expected and layer is call.layer
        if not is_same_call or (layer and entry.get("op_type") != call.kind):
            description = f"{str(entry.get('op_type'))[:40]!r} of {str(entry.get('fqn'))[:40]!r}"
            raise self._other(f"{where} is {description}, not {call.kind[:40]!r} of {expected!r}")

    def _require_ids(self, entry: dict[str, Any], where: str) -> None:
        for key in ("input_tensor_infos", "output_tensor_infos"):
            tensor_infos = entry.get(key)
            for info in tensor_infos if isinstance(tensor_infos, list) else ():
                tensor_id = info.get("id", 0) if isinstance(info, dict) else 0  # weights have none
                if type(tensor_id) is not int or not 0 <= tensor_id <= _MAX_ID:
                    problem = (
                        f"{where} has the tensor id {str(tensor_id)[:40]!r}, no number of a tensor"
                    )
                    raise InputError(f"{self.path}: {problem}")

    def _other(self, problem: str) -> InputError:
        return InputError(
            f"{self.path}: a recipe of another module than {self.graph.name}: {problem}"
        )

    def _quantize(self, call: RecipeCall, entry: dict[str, Any], where: str) -> None:
        infos = entry.get("input_tensor_infos")
        if not isinstance(infos, list) or len(infos) < len(call.operands):
            raise InputError(f"{self.path}: {where} has not {len(call.operands)} inputs")
        for value, info in zip(call.operands, infos, strict=False):
            quant = self._type(info, "force_dtype", where, None)
            if quant is not None:
                self._set(call, value, self._twin(value, quant))
        # A function's weight is its second tensor, a layer's is listed apart.
        weights = entry.get("weight_tensor_infos") if call.layer else infos[1:2]
        if call.weight is not None and weights and isinstance(weights, list):
            quant = self._type(weights[0], "inf_dtype", where, len(call.weight.type.shape))
            if quant is not None:
                self._set(call, call.weight, self._weight(call.weight, quant))

    def _set(self, call: RecipeCall, value: Value, twin: Value) -> None:
        for node in call.nodes:
            for slot, operand in list(node.operands.items()):
                if operand is value:
                    self.graph.set_operand(node, slot, twin)

    def _type(self, info: Any, key: str, where: str, rank: int | None) -> QuantType | None:
        """Returns the type of a tensor; None for one that stays float."""
        if not isinstance(info, dict):
            raise InputError(f"{self.path}: {where} has a tensor that is no table")
        kind = info.get(key)
        if kind == FLOAT or kind is None:
            return None
        if not isinstance(kind, str) or kind not in _TYPES:
            raise InputError(f"{self.path}: {where} has the type {str(kind)[:60]!r}")
        scale, zero = _float_list(info.get("scale")), _float_list(info.get("zero_point"))
        if scale is None or zero is None or len(scale) != len(zero):
            raise InputError(f"{self.path}: {where} has not one scale for each zero point")
        if rank is None and len(scale) != 1:
            raise InputError(f"{self.path}: {where} has {len(scale)} scales, data have one")
        if not (np.isfinite(scale) & (scale > 0)).all() or np.any(zero % 1):
            problem = "scales that are not positive, or zero points that are no integers"
            raise InputError(f"{self.path}: {where} has {problem}")
        try:
            zero_points = zero.astype(np.int64)
            if len(scale) == 1:
                return uniform(_TYPES[kind], scale[0], zero_points[0])
            return uniform(_TYPES[kind], scale, zero_points, axis=0)
        except QirError as error:
            raise InputError(f"{self.path}: {where}: {error}") from error

    def _twin(self, value: Value, quant: QuantType) -> Value:
        if (value, quant) not in self.twins:
            kind = TensorType(value.type.shape, quant)
            name = self.graph.fresh(f"{value.name}.q")
            integers = self.graph.add("quantize", {"x": value}, types=[kind], name=name).result
            self.twins[value, quant] = self._real(integers, f"{value.name}.dq")
        return self.twins[value, quant]

    def _weight(self, value: Value, quant: QuantType) -> Value:
        """Returns a weight as integers: the extension multiplies by one over the scale."""
        assert value.constant is not None
        data = np.asarray(value.constant.data, np.float32)
        scale = np.asarray(quant.scales(), np.float32).reshape(-1, *[1] * (data.ndim - 1))
        if len(scale) not in (1, len(data)):
            raise self._other(f"%{value.name} has {len(data)} channels, not {len(scale)}")
        integers = np.rint(data * (np.float32(1) / scale)).clip(-128, 127).astype(np.int8)
        array = Array(integers, TensorType(data.shape, quant), self.graph.fresh(f"{value.name}.q"))
        return self._real(self.graph.constant(array), f"{value.name}.dq")

    def _real(self, integers: Value, name: str) -> Value:
        return self.graph.add("dequantize", {"x": integers}, name=self.graph.fresh(name)).result
