"""Freezes models by TensorFlow: variables become constants, functions are inlined.

Run as a process of its own for files, so that TensorFlow's messages, aborts and import time stay
out of the caller's: `python -m qir.frontends.tensorflow.child source folder [signature]`.
The folder gets `graph.pb`, `names.json` and `weights.bin`. Models in memory are frozen where they
are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from .error_causes import error_cause

_DEFAULT_SIGNATURE = "serving_default"
_LEAST_WEIGHT = 1 << 16
"""Bytes of variables from which on they are kept in a file next to that of the graph."""
Names = dict[str, list[tuple[str, str]]]
"""Inputs and outputs as (name, tensor) pairs."""


@dataclass
class FrozenGraph:
    """A serialized GraphDef with its inputs and outputs; large weights are in files next to it."""

    data: bytes
    names: Names
    weights: dict[str, Any] = field(default_factory=dict)
    """By constant of the graph, which holds its shape and no elements: the variable with them."""


class _Variables(convert_to_constants._FunctionConverterDataInEager):  # type: ignore[misc]
    """The data of a function's variables, without the elements of large ones.

    TensorFlow would hold some dozen copies of all weights at a time.
    """

    def __init__(self, concrete: Any) -> None:
        self.large: dict[int, tuple[Any, Any]] = {}
        """By identity of a number: it, and the large variable that it stands for. A number that
        was freed would leave its identity to the elements of another tensor."""
        # Control flow stays functional (While, If), as `loops` and `branches` read it.
        super().__init__(concrete, lower_control_flow=False, aggressive_inlining=True)

    def _eval(self, tensor: Any) -> Any:
        """Returns the elements of a tensor or a small variable, a number for a large variable."""
        is_plain = hasattr(tensor, "handle") and tensor.dtype.is_floating
        is_plain = is_plain and tensor.dtype != tf.bfloat16 and tensor.shape.is_fully_defined()
        if not is_plain or tensor.shape.num_elements() * tensor.dtype.size < _LEAST_WEIGHT:
            return tensor.numpy()
        number = np.zeros((), tensor.dtype.as_numpy_dtype)
        self.large[id(number)] = number, tensor
        return number


def freeze_function(concrete: Any, results: Sequence[str] = ()) -> FrozenGraph:
    """Freezes a concrete function."""
    variables = _Variables(concrete)
    held = variables.tensor_data
    graph, _ = convert_to_constants._replace_variables_by_constants(variables)
    weights = {
        name: variables.large[id(data.numpy)][1]
        for name, data in held.items()
        if id(data.numpy) in variables.large
    }
    for node in graph.node:
        if node.name in weights:
            shape = weights[node.name].shape.as_proto()
            node.attr["value"].tensor.tensor_shape.CopyFrom(shape)
    inputs = [
        (t.op.name, t.name)
        for t in concrete.inputs
        if t.op.name not in held and t.dtype != tf.resource
    ]
    tensors = [t.name for t in concrete.outputs]
    names = list(results) if len(results) == len(tensors) else _default_output_names(tensors)
    outputs = list(zip(names, tensors, strict=True))
    named = {"inputs": inputs, "outputs": outputs}
    return FrozenGraph(graph.SerializeToString(), named, weights)


def _default_output_names(tensors: Sequence[str]) -> list[str]:
    if len(tensors) == 1:
        return ["output"]
    return [f"output_{i}" for i in range(len(tensors))]


def freeze_keras(model: Any) -> FrozenGraph:
    """Freezes a Keras model in inference mode; raises ValueError if it was never built."""
    if not getattr(model, "inputs", None):
        return _freeze_subclass(model)
    specs = [tf.TensorSpec(x.shape, x.dtype, name=x.name.split(":")[0]) for x in model.inputs]

    structure = _input_structure(model)

    def call(*xs: Any) -> Any:
        is_nested = isinstance(structure, (list, tuple, dict))
        arguments = tf.nest.pack_sequence_as(structure, list(xs)) if is_nested else xs[0]
        return model(arguments, training=False)

    # Keras may give two outputs one name: then default names are used.
    names = getattr(model, "output_names", None) or ()
    if len({str(n) for n in names}) < len(names):
        names = ()
    return freeze_function(tf.function(call).get_concrete_function(*specs), [str(n) for n in names])


def _freeze_subclass(model: Any) -> FrozenGraph:
    """Freezes a model whose own `call` was called once, for the shapes of that; its batch is open.

    Keras records the shapes of the first argument, by which it exports such a model.
    """
    shapes = getattr(model, "_build_shapes_dict", None)
    if not shapes or not getattr(model, "_called", True):
        raise ValueError("the model has no known inputs; call it once, or build it with a shape")
    given = _specs(next(iter(shapes.values())), "input", model)

    def call(*xs: Any) -> Any:
        return model(tf.nest.pack_sequence_as(given, list(xs)), training=False)

    return freeze_function(tf.function(call).get_concrete_function(*tf.nest.flatten(given)))


def _specs(shape: Any, name: str, model: Any) -> Any:
    """Returns tensors for a shape, or for each in a list, tuple or dict of shapes."""
    if isinstance(shape, dict):
        return {key: _specs(shape[key], str(key), model) for key in shape}
    if any(isinstance(each, (list, tuple, dict)) for each in shape):
        return [_specs(each, f"{name}_{i}", model) for i, each in enumerate(shape)]
    dtype = getattr(model, "input_dtype", None) or tf.keras.config.floatx()
    return tf.TensorSpec((None, *shape[1:]), dtype, name=name)


def _input_structure(model: Any) -> Any:
    """Returns the structure of a model's inputs: one, or a list, tuple or dict."""
    try:
        return model.input
    except AttributeError:  # a Sequential that was never called
        return model.inputs[0] if len(model.inputs) == 1 else model.inputs


