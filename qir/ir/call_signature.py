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
        given, arrow, results = text.partition(" -> ")
        try:
            call = ast.parse(f"f{given}", mode="eval").body
            made = ast.parse(results, mode="eval").body
            if not arrow or not isinstance(call, ast.Call):
                raise ValueError("it has no arguments and results")
            kwargs = {str(word.arg): _tree(word.value) for word in call.keywords}
            return cls(tuple(map(_tree, call.args)), kwargs, _tree(made))
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
        words = [*map(repr, self.args), *(f"{name}={held!r}" for name, held in self.kwargs.items())]
        return f"({', '.join(words)}) -> {self.results!r}"

    @property
    def plain(self) -> bool:
        """Whether a graph says all of it by the order of its inputs and results."""
        flat = not self.kwargs and all(held is LEAF for held in self.args)
        many = isinstance(self.results, tuple) and len(self.results) != 1
        return flat and (
            self.results is LEAF or (many and all(held is LEAF for held in _items(self.results)))
        )

    def counts(self) -> tuple[int, int]:
        """Returns how many inputs and results it has."""
        given = (list(self.args), dict(self.kwargs))
        return sum(1 for _ in leaves(given)), sum(1 for _ in leaves(self.results))

    def arguments(self, inputs: Iterable[object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Returns inputs as arguments, by place and by name."""
        rest = iter(inputs)
        args = tuple(_filled(held, rest) for held in self.args)
        return args, {name: _filled(held, rest) for name, held in self.kwargs.items()}

    def result(self, results: Iterable[object]) -> object:
        """Returns results as the model gives them back."""
        return _filled(self.results, iter(results))

    def without_literals(self) -> CallSignature:
        """Returns it with None for every argument that is no tensor."""
        args = tuple(map(_bare, self.args))
        kwargs = {name: _bare(held) for name, held in self.kwargs.items()}
        return CallSignature(args, kwargs, self.results)

    def named(self, graph: Graph) -> str:
        """Returns the text with the names of a graph's inputs and results."""
        args, kwargs = self.arguments(_Name(value.name) for value in graph.inputs)
        return str(CallSignature(args, kwargs, self.result(map(_Name, graph.outputs))))


class _Name(str):
    def __repr__(self) -> str:
        return str(self)


def _items(held: Tree) -> Iterable[Tree]:
    if isinstance(held, dict):
        return held.values()
    return held if isinstance(held, (tuple, list)) else ()


def leaves(tree: Tree) -> Iterator[Tree]:
    """Yields the places of tensors, in order."""
    if tree is LEAF:
        yield tree
    for held in _items(tree):
        yield from leaves(held)


def _bare(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {name: _bare(held) for name, held in tree.items()}
    if isinstance(tree, (tuple, list)):
        made = [_bare(held) for held in tree]
        return tuple(made) if isinstance(tree, tuple) else made
    return tree if tree is LEAF else None


def _filled(tree: Tree, rest: Iterator[object]) -> object:
    if tree is LEAF:
        return next(rest)
    if isinstance(tree, dict):
        return {name: _filled(held, rest) for name, held in tree.items()}
    if isinstance(tree, (tuple, list)):
        made = [_filled(held, rest) for held in tree]
        return tuple(made) if isinstance(tree, tuple) else made
    return tree


def _tree(node: ast.expr) -> Tree:
    if isinstance(node, ast.Name) and node.id == "_":
        return LEAF
    if isinstance(node, ast.Tuple):
        return tuple(map(_tree, node.elts))
    if isinstance(node, ast.List):
        return [_tree(held) for held in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_tree, node.values), strict=True))
    return ast.literal_eval(node)


__all__ = ["LEAF", "CallSignature", "Tree", "leaves"]
