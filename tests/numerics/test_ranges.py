"""Ranges to scale and zero point: the tools' own functions, and the formulas of the matrix."""

import numpy as np
import pytest
from onnx import TensorProto
from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

from qir.errors import ProfileError
from qir.ir.dtype import I8, U8, dtype
from qir.ir.scheme import parse_scheme
from qir.numerics import SCALE_FORMULAS, choose
from qir.numerics.fields import Choose
from qir.profiles import Query, parameters_for_range, profile

F = np.float32
KINDS = {
    "u8": TensorProto.UINT8,
    "i8": TensorProto.INT8,
    "u16": TensorProto.UINT16,
    "i16": TensorProto.INT16,
}


def ranges(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of every kind: wide, tiny, one-sided, empty, at the ends of float32."""
    rng = np.random.default_rng(seed)
    size = np.exp2(rng.uniform(-140, 120, count))
    ends = np.sort(rng.normal(size=(2, count)) * size, axis=0)
    low, high = ends.astype(F)
    special = np.array(
        [
            [0, 0],
            [-0.0, 0],
            [1e-45, 1e-45],
            [-1e-45, 0],
            [0, 1e-38],
            [3, 5],
            [-5, -3],
            [-3e38, 3e38],
        ],
        F,
    )
    return np.concatenate([special[:, 0], low]), np.concatenate([special[:, 1], high])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_onnxruntimes_tool_bit_for_bit(kind: str, symmetric: bool) -> None:
    low, high = ranges(5, 3000)
    q = get_qmin_qmax_for_qType(KINDS[kind], symmetric=symmetric)
    bounds = (int(q[0]), int(q[1]))
    for rule in (
        profile("native").resolve(Query("quantize")).choose,
        SCALE_FORMULAS["onnxruntime.tool"],
    ):
        scales, zeros = choose(low, high, dtype(kind), rule, bounds=bounds, symmetric=symmetric)
        assert scales.dtype == F
        for i in range(len(low)):
            zero, scale = compute_scale_zp(low[i], high[i], q[0], q[1], symmetric)
            told = f"seed 5, {low[i]!r}..{high[i]!r}"
            assert scales[i].tobytes() == np.asarray(scale, F).tobytes(), told
            assert int(zeros[i]) == int(zero), told


@pytest.mark.parametrize("text", ["u8 affine tensor", "i8 symmetric channel", "i8 affine tensor"])
def test_schemes_get_the_numbers_of_their_range(text: str) -> None:
    scheme = parse_scheme(text)
    low, high = np.array([-1.0, -3.0, 0.5], F), np.array([2.0, 1.0, 4.0], F)
    scales, zeros = parameters_for_range(profile("native"), low, high, scheme)
    kind = KINDS[str(scheme.storage)]
    q = get_qmin_qmax_for_qType(kind, symmetric=scheme.symmetric)
    wanted = [
        compute_scale_zp(a, b, q[0], q[1], scheme.symmetric) for a, b in zip(low, high, strict=True)
    ]
    assert [float(s) for _, s in wanted] == scales.tolist()
    assert [int(z) for z, _ in wanted] == zeros.tolist()


def test_the_formulas_of_the_support_matrix() -> None:
    low, high = np.array([-1.5], F), np.array([4.0], F)
    scale, zero = choose(low, high, I8, SCALE_FORMULAS["onednn.i8"], symmetric=True)
    assert (scale[0], zero[0]) == (F(2 * 4.0) / F(127 + 128 - 1), 0)
    scale, zero = choose(low, high, U8, SCALE_FORMULAS["onednn.u8"], symmetric=True)
    assert (scale[0], zero[0]) == (F(4.0) / F(255), 0)
    scale, zero = choose(low, high, U8, SCALE_FORMULAS["fbgemm.symmetric"], symmetric=True)
    assert (scale[0], zero[0]) == (F(4.0) / F(255 / 2), 128)
    scale, zero = choose(low, high, U8, SCALE_FORMULAS["fbgemm.affine"])
    assert scale[0] == F(5.5) / F(255)
    assert zero[0] == 0 - round(float(F(-1.5) / scale[0]))


def test_torch_observers_numbers_are_ours() -> None:
    torch = pytest.importorskip("torch")
    from torch.ao.quantization.observer import MinMaxObserver

    low, high = ranges(6, 400)
    usable = np.isfinite(low) & (np.abs(low) < 1e30) & (np.abs(high) < 1e30)
    for kind, scheme in (("quint8", "per_tensor_affine"), ("qint8", "per_tensor_symmetric")):
        for a, b in zip(low[usable], high[usable], strict=True):
            observer = MinMaxObserver(dtype=getattr(torch, kind), qscheme=getattr(torch, scheme))
            observer(torch.tensor([a, b]))
            scale, zero = observer.calculate_qparams()
            symmetric = scheme.endswith("symmetric")
            storage = U8 if kind == "quint8" else I8
            found = choose(a, b, storage, SCALE_FORMULAS["torch.observer"], symmetric=symmetric)
            assert float(found[0]) == float(scale), (a, b, scheme)
            assert int(found[1]) == int(zero), (a, b, scheme)


def test_a_rule_of_the_greatest_alone_refuses_what_it_gives_no_scale() -> None:
    rule = SCALE_FORMULAS["onednn.u8"]
    with pytest.raises(ProfileError, match=r"a range -3\.0\.\.-1\.0 holds nothing above zero"):
        choose(np.array(-3.0), np.array(-1.0), U8, rule, symmetric=True)
    many = np.array([-2.0, -5.0, -4.0]), np.array([3.0, -1.0, -0.5])
    with pytest.raises(ProfileError, match=r"a range -5\.0\.\.-1\.0 holds nothing above zero"):
        choose(*many, U8, rule, symmetric=True)
    with pytest.raises(ProfileError, match=r"a range 3\.0\.\.1\.0 has no scale"):
        choose(np.array([-7.0, 3.0]), np.array([9.0, 1.0]), U8, rule, symmetric=True)
    with pytest.raises(ProfileError, match="i8 has values below it: use u8"):
        choose(np.array(-1.0), np.array(3.0), I8, rule, symmetric=True)


def test_ranges_without_a_scale_are_refused() -> None:
    for low, high in ((np.nan, 1.0), (0.0, np.inf), (2.0, 1.0)):
        with pytest.raises(ProfileError, match="has no scale"):
            choose(np.array(low), np.array(high), U8, Choose())


def test_a_fixed_zero_point_is_taken_in_every_scheme() -> None:
    for symmetric in (True, False):
        for word, code in (("fixed:7", 7), ("fixed:255", 255), ("fixed:0", 0)):
            low, high = np.zeros(2, F), np.ones(2, F)
            _, zero = choose(low, high, U8, Choose(zero=word), symmetric=symmetric)
            assert zero.tolist() == [code, code]


@pytest.mark.parametrize("zero", ["fixed:300", "fixed:-1", "fixed:1.5", "fixed:1e99"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_fixed_zero_point_that_is_no_code_is_refused(zero: str, symmetric: bool) -> None:
    rule = Choose(zero=zero)
    with pytest.raises(ProfileError) as caught:
        choose(np.array(0.0, F), np.array(1.0, F), U8, rule, symmetric=symmetric, profile="p")
    told = (
        f"profile p: choose.zero = '{zero}' is not a value of u8, whose values are integers 0..255"
    )
    assert str(caught.value) == told