def freeze_saved_model(folder: Path, name: str = "") -> FrozenGraph:
    """Freezes a signature of a SavedModel; without a name `serving_default`, or the only one."""
    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception as error:  # for example optimizer state of another version
        return _freeze_by_session(folder, error, name or _DEFAULT_SIGNATURE)
    signatures = dict(loaded.signatures)
    if not signatures:
        raise ValueError("it has no signature; save it with signatures={'serving_default': f}")
    signature_name = name or (
        next(iter(signatures)) if len(signatures) == 1 else _DEFAULT_SIGNATURE
    )
    if signature_name not in signatures:
        raise _unknown_signature(signature_name, folder, signatures)
    concrete = signatures[signature_name]
    return freeze_function(concrete, sorted(concrete.structured_outputs))


def _unknown_signature(name: str, folder: Path, signatures: Collection[str]) -> ValueError:
    names = sorted(signatures)
    listed = f"its signatures are {', '.join(names)}"
    return ValueError(f"{listed}; none is {name}: name one, as in {folder.name}#{names[0]}")


def _freeze_by_session(folder: Path, error: Exception, name: str) -> FrozenGraph:
    """Freezes a SavedModel by the loader of TensorFlow 1.

    That one ignores objects it does not know.
    """
    v1 = tf.compat.v1
    with v1.Session(graph=tf.Graph()) as session:
        try:
            meta = v1.saved_model.load(session, ["serve"], str(folder))
        except Exception:
            raise error from None
        if name not in meta.signature_def:
            raise _unknown_signature(name, folder, meta.signature_def)
        signature = meta.signature_def[name]
        inputs = sorted((t.name.split(":")[0], t.name) for t in signature.inputs.values())
        outputs = sorted((name, t.name) for name, t in signature.outputs.items())
        nodes = [tensor.split(":")[0] for _, tensor in outputs]
        graph = v1.graph_util.convert_variables_to_constants(
            session, session.graph.as_graph_def(), nodes
        )
    return FrozenGraph(graph.SerializeToString(), {"inputs": inputs, "outputs": outputs})


def freeze_path(path: Path, signature: str = "") -> FrozenGraph:
    """Freezes a file of Keras or a SavedModel; code inside the file is not run (safe_mode)."""
    if path.is_dir():
        return freeze_saved_model(path, signature)
    return freeze_keras(tf.keras.models.load_model(str(path), compile=False, safe_mode=True))


def main(source: str, folder: str, signature: str = "") -> int:
    """Freezes a file into a folder; on failure prints one line and returns 1."""
    try:
        frozen = freeze_path(Path(source), signature)
    except Exception as error:  # TensorFlow and Keras raise what they like
        sys.stderr.write(f"\n{error_cause(error)}\n")
        return 1
    Path(folder, "graph.pb").write_bytes(frozen.data)
    places = write_weights(frozen.weights, Path(folder, "weights.bin"))
    names = json.dumps({**frozen.names, "weights": places})
    Path(folder, "names.json").write_text(names, encoding="utf-8")
    return 0


def write_weights(weights: Mapping[str, Any], path: Path) -> dict[str, tuple[str, list[int], int]]:
    """Writes variables to a file, one after another; returns type, shape and offset by name."""
    places = {}
    with path.open("wb") as stream:
        for name, variable in weights.items():
            elements = variable.numpy()
            places[name] = (elements.dtype.name, list(elements.shape), stream.tell())
            elements.tofile(stream)
    return places


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
