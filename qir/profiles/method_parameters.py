"""The parameters that methods take, and what each may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from qir.numerics.fields import Method

Value: TypeAlias = "str | int | float | bool"


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a method."""

    values: tuple[Value, ...] = ()
    """All it may be; whole numbers from `least` on where none is named."""
    needed: bool = False
    """Whether the method says nothing without it."""
    least: int = 0

    def takes(self, value: Value) -> bool:
        """Whether it may be that."""
        if not self.values:
            return isinstance(value, int) and not isinstance(value, bool) and value >= self.least
        return any(value == v and type(value) is type(v) for v in self.values)

    @property
    def said(self) -> str:
        """What it may be, as errors say it."""
        if not self.values:
            return f"a whole number, {self.least} or more"
        return " or ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in self.values)


_FLAG = Param((False, True))
_SIGN = Param((1, -1))
PARAMS: Mapping[str, Mapping[str, Param]] = {
    "fixed_sum": {"sign": _SIGN, "once": _FLAG},
    "aligned_sum": {"sign": _SIGN},
    "mean_before": {"round": Param(("away", "even"))},
    "total_before": {"round": Param(("away", "even"))},
    "logistic_between": {"newton": _FLAG},
    "tanh_between": {"newton": _FLAG},
    "unshifted": {"apart": _FLAG},
    "fixed_resize": {"bits": Param((10, 11))},
    "vectors": {"lanes": Param(needed=True), "after": _FLAG},
    "channel_vectors": {"lanes": Param(needed=True, least=1), "after": _FLAG},
    "signed_vectors": {"lanes": Param(needed=True, least=1)},
    "product_of_codes": {"lanes": Param(needed=True)},
    "prelu_of_codes": {"lanes": Param(needed=True)},
    "shifted_sum": {"lanes": Param(needed=True), "after": _FLAG},
    "scaled_steps": {"lanes": Param(needed=True)},
    "bilinear": {"lanes": Param(), "after": _FLAG},
    "dynamic_rows": {"reach": _FLAG},
    "dynamic_blocks": {"cut": _FLAG},
    "summed_rows": {"once": _FLAG},
    "raw_mean": {"divide": _FLAG},
    "raw_mean_of_all": {"divide": _FLAG},
    "exponent_table": {
        "quotient": Param(("f32", "f64")),
        "overflow": Param(("saturate", "wrap")),
    },
    "blocks_of_terms": {"scales": Param(("block", "row", "tensor")), "affine": _FLAG},
    "dynamic_conv": {"lanes": Param()},
    "dynamic_fused_conv": {"lanes": Param(needed=True, least=1), "unread": _FLAG},
    "recode_vectors": {"lanes": Param(needed=True, least=1)},
    "depth_vectors": {"lanes": Param(needed=True, least=1)},
    "sum_vectors": {"lanes": Param(needed=True, least=1), "after": _FLAG},
    "transposed_vectors": {"lanes": Param(needed=True, least=1), "rows": _FLAG},
    "transposed": {"misread": _FLAG},
    "mean_by_ratio": {"after": _FLAG},
    "mean_of_steps": {
        "lanes": Param(),
        "fused": _FLAG,
        "raw": _FLAG,
        "divide": _FLAG,
        "after": _FLAG,
    },
}
"""Of the methods that take any: their parameters by name."""

