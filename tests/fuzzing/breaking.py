"""Files and texts broken at random."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from copy import deepcopy

import onnx


def break_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bits flipped, bytes overwritten, cut out, repeated or moved; or the end missing."""
    broken = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        index = rng.randrange(len(broken) or 1)
        size = rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(6):
            case 0 if broken:
                broken[index] ^= 1 << rng.randrange(8)
            case 1:
                broken[index : index + size] = rng.randbytes(size)
            case 2:
                del broken[index : index + size]
            case 3:
                broken[index:index] = broken[index : index + size]
            case 4:
                broken[index : index + size] = rng.choice((b"\0", b"\xff", b"\x80")) * size
            case _:
                if rng.random() < 0.2:
                    del broken[index:]
    return bytes(broken)


TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w.]*|\d+(?:\.\d+)?|\s+|\|>|.', re.DOTALL)
ODD = (
    *("0", "-1", "1", "2", "0x", "4294967296", "9223372036854775807", "-9223372036854775808"),
    *(
        "9" * 40,
        "1e400",
        "nan",
        "inf",
        "-inf",
        "none",
        "true",
        '""',
        '"\\ud800"',
        "?",
        "(N)",
        "(N//0)x",
    ),
    *("()", "(1,)", "(1, (2, 3))", "f32", "string", "bool", "u64", "i1", "f4e2m1fn", "@x", "%x"),
    *"{}()[]<>:,=.|",
    *("|>", "scale.", "a.scale=%x", "xs.0=%x", "xs.99999=%x", "%x = ", 'bytes"0"', "as", "named"),
    *("plan", "lineage", "inner", "with body {", "from", "from x {call = 1}", "lineage ((),)"),
    "!quant.uniform<u8:f32, 0.5:9223372036854775808>",
    "!quant.uniform<u8:f32, ?:?>",
    "!quant.uniform<i8:f32, nan>",
    "!quant.uniform<u8:f32:{0:100000000000000000}, ?>",
    "!quant.lut<u4:f32, 1.0, codes [nan]>",
    "999999999999999999x999999999999999999xf32",
    "1x" * 70 + "f32",
    "(" * 200 + "N" + ")" * 200 + "xf32",
)


def break_tokens(rng: random.Random, text: str) -> str:
    """Words replaced, taken out, put in and moved."""
    tokens = TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        index = rng.randrange(len(tokens) or 1)
        match rng.randrange(6):
            case 0:
                tokens[index : index + 1] = [rng.choice(ODD)]
            case 1 if tokens:
                tokens[index] = rng.choice(tokens)
            case 2:
                del tokens[index : index + rng.choice((1, 1, 2, 5))]
            case 3:
                tokens.insert(index, rng.choice(ODD))
            case 4 if tokens:
                tokens.insert(index, rng.choice(tokens))
            case _:
                start = rng.randrange(len(tokens) or 1)
                tokens[index:index] = tokens[start : start + rng.randrange(1, 12)]
    return "".join(tokens)


WORDS = (
    '<>{}()[]:,=%@#"!?*x|. \n\t\\-+0123456789efnainu'.replace(" ", "  "),
    "é\u2028\0\ud7ff",
)


def break_text(rng: random.Random, text: str) -> str:
    """Characters and lines changed, and runs of brackets."""
    broken = text
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = broken.split("\n")
        index, line = rng.randrange(len(broken) or 1), rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                broken = broken[:index] + rng.choice(rng.choice(WORDS)) + broken[index + 1 :]
            case 1:
                broken = broken[:index] + broken[index + rng.choice((1, 3, 20)) :]
            case 2:
                broken = (
                    broken[:index]
                    + rng.choice("([{<!%") * rng.choice((1, 3, 5000))
                    + broken[index:]
                )
            case 3:
                lines[line], lines[0] = lines[0], lines[line]
                broken = "\n".join(lines)
            case 4:
                broken = "\n".join((*lines[:line], *lines[line + 1 :]))
            case 5:
                broken = "\n".join((*lines[:line], lines[line], *lines[line:]))
            case _:
                broken = (
                    broken[:index] + str(rng.choice((-1, 0, 2**31, 2**63, 10**40))) + broken[index:]
                )
    return broken


def break_json(rng: random.Random, table: object, values: Sequence[object]) -> None:
    """What JSON held: one leaf or part of it changed, to something odd or near, or taken out."""
    place: object = table
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))  # type: ignore[arg-type]
        if not keys:
            return
        key = rng.choice(keys)
        inner = place[key]  # type: ignore[index]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.05:
            break
        place = inner
    near = isinstance(inner, int) and rng.random() < 0.5
    to = inner + rng.choice((-2, -1, 1, 2, 64)) if near else deepcopy(rng.choice(values))
    if isinstance(place, list) and rng.random() < 0.1:
        del place[key]
    else:
        place[key] = to  # type: ignore[index]


def break_model(rng: random.Random, model: onnx.ModelProto) -> None:
    """A model that is still protobuf: nodes, names, attributes, shapes and numbers changed."""
    graph = model.graph
    nodes, constants = list(graph.node), list(graph.initializer)
    if not nodes:
        return
    names = [n for node in nodes for n in (*node.input, *node.output)] + [""]
    node, constant = rng.choice(nodes), rng.choice(constants) if constants else None
    match rng.randrange(9):
        case 0 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        case 1 if node.output:
            node.output[0] = rng.choice(names)
        case 2:
            node.op_type = rng.choice([n.op_type for n in nodes] + ["If", "Loop", "Nothing"])
        case 3:
            graph.node.remove(node)
        case 4 if node.attribute:
            attribute = rng.choice(list(node.attribute))
            numbers = (0, -1, 1, 3, 2**31, -(2**63), 2**63 - 1)
            attribute.ints[:] = [rng.choice(numbers) for _ in range(rng.randrange(5))]
            attribute.i = rng.choice(numbers)
            attribute.type = rng.choice((attribute.type, 1, 2, 3, 7, 5))
        case 5 if constant is not None:
            dims = list(constant.dims) or [1]
            dims[rng.randrange(len(dims))] = rng.choice((0, -1, 1, 2, 2**31, 2**62))
            constant.dims[:] = dims
        case 6 if constant is not None:
            constant.data_type = rng.randrange(26)
        case 7 if constant is not None:
            constant.raw_data = break_bytes(rng, constant.raw_data)
        case _:
            dims = graph.input[0].type.tensor_type.shape.dim
            if dims:
                rng.choice(list(dims)).dim_value = rng.choice((0, -1, 2, 2**40, 2**62))
