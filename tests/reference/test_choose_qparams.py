"""Numbers chosen from data: the bytes of onnxruntime's and PyTorch's own choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir.errors import OpError, TypeRuleError
from qir.ir.dtype import F32, U8, dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.reference.interpreter import run

Tensor = NDArray[Any]
F = np.float32
SEED = 20


def chosen(x: Tensor, attrs: str, *, more: str = "") -> dict[str, Tensor]:
    kind = TensorType(x.shape, dtype_of(x))
    shapes = parse(f"graph g as native {{\n%x = input() : {kind}\noutput(o=%x)\n}}")
    node = shapes.add("choose_qparams", {"x": shapes["x"]}, _attrs(attrs), name=["s", "z"])
    quant = f"!quant.uniform<{node.attrs['storage']!s}:{dtype_of(x)}{more}, ?:?>"
    graph = parse(
        f"graph g as native {{\n%x = input() : {kind}\n"
        f"%s, %z = choose_qparams(%x) {{{attrs}}} : {', '.join(str(v.type) for v in node.results)}"
        f"\n%q = quantize(%x, scale=%s, zero=%z) : {kind.text(str).rpartition('x')[0]}"
        f"{'x' if kind.shape else ''}{quant}\noutput(s=%s, z=%z, q=%q)\n}}"
    )
    return run(graph, {"x": x})


def _attrs(text: str) -> dict[str, Any]:
    graph = parse(
        "graph g as native {\n%x = input() : 8x8x8xf32\n"
        f"%s, %z = choose_qparams(%x) {{{text}}} : 8xf32, 8xu8\noutput(o=%s)\n}}"
    )
    return dict(graph["s"].node.attrs)


# -- onnx.dynamic ---------------------------------------------------------------------------------


def session() -> onnxruntime.InferenceSession:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    outputs = [
        helper.make_tensor_value_info("q", TensorProto.UINT8, [None]),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("z", TensorProto.UINT8, []),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])
    graph = helper.make_graph([node], "g", [x], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def tensors(rng: np.random.Generator) -> Iterator[Tensor]:
    """Of every size a float32 has; ties, constants, zeros, denormals, infinities."""
    for _ in range(150):
        size, power = rng.integers(1, 40), 10.0 ** rng.integers(-44, 38)
        with np.errstate(over="ignore"):
            x = (rng.normal(size=size) + rng.normal() * rng.integers(0, 3)) * power
            yield np.clip(x, -3e38, 3e38).astype(F)
    for _ in range(150):
        steps = rng.integers(-600, 600, rng.integers(1, 40)) / 2
        yield (steps * 2.0 ** rng.integers(-140, 100)).astype(F)
    for value in (0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3.4e38, -3.4e38, np.inf, -np.inf):
        for count in (1, 5, 17, 64):
            yield np.full(count, value, F)
    yield np.array([3e38, -3e38], F)
    yield np.array([0, 300 * 1.4e-45], F)
    yield np.array([], F)


def test_dynamic_quantize_linear_is_onnxruntimes_byte_for_byte() -> None:
    print(f"seed {SEED}")
    ort = session()
    for x in tensors(np.random.default_rng(SEED)):
        found = chosen(x, 'rule = "onnx.dynamic", storage = u8')
        for name, other in zip("qsz", ort.run(["q", "s", "z"], {"x": x}), strict=True):
            assert found[name].dtype == other.dtype
            assert np.array_equal(found[name], other), f"{name} of {x!r}"


def test_nan_has_no_range_and_is_told() -> None:
    with pytest.raises(OpError, match="s: x holds NaN"):
        chosen(np.array([1.0, np.nan], F), 'rule = "onnx.dynamic", storage = u8')


# -- PyTorch's ------------------------------------------------------------------------------------


def finite(rng: np.random.Generator) -> Iterator[Tensor]:
    return (x for x in tensors(rng) if x.size and np.isfinite(x).all() and np.abs(x).max() < 1e37)


@pytest.mark.parametrize("reduced", [False, True])
def test_torch_dynamic_is_what_its_dynamic_layers_choose(reduced: bool) -> None:
    print(f"seed {SEED}")
    bounds = ", bounds = (0, 127)" if reduced else ""
    for x in finite(np.random.default_rng(SEED)):
        scale, zero = torch.ops.aten._choose_qparams_per_tensor(torch.from_numpy(x), reduced)
        attrs = f'rule = "torch.dynamic", storage = u8{bounds}, scale_type = f64'
        found = chosen(x, attrs)
        assert (float(found["s"]), int(found["z"])) == (scale, zero), f"{x!r}"


@pytest.mark.parametrize("symmetric", [False, True])
def test_torch_observer_is_what_pt2e_chooses(symmetric: bool) -> None:
    print(f"seed {SEED}")
    ops = torch.ops.quantized_decomposed
    for x in finite(np.random.default_rng(SEED)):
        given = (torch.from_numpy(x), -128, 127, 2.0**-23, torch.int8)
        choose = ops.choose_qparams_symmetric.tensor if symmetric else ops.choose_qparams.tensor
        scale, zero = choose(*given)
        said = "true" if symmetric else "false"
        found = chosen(x, f'rule = "torch.observer", storage = i8, symmetric = {said}')
        assert float(found["s"]) == scale.item(), f"{x!r}"
        assert int(found["z"]) == zero.item(), f"{x!r}"


@pytest.mark.parametrize("symmetric", [False, True])
def test_per_token_numbers_are_torchs(symmetric: bool) -> None:
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    ops = torch.ops.quantized_decomposed
    said = "true" if symmetric else "false"
    for _ in range(100):
        scale = 10.0 ** rng.integers(-8, 8, (3, 4, 1))
        x = (rng.normal(size=(3, 4, 6)) * scale + rng.integers(0, 2)).astype(F)
        choose = ops.choose_qparams_per_token if symmetric else None
        choose = choose or ops._choose_qparams_per_token_asymmetric_impl
        wanted = [t.numpy() for t in choose(torch.from_numpy(x), torch.int8)]
        attrs = f'rule = "torchao.per_token", storage = i8, keep = (0, 1), symmetric = {said}'
        found = chosen(x, f"{attrs}, zero_type = i32", more=":{0:1, 1:1}")
        assert found["s"].shape == found["z"].shape == (3, 4, 1)
        assert np.array_equal(found["s"], wanted[0].astype(F))
        assert np.array_equal(found["z"], wanted[1])


# -- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "blocks", "grain"),
    [
        ((), (), ""),
        ((1,), (), ":1"),
        ((0, 2), (), ":{0:1, 2:1}"),
        ((0, 2), (1, 4), ":{0:1, 2:4}"),
        ((1,), (3,), ":{1:3}"),
    ],
)
def test_each_block_of_the_kept_axes_has_the_numbers_of_its_own_elements(
    keep: tuple[int, ...], blocks: tuple[int, ...], grain: str
) -> None:
    x = np.random.default_rng(SEED).normal(size=(3, 5, 6)).astype(F)
    text = (
        f'rule = "onnx.dynamic", storage = u8, keep = {_listed(keep)}, blocks = {_listed(blocks)}'
    )
    found = chosen(x, text, more=grain)
    sizes = dict(zip(keep, blocks or (1,) * len(keep), strict=True))
    for at in np.ndindex(*x.shape):
        mine = tuple(
            slice(i // sizes[a] * sizes[a], (i // sizes[a] + 1) * sizes[a])
            if a in sizes
            else slice(None)
            for a, i in enumerate(at)
        )
        alone = chosen(x[mine].reshape(-1), 'rule = "onnx.dynamic", storage = u8')
        where = tuple(i // sizes[a] if a in sizes else 0 for a, i in enumerate(at)) if keep else ()
        assert found["s"][where] == alone["s"]
        assert found["z"][where] == alone["z"]
        code = np.clip(np.rint(x[at] / alone["s"]) + int(alone["z"]), 0, 255)
        assert found["q"][at] == code


def _listed(values: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def test_a_range_of_codes_is_that_of_the_reals_they_mean() -> None:
    quantized = np.array([-70, 12, 200], np.int32)
    graph = parse(
        "graph g as native {\n%x = input() : 3x!quant.uniform<i32:f32, 0.5>\n"
        '%s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8\n'
        "output(s=%s, z=%z)\n}"
    )
    found = run(graph, {"x": quantized})
    assert found["s"] == F(F(135) / F(255))
    assert found["z"] == np.rint(35 / (135 / 255))


def test_the_profile_itself_is_a_rule() -> None:
    x = np.array([-1.0, 3.0], F)
    for name in ("profile", "onnxruntime.tool"):
        found = chosen(x, f'rule = "{name}", storage = u8')
        assert found["s"] == F(4 / 255)
        assert found["z"] == 64


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ('rule = "nobody", storage = u8', "rule = 'nobody' is none of profile, "),
        ('rule = "onnx.dynamic", storage = u8, symmetric = true', "chooses an affine map"),
    ],
)
def test_a_rule_that_there_is_not_is_told(attrs: str, message: str) -> None:
    with pytest.raises((OpError, TypeRuleError), match=message):
        chosen(np.ones(3, F), attrs)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"bounds": (3, 2)}, "not two values of u8"),
        ({"bounds": (0, 256)}, "not two values of u8"),
        ({"keep": (1, 0)}, "does not rise"),
        ({"keep": (2,)}, "x has 2 axes|there are 2 axes"),
        ({"keep": (0,), "blocks": (1, 2)}, "not one size"),
        ({"keep": (0,), "blocks": (0,)}, "not one size"),
        ({"zero_type": "f32"}, "are integers"),
        ({"scale_type": "u8"}, "is a float"),
    ],
)
def test_misuse_is_a_type_error(attrs: dict[str, Any], message: str) -> None:
    graph = Graph("g")
    x = graph.add("input", types=[TensorType((2, 3), F32)], name="x").result
    given = {k: dtype(v) if isinstance(v, str) else v for k, v in attrs.items()}
    with pytest.raises(TypeRuleError, match=message):
        graph.add("choose_qparams", {"x": x}, {"rule": "profile", "storage": U8, **given})


def test_bfloat16_is_chosen_from_its_own_values() -> None:
    x = np.array([-1.0, 2.0, 3.0], ml_dtypes.bfloat16)
    found = chosen(x, 'rule = "onnx.dynamic", storage = u8')
    assert found["s"] == F(F(4) / F(255))
    assert np.array_equal(found["q"], [0, 191, 255])