_AVERAGES = ("avg_pool1d", "avg_pool2d", "avg_pool3d")
_WHOLE = ("global_avg_pool", "adaptive_avg_pool")
_ALL_MEANS = (*_AVERAGES, *_WHOLE, "reduce_mean")
_ORDERS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
COMPUTES: Mapping[str, tuple[str, ...]] = {
    "fma_sum": ("add",),
    "aligned_sum": ("add", "sub"),
    "fixed_sum": ("add", "sub"),
    "shifted_sum": ("add",),
    "range_sum": ("add",),
    "gain_sum": ("add",),
    "gain_product": ("mul",),
    "scaled_product": ("mul",),
    "fixed_product": ("mul",),
    "product_of_codes": ("mul",),
    "range_product": ("mul",),
    "exponent_table": ("softmax",),
    "share_table": ("softmax",),
    "share_between": ("softmax",),
    "share_fixed": ("softmax",),
    "unit_fixed": ("lp_normalize",),
    "fixed_inverse_root": ("rsqrt",),
    "fixed_abs": ("abs",),
    "fixed_relu": ("relu",),
    "fixed_clip": ("clip",),
    "fixed_compare": _ORDERS,
    "code_compare": _ORDERS,
    "fixed_square": ("squared_difference",),
    "cut_root": ("sqrt",),
    "even_table": ("embedding",),
    "fixed_quotient": ("div",),
    "fixed_powers": ("reduce_prod",),
    "between": ("exp", "log", "rsqrt", "gelu", "elu"),
    "each_code": ("exp", "log", "elu", "gelu"),
    "fixed_cell": ("lstm",),
    "float_cell": ("lstm",),
    "blocks_of_terms": ("linear",),
    "unshifted": ("matmul",),
    "padding_alone": ("conv2d",),
    "quantize_vectors": ("quantize",),
    "recode_vectors": ("requantize",),
    "sum_vectors": ("add",),
    "depth_vectors": ("conv2d",),
    "transposed_vectors": ("conv_transpose2d",),
    "dynamic_rows": ("linear", "matmul"),
    "dynamic_conv": ("conv2d",),
    "dynamic_fused": ("linear", "matmul"),
    "dynamic_fused_conv": ("conv2d",),
    "dynamic_even": ("linear",),
    "dynamic_blocks": ("linear",),
    "dynamic_packed": ("linear",),
    "real_resize": ("resize",),
    "logistic_table": ("sigmoid",),
    "float_table": ("sigmoid", "tanh", "hard_sigmoid"),
    "logistic_steps": ("sigmoid",),
    "logistic_between": ("sigmoid",),
    "tanh_between": ("tanh",),
    "fixed_leaky_relu": ("leaky_relu",),
    "short_leaky_relu": ("leaky_relu",),
    "fixed_hard_swish": ("hard_swish",),
    "fixed_slope": ("prelu",),
    "prelu_of_codes": ("prelu",),
    "range_bounds": ("relu", "clip"),
    "mean_of_reals": _AVERAGES,
    "mean_along": _AVERAGES,
    "mean_away": _AVERAGES,
    "raw_mean": _AVERAGES,
    "raw_mean_of_all": ("global_avg_pool",),
    "cut_mean": _AVERAGES,
    "mean_of_codes": _WHOLE,
    "mean_of_steps": _ALL_MEANS,
    "mean_by_ratio": _ALL_MEANS,
    "mean_before": ("reduce_mean",),
    "fixed_mean": ("reduce_mean",),
    "fixed_total": ("reduce_sum",),
    "total_before": ("reduce_sum",),
    "recode": ("requantize",),
    "fixed_recode": ("requantize",),
    "short_recode": ("requantize",),
    "range_recode": ("requantize",),
    "wrapped_recode": ("requantize",),
    "gain_recode": ("requantize",),
    "recode_all": ("concat",),
    "range_recode_all": ("concat",),
    "gain_recode_all": ("concat",),
    "channel_vectors": ("concat",),
    "signed_vectors": ("add", "mul"),
    "fixed_resize": ("resize",),
    "nearest_by_step": ("resize_nearest",),
    "bilinear": ("resize",),
    "scaled_steps": ("batch_norm",),
    "folded_norm": ("batch_norm",),
    "as_conv2d": ("conv1d", "conv3d"),
    "sums_in_turn": ("matmul",),
    "summed_rows": ("embedding_bag",),
    "by_one_factor": ("requantize",),
    "transposed": ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    "rows_of_codes": ("embedding", "embedding_bag"),
}
"""The ops of which each method is the arithmetic; methods that are not named compute any."""

MOST_BITS: Mapping[str, int] = {"exponent_table": 8}
"""Of the methods that do not take codes of any width: the bits of the widest."""


def fault(method: Method, of: Mapping[str, Param] | None = None) -> str:
    """What is wrong with a method's parameters, in a line; nothing where all is well."""
    known = PARAMS.get(method.name, {}) if of is None else of
    for name, value in method.params.items():
        if name not in known:
            has = f"; it has {', '.join(known)}" if known else ""
            return f"method {method.name} has no parameter {name!r}{has}"
        if not known[name].takes(value):
            return f"method {method.name}: {name} = {value!r}; it is {known[name].said}"
    lacks = [name for name, one in known.items() if one.needed and name not in method.params]
    if lacks:
        return f"method {method.name} needs {lacks[0]}, which is {known[lacks[0]].said}"
    return ""
