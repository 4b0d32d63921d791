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
from .files import FLOAT, ROOT, STORAGES, opened

_TYPES = {said: U8 if kind == "u8" else I8 for kind, said in STORAGES.items()}
_MOST_ID = 2**31 - 1
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
    made = _Reading(Path(path), fold(graph, ledger)).graph_of(opened(Path(path)))
    ledger.add(Change.QUANTIZED, "read recipe", graph.name, f"as {Path(path).name} has it")
    remember(made, Path(path))
    return made


def read_schemes(path: str | Path) -> dict[str, Scheme]:
    """Returns the schemes of the data of each call of a recipe, by `MODULE/INDEX`.

    Raises InputError, naming file and entry.
    """
    path, found = Path(path), {}
    for owner, rows in opened(path).items():
        for index, row in rows.items():
            where = f"{owner.strip()}/{index}"
            found[where] = _scheme(path, where, row.get("activation_observer"))
    return found


def _scheme(path: Path, where: str, held: Any) -> Scheme:
    """Returns what an observer asks for."""
    if not isinstance(held, dict) or str(held.get("dtype")) not in _TYPES:
        raise InputError(f"{path}: {where} has no activation_observer of quint8 or qint8")
    rule = _RULES.get(str(held.get("name")))
    if rule is None:
        said = f"the observer {str(held.get('name'))[:60]!r}, which is not known"
        raise InputError(f"{path}: {where} has {said}")
    symmetric = held.get("qscheme") == "torch.per_tensor_symmetric"
    return Scheme(_TYPES[held["dtype"]], symmetric, range=rule)


def _numbers(held: Any) -> NDArray[np.float32] | None:
    """Returns the scales or zero points of a tensor; None for what is no list of numbers."""
    rows = held if isinstance(held, list) else [held]
    if not rows or not all(type(row) in (int, float) and abs(row) < 1e18 for row in rows):
        return None
    return np.asarray(rows, np.float32)


