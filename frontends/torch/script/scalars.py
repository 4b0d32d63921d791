"""Functions of numbers, strings and lists, which are evaluated while TorchScript is read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

DTYPES: Mapping[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    8: torch.complex32,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    12: torch.qint8,
    13: torch.quint8,
    14: torch.qint32,
    15: torch.bfloat16,
}
"""Element types by c10::ScalarType."""
DTYPE_NUMBERS = {kind: number for number, kind in DTYPES.items()}
MEMORY_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)
"""Memory formats by c10::MemoryFormat."""


def _slice(items: Any, start: Any, end: Any, step: int) -> Any:
    return items[slice(start, end, step)]


def _append(items: list[Any], item: Any) -> list[Any]:
    items.append(item)
    # `aten::append` returns the list, which traced code goes on with.
    return items


def _extend(items: list[Any], more: list[Any]) -> None:
    items.extend(more)


def _insert(items: list[Any], index: int, item: Any) -> None:
    items.insert(index, item)


def _pop(items: list[Any], index: int = -1) -> Any:
    return items.pop(index)


def _set_item(container: Any, key: Any, item: Any) -> Any:
    container[key] = item
    return container


def _range_length(low: int, high: int, step: int) -> int:
    return len(range(low, high, step))


def _min(a: Any, b: Any = None) -> Any:
    return min(a) if b is None else min(a, b)


def _max(a: Any, b: Any = None) -> Any:
    return max(a) if b is None else max(a, b)


def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a + (b if alpha == 1 else b * alpha)


def _subtract(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a - (b if alpha == 1 else b * alpha)


def _subtract_from(a: Any, b: Any, alpha: Any = 1) -> Any:
    return _subtract(b, a, alpha)


def _divide(a: Any, b: Any, mode: str | None = None) -> Any:
    if mode == "floor":
        return a // b
    # The remaining mode is "trunc".
    return a / b if mode is None else math.trunc(a / b)


def _format(text: str, *arguments: Any) -> str:
    return text.format(*arguments)


SCALARS: dict[str, Callable[..., Any]] = {
    "aten::add": _add,
    "aten::sub": _subtract,
    "aten::rsub": _subtract_from,
    "aten::mul": operator.mul,
    "aten::div": _divide,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::neg": operator.neg,
    "aten::abs": abs,
    "aten::pow": pow,
    "aten::sqrt": math.sqrt,
    "aten::log": math.log,
    "aten::exp": math.exp,
    "aten::floor": math.floor,
    "aten::ceil": math.ceil,
    "aten::round": round,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__not__": operator.not_,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__contains__": operator.contains,
    "aten::__getitem__": operator.getitem,
    "aten::_set_item": _set_item,
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::len": len,
    "aten::list": list,
    "aten::dict": dict,
    "aten::keys": lambda mapping: list(mapping.keys()),
    "aten::values": lambda mapping: list(mapping.values()),
    "aten::items": lambda mapping: list(mapping.items()),
    "aten::get": lambda mapping, key, default=None: mapping.get(key, default),
    "aten::append": _append,
    "aten::extend": _extend,
    "aten::insert": _insert,
    "aten::pop": _pop,
    "aten::reverse": lambda items: items.reverse(),
    "aten::copy": lambda items: items.copy(),
    "aten::index": lambda items, item: items.index(item),
    "aten::slice": _slice,
    "aten::format": _format,
    "aten::str": str,
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "aten::IntImplicit": int,
    "aten::FloatImplicit": float,
    "aten::ScalarImplicit": lambda number: number,
    "aten::scalar_tensor": lambda number, *options: number,
    "aten::item": lambda number: number,
    "aten::warn": lambda *arguments: None,
    "aten::Size": list,
    "aten::_unwrap_optional": lambda item: item,
    "prim::min": _min,
    "prim::max": _max,
    "prim::abs": abs,
    "prim::NumToTensor": lambda number: number,
    "prim::unchecked_cast": lambda item: item,
    "prim::unchecked_unwrap_optional": lambda item: item,
    "prim::rangelist": lambda count: list(range(count)),
    "prim::TupleIndex": operator.getitem,
    "prim::Print": lambda *arguments: None,
    "prim::StringIndex": operator.getitem,
}
"""Functions by operator."""

SYMBOLIC_SCALARS: dict[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "prim::min": torch.sym_min,
    "prim::max": torch.sym_max,
}
"""Functions that accept symbolic sizes, and then become calls of the program."""
COMPARISONS = frozenset(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
"""Comparisons; of symbolic sizes they are decided by the example's."""
IDENTITY = frozenset(
    (
        "aten::Int",
        "aten::IntImplicit",
        "aten::ScalarImplicit",
        "aten::item",
        "prim::NumToTensor",
        "prim::unchecked_cast",
        "aten::_unwrap_optional",
        "prim::unchecked_unwrap_optional",
    )
)
"""Operators that return an integer unchanged."""
