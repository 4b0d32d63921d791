"""How a model is called: nesting and names of its arguments and results.

An `output` node holds it as text, such as `(_, (_, _), mask=_) -> {'logits': _}`: each `_` is the
next input or result of the graph, anything else is given as it is. A model that takes its inputs
one by one, and gives back one tensor or a tuple of several, has none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from qir.errors import InputError
from qir.ir.graph import Graph


class _Leaf:
    def __repr__(self) -> str:
        return "_"


LEAF = _Leaf()
"""Stands for a tensor."""
Tree: TypeAlias = object
"""LEAF, a literal, or a tuple, list or dict with names of these."""


@dataclass(frozen=True)
class CallSignature:
    """Arguments and results of a model."""

    args: tuple[Tree, ...]
    kwargs: Mapping[str, Tree] = field(default_factory=dict)
    results: Tree = LEAF

    @classmethod
    def parse(cls, text: str) -> CallSignature:
        """Reads the text; raises InputError for something else."""
        arguments, arrow, results = text.partition(" -> ")
        try:
            # The arguments read as those of a Python call, so that Python's parser does the work.
            call = ast.parse(f"f{arguments}", mode="eval").body
            result_tree = ast.parse(results, mode="eval").body
            if not arrow or not isinstance(call, ast.Call):
                raise ValueError("it has no arguments and results")
            kwargs = {str(word.arg): _parse_tree(word.value) for word in call.keywords}
            return cls(tuple(map(_parse_tree, call.args)), kwargs, _parse_tree(result_tree))
        except (SyntaxError, ValueError) as error:
            raise InputError(f"{text[:80]!r} is no call signature: {error}") from error

    @classmethod
    def of(cls, graph: Graph) -> CallSignature:
        """Returns that of a graph; the plain one where its output node holds none."""
        text = graph.output.attrs["call"]
        if isinstance(text, str) and text:
            return cls.parse(text)
        count = len(graph.outputs)
        return cls((LEAF,) * len(graph.inputs), {}, LEAF if count == 1 else (LEAF,) * count)

    def __str__(self) -> str:
        arguments = [
            *map(repr, self.args),
            *(f"{name}={held!r}" for name, held in self.kwargs.items()),
        ]
        return f"({', '.join(arguments)}) -> {self.results!r}"

    @property
    def plain(self) -> bool:
        """Whether a graph says all of it by the order of its inputs and results."""
        takes_plain_inputs = not self.kwargs and all(held is LEAF for held in self.args)
        is_result_tuple = isinstance(self.results, tuple) and len(self.results) != 1
        return takes_plain_inputs and (
            self.results is LEAF
            or (is_result_tuple and all(held is LEAF for held in _children(self.results)))
        )

    def counts(self) -> tuple[int, int]:
        """Returns how many inputs and results it has."""
        arguments = (list(self.args), dict(self.kwargs))
        return sum(1 for _ in leaves(arguments)), sum(1 for _ in leaves(self.results))

    def arguments(self, inputs: Iterable[object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Returns inputs as arguments, by place and by name."""
        remaining = iter(inputs)
        args = tuple(_fill_leaves(held, remaining) for held in self.args)
        return args, {name: _fill_leaves(held, remaining) for name, held in self.kwargs.items()}

    def result(self, results: Iterable[object]) -> object:
        """Returns results as the model gives them back."""
        return _fill_leaves(self.results, iter(results))

    def without_literals(self) -> CallSignature:
        """Returns it with None for every argument that is no tensor."""
        args = tuple(map(_without_literals, self.args))
        kwargs = {name: _without_literals(held) for name, held in self.kwargs.items()}
        return CallSignature(args, kwargs, self.results)

    def named(self, graph: Graph) -> str:
        """Returns the text with the names of a graph's inputs and results."""
        args, kwargs = self.arguments(_LeafName(value.name) for value in graph.inputs)
        return str(CallSignature(args, kwargs, self.result(map(_LeafName, graph.outputs))))


class _LeafName(str):
    def __repr__(self) -> str:
        return str(self)


def _children(held: Tree) -> Iterable[Tree]:
    if isinstance(held, dict):
        return held.values()
    return held if isinstance(held, (tuple, list)) else ()


def leaves(tree: Tree) -> Iterator[Tree]:
    """Yields the places of tensors, in order."""
    if tree is LEAF:
        yield tree
    for held in _children(tree):
        yield from leaves(held)


def _without_literals(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {name: _without_literals(held) for name, held in tree.items()}
    if isinstance(tree, (tuple, list)):
        items = [_without_literals(held) for held in tree]
        return tuple(items) if isinstance(tree, tuple) else items
    return tree if tree is LEAF else None


def _fill_leaves(tree: Tree, remaining: Iterator[object]) -> object:
    if tree is LEAF:
        return next(remaining)
    if isinstance(tree, dict):
        return {name: _fill_leaves(held, remaining) for name, held in tree.items()}
    if isinstance(tree, (tuple, list)):
        items = [_fill_leaves(held, remaining) for held in tree]
        return tuple(items) if isinstance(tree, tuple) else items
    return tree


def _parse_tree(node: ast.expr) -> Tree:
    if isinstance(node, ast.Name) and node.id == "_":
        return LEAF
    if isinstance(node, ast.Tuple):
        return tuple(map(_parse_tree, node.elts))
    if isinstance(node, ast.List):
        return [_parse_tree(held) for held in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_parse_tree, node.values), strict=True))
    # Anything else must be a literal: no name or call of a file's text is ever evaluated.
    return ast.literal_eval(node)


__all__ = ["LEAF", "CallSignature", "Tree", "leaves"]