@dataclass
class _Reading:
    path: Path
    graph: Graph
    coded: dict[tuple[Value, QuantType], Value] = field(default_factory=dict)
    """The dequantized twin of a value, by its type."""

    def graph_of(self, recipe: dict[str, dict[str, dict[str, Any]]]) -> Graph:
        nested = len(recipe) > 1
        try:
            found = self._numbered(nested=nested)
            if len(found) != sum(map(len, recipe.values())):
                found = self._numbered(nested=True)
        except Refused as error:
            raise InputError(f"{self.path}: {error}") from error
        counts = dict.fromkeys(recipe, 0)
        for call in found:
            owner = call.owner(nested=nested).replace(".", ":") or ROOT
            index = str(counts.get(owner, 0))
            row = recipe.get(owner, {}).get(index)
            where = f"entry {owner!r}, call {index}"
            self._require(call, row, where, nested=nested)
            assert row is not None
            counts[owner] += 1
            self._require_ids(row, where)
            self._quantize(call, row, where)
        for owner, rows in recipe.items():
            if counts[owner] != len(rows):
                raise self._other(f"entry {owner!r} has {len(rows)} calls, not {counts[owner]}")
        self.graph.prune()
        self.graph.profile = "ipex-2.8"
        return self.graph

    def _numbered(self, *, nested: bool) -> list[RecipeCall]:
        return [call for call in calls(self.graph, nested=nested) if call.numbered]

    def _require(self, call: RecipeCall, row: Any, where: str, *, nested: bool) -> None:
        wanted = call.name(nested=nested)
        if row is None:
            raise self._other(f"{where} is not there, where {wanted or call.origin.op} is called")
        layer = row.get("op_type_is_module")
        same = row.get("fqn") == wanted and layer is call.layer
        if not same or (layer and row.get("op_type") != call.kind):
            said = f"{str(row.get('op_type'))[:40]!r} of {str(row.get('fqn'))[:40]!r}"
            raise self._other(f"{where} is {said}, not {call.kind[:40]!r} of {wanted!r}")

    def _require_ids(self, row: dict[str, Any], where: str) -> None:
        for key in ("input_tensor_infos", "output_tensor_infos"):
            held = row.get(key)
            for info in held if isinstance(held, list) else ():
                number = info.get("id", 0) if isinstance(info, dict) else 0  # weights have none
                if type(number) is not int or not 0 <= number <= _MOST_ID:
                    said = f"{where} has the tensor id {str(number)[:40]!r}, no number of a tensor"
                    raise InputError(f"{self.path}: {said}")

    def _other(self, said: str) -> InputError:
        return InputError(f"{self.path}: a recipe of another module than {self.graph.name}: {said}")

    def _quantize(self, call: RecipeCall, row: dict[str, Any], where: str) -> None:
        infos = row.get("input_tensor_infos")
        if not isinstance(infos, list) or len(infos) < len(call.operands):
            raise InputError(f"{self.path}: {where} has not {len(call.operands)} inputs")
        for value, info in zip(call.operands, infos, strict=False):
            quant = self._type(info, "force_dtype", where, None)
            if quant is not None:
                self._set(call, value, self._twin(value, quant))
        weights = row.get("weight_tensor_infos") if call.layer else infos[1:2]
        if call.weight is not None and weights and isinstance(weights, list):
            quant = self._type(weights[0], "inf_dtype", where, len(call.weight.type.shape))
            if quant is not None:
                self._set(call, call.weight, self._weight(call.weight, quant))

    def _set(self, call: RecipeCall, value: Value, twin: Value) -> None:
        for node in call.nodes:
            for slot, held in list(node.operands.items()):
                if held is value:
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
        scale, zero = _numbers(info.get("scale")), _numbers(info.get("zero_point"))
        if scale is None or zero is None or len(scale) != len(zero):
            raise InputError(f"{self.path}: {where} has not one scale for each zero point")
        if rank is None and len(scale) != 1:
            raise InputError(f"{self.path}: {where} has {len(scale)} scales, data have one")
        if not (np.isfinite(scale) & (scale > 0)).all() or np.any(zero % 1):
            said = "scales that are not positive, or zero points that are no integers"
            raise InputError(f"{self.path}: {where} has {said}")
        try:
            whole = zero.astype(np.int64)
            if len(scale) == 1:
                return uniform(_TYPES[kind], scale[0], whole[0])
            return uniform(_TYPES[kind], scale, whole, axis=0)
        except QirError as error:
            raise InputError(f"{self.path}: {where}: {error}") from error

    def _twin(self, value: Value, quant: QuantType) -> Value:
        if (value, quant) not in self.coded:
            kind = TensorType(value.type.shape, quant)
            name = self.graph.fresh(f"{value.name}.q")
            codes = self.graph.add("quantize", {"x": value}, types=[kind], name=name).result
            self.coded[value, quant] = self._real(codes, f"{value.name}.dq")
        return self.coded[value, quant]

    def _weight(self, value: Value, quant: QuantType) -> Value:
        """Returns a weight as integers: the extension multiplies by one over the scale."""
        assert value.constant is not None
        data = np.asarray(value.constant.data, np.float32)
        scale = np.asarray(quant.scales(), np.float32).reshape(-1, *[1] * (data.ndim - 1))
        if len(scale) not in (1, len(data)):
            raise self._other(f"%{value.name} has {len(data)} channels, not {len(scale)}")
        codes = np.rint(data * (np.float32(1) / scale)).clip(-128, 127).astype(np.int8)
        held = Array(codes, TensorType(data.shape, quant), self.graph.fresh(f"{value.name}.q"))
        return self._real(self.graph.constant(held), f"{value.name}.dq")

    def _real(self, codes: Value, name: str) -> Value:
        return self.graph.add("dequantize", {"x": codes}, name=self.graph.fresh(name)).result
