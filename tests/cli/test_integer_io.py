"""`qir quantize --io`: inputs and outputs of integers, and why others stay float."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import qir as library
from qir.registry import names as registered
from qir.target import target as named_target
from tests.cli.command import assert_one_line, qir
from tests.cli.test_schemas import check

ROOT = Path(__file__).parents[2]
NET = """graph main as native {
  %x = input() : (N)x3x8x8xf32
  output(y=%x)
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution and a softmax, and samples for them."""
    made = tmp_path_factory.mktemp("io")
    rng = np.random.default_rng(3)
    graph = library.parse(NET)
    w = graph.constant(rng.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32))
    conv = graph.add("conv2d", {"x": graph["x"], "w": w}, name="conv").result
    pool = graph.add("global_avg_pool", {"x": conv}, name="pool").result
    flat = graph.add("flatten", {"x": pool}, name="flat").result
    probabilities = graph.add("softmax", {"x": flat}, {"axis": 1}, name="p").result
    graph.set_operand(graph.output, "y", flat)
    graph.set_operand(graph.output, "p", probabilities)
    library.save(graph, made / "net.onnx")
    np.save(made / "x.npy", rng.normal(0, 1, (16, 3, 8, 8)).astype(np.float32))
    return made


def quantize(folder: Path, *options: str, output: str = "q.onnx") -> tuple[str, ...]:
    data = ("--data", str(folder / "x.npy"))
    return ("quantize", str(folder / "net.onnx"), *data, "-o", str(folder / output), "-f", *options)


def test_the_summary_says_what_became_integers_and_why_the_rest_did_not(folder: Path) -> None:
    done = qir(*quantize(folder, "--io", "integer", "--keep-float", "p"))
    assert done.status == 0, done.err
    rows = [line.split() for line in done.out.partition("inputs and outputs\n")[2].splitlines()]
    assert rows[1][:3] == ["x", "input", "u8"]
    assert rows[2][:3] == ["y", "output", "u8"]
    assert rows[3][:3] == ["p", "output", "float"]
    assert "p (softmax) gives floats" in done.out
    assert "warning" not in done.out


def test_json_has_each_input_and_output_with_its_scale(folder: Path) -> None:
    done = qir(*quantize(folder, "--io", "i8:float", "--json"))
    printed = json.loads(done.out)
    check("quantize", printed)
    (x,) = printed["io"]
    quant = library.load(folder / "q.onnx")["x"].type.quant
    assert quant is not None
    assert (x["name"], x["side"], x["type"], x["reason"]) == ("x", "input", "i8", "")
    assert np.float32(x["scale"]) == quant.scales()
    assert x["zero"] == quant.zeros()
    assert json.loads(qir(*quantize(folder, "--json")).out)["io"] == []


def test_nothing_that_can_be_integers_is_a_warning(folder: Path) -> None:
    done = qir(*quantize(folder, "--io", "integer:float", "--keep-float", "conv"))
    assert done.status == 0
    assert "warning: --io: no input or output can be integers" in done.out
    assert "conv (conv2d) reads floats" in done.out
    assert "stays float" in done.out, "the ledger says so, too"


def test_a_check_measures_the_model_with_floats(folder: Path) -> None:
    plain = qir(*quantize(folder, "--check", "--json"))
    done = qir(*quantize(folder, "--check", "--json", "--io", "integer"))
    assert json.loads(done.out)["check"] == json.loads(plain.out)["check"]
    assert json.loads(done.out)["sqnr"] == json.loads(plain.out)["sqnr"]


def test_floats_for_an_input_of_integers_are_refused_with_the_formula(folder: Path) -> None:
    qir(*quantize(folder, "--io", "integer"))
    quant = library.load(folder / "q.onnx")["x"].type.quant
    assert quant is not None
    formula = f"round(x / {float(quant.scales()):.8g}) + {int(quant.zeros())}"
    done = qir("run", str(folder / "q.onnx"), "--data", str(folder / "x.npy"))
    assert_one_line(done, 2)
    assert f"is uint8, the data are float32; quantize x: {formula}" in done.err
    with pytest.raises(library.errors.DataError) as caught:
        library.run(library.load(folder / "q.onnx"), {"x": np.load(folder / "x.npy")})
    assert f"the model takes u8; quantize x: {formula}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--io", ""), "types of inputs and outputs '': give one of float, integer"),
        (("--io", "int8"), "give one of float, integer, i8, u8, or two, as u8:float"),
        (("--io", "integer", "--target", "pytorch-x86"), "leave --io out"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    folder: Path, options: tuple[str, ...], said: str
) -> None:
    done = qir(*quantize(folder, *options, output="refused.qir"))
    assert_one_line(done, 2)
    assert said in done.err
    assert not (folder / "refused.qir").exists()


def test_a_recipe_holds_what_was_asked_of_the_ends(folder: Path) -> None:
    searched = qir(*quantize(folder, "--io", "u8:i8", "--sqnr", "5", output="goal.onnx"))
    assert searched.status == 0, searched
    recipe = folder / "goal.recipe.toml"
    assert 'io = "u8:i8"' in recipe.read_text()
    again = qir(*quantize(folder, "--recipe", str(recipe), output="again.onnx"))
    assert again.status == 0, again
    assert (folder / "again.onnx").read_bytes() == (folder / "goal.onnx").read_bytes()
    recipe.write_text(recipe.read_text().replace("u8:i8", "u9"))
    assert_one_line(qir(*quantize(folder, "--recipe", str(recipe))), 2)
    assert_one_line(qir(*quantize(folder, "--recipe", str(recipe), "--io", "u8")), 2)


@pytest.mark.parametrize("passes", ["integer-io; cse", "integer-io; float-io; cse; integer-io"])
def test_passes_after_it_are_validated_on_the_integers_of_the_samples(
    folder: Path, passes: str
) -> None:
    qir(*quantize(folder))
    output = ("-o", str(folder / "opt.onnx"), "-f")
    data = ("--data", str(folder / "x.npy"))
    done = qir("opt", str(folder / "q.onnx"), "-p", passes, "--validate", *data, *output)
    assert done.status == 0, done
    quant = library.load(folder / "opt.onnx")["x"].type.quant
    assert quant is not None


def test_dynamic_models_have_float_inputs(folder: Path) -> None:
    output = ("-o", str(folder / "d.onnx"))
    done = qir("quantize", str(folder / "net.onnx"), "--dynamic", "--io", "integer", *output)
    assert done.status == 2
    assert "--io excludes --dynamic and --weights" in done.err


def test_a_pass_on_integers_stores_them_as_asked_or_says_why_not(folder: Path) -> None:
    made = qir(*quantize(folder, "--io", "i8:integer", output="ends.onnx"))
    assert made.status == 0, made.err
    later, ends = folder / "later.onnx", folder / "ends.onnx"
    steps = "integer-io{inputs=u8, outputs=float}"
    done = qir("opt", str(ends), "-p", steps, "-o", str(later), "-f")
    assert done.status == 0, done.err
    graph = library.load(later)
    assert str(graph["x"].type.element).startswith("!quant.uniform<u8")
    assert all(value.type.quant is None for value in graph.outputs.values())
    again = qir("opt", str(later), "-p", steps, "-o", str(folder / "same.onnx"), "-f")
    assert again.status == 0, again.err
    assert "already" in again.out


def test_the_guide_names_the_targets_that_take_integers() -> None:
    page = (ROOT / "docs" / "guide" / "onnx.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith("`--io` is for "))
    named = re.findall("`([^`]+)`", line.partition(". ")[0])[1:]
    found = [name for name in registered("qir.targets") if not named_target(name).float_io]
    assert named == sorted(found)
