"""`qir show`: what is in a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import file_bytes, open_model
from qir.cli.screen import Column, Screen, StyledText, amount, number_text, percent, plural, size
from qir.cli.words import scale, shape, weights

if TYPE_CHECKING:
    from qir.inspect.explain import ConstantContents, Explanation
    from qir.inspect.summary import InterfaceTensor, ModelSummary
    from qir.ir.graph import Graph
    from qir.ledger import Ledger
    from qir.rewrite.runner.journal import Journal


@shared.verb(
    "qir show model.onnx",
    "qir show model.onnx --node /conv1/Conv",
    "qir show quantized.onnx --text > quantized.txt",
)
@shared.model
@click.option("--text", is_flag=True, help="Print the program in QIR's language.")
@click.option("--node", metavar="NAME", help="Describe one node, by its name or its source's.")
@shared.shapes
@shared.as_json
def show(
    model: Path, text: bool, node: str | None, shapes: tuple[shared.Shape, ...], as_json: bool
) -> None:
    """Show what is in a model.

    Inputs and outputs, size (with external data), work and the share of it in integers, and
    each layer with scale and zero point of its result. Work is counted for one sample.

    --json prints {file, file_bytes, name, profile, frameworks, nodes, parameters, bytes, macs,
    integer_macs, longest_integer_chain, inputs, defaults, outputs, ops, layers, journal: [{name,
    text, by, changed, rewrites}]}; with --node {name, op, doc,
    text, attributes, operands, results, used_by, origins, source_names, profile, plans, macs,
    in_codes}.
    """
    from qir.errors import UsageError
    from qir.ledger import Ledger

    if text and (node or as_json):
        raise UsageError("--text excludes --node and --json")
    ledger = Ledger()
    graph = open_model(model, ledger, shapes)
    screen = Screen()
    if text:
        click.echo(str(graph), nl=False)
    elif node is not None:
        from qir.inspect import explain

        explanation = explain(graph, node)
        if as_json:
            screen.json(explanation.to_json())
        else:
            _explain(screen, explanation)
    else:
        from dataclasses import asdict

        from qir.inspect import summarize
        from qir.qir_files import read_journal

        journal = read_journal(model)
        summary = summarize(graph)
        length = file_bytes(model)
        if as_json:
            head = {"file": str(model), "file_bytes": length, **summary.to_json()}
            screen.json({**head, "journal": [asdict(entry) for entry in journal]})
        else:
            _summary(screen, model, length, summary, journal, _called(graph))
            for said in _left_out(ledger):
                screen.line(said, "yellow")


def _left_out(ledger: Ledger) -> list[str]:
    """Returns what reading the file has left out or assumed, each once."""
    from qir.ledger import Change

    # What reading lost is nowhere in the graph; other steps tell of it where they run.
    lost = (e for e in ledger if e.change is Change.DROPPED and e.step.startswith("read"))
    return list(dict.fromkeys(entry.reason for entry in lost))


def _called(graph: Graph) -> str:
    """Returns how a model is called, where inputs and results alone do not say it."""
    from qir.ir.call_signature import CallSignature

    found = CallSignature.of(graph)
    return "" if found.plain else found.named(graph)


def _summary(
    screen: Screen, path: Path, length: int, summary: ModelSummary, journal: Journal, called: str
) -> None:
    screen.line(f"{path.name}  {size(length)}", "bold")
    bytes_text = ", ".join(f"{kind} {size(count)}" for kind, count in summary.bytes.items())
    chain = summary.longest_integer_chain
    share = summary.integer_macs / summary.macs if summary.macs else 0.0
    facts = {
        "graph": f"{summary.name}, {plural(summary.nodes, 'node')}",
        "source": ", ".join(summary.frameworks) or "QIR text",
        "computes as": summary.profile,
        "parameters": f"{amount(summary.parameters)}  ({bytes_text})" if bytes_text else "none",
        "work": f"{amount(summary.macs)} multiply-adds for one sample",
        "in integers": "nothing",
    }
    if called:
        facts["called as"] = called
    if open_ended := sum(layer.macs is None for layer in summary.layers):
        facts["work"] += f", {plural(open_ended, 'op')} not counted: foreign, or of open size"
    if chain:
        ends = chain[0] if len(chain) == 1 else f"{chain[0]} to {chain[-1]}"
        run = f"longest run {plural(len(chain), 'op')}, {ends}"
        work = "the work that is counted" if open_ended else "the work"
        facts["in integers"] = f"{percent(share)} of {work}; {run}" if summary.macs else run
    if len(journal):
        passes_text = [
            f"{e.text} ({e.changed:,})" if e.changed else f"{e.text} (-)" for e in journal
        ]
        facts["passes"] = ", ".join(passes_text)
    screen.facts(facts)
    for title, tensors in (
        ("inputs", summary.inputs),
        ("inputs with a default", summary.defaults),
        ("outputs", summary.outputs),
    ):
        screen.table(_TENSOR, [_tensor(t) for t in tensors], title=title)
    columns = (Column("op", fit="fold"), Column("count", "right"), Column("integer", "right"))
    ops = [(o.op, f"{o.count:,}", f"{o.in_codes:,}" if o.in_codes else "-") for o in summary.ops]
    screen.table(columns, ops, title="ops")
    layers = [
        (
            StyledText(layer.name, "" if layer.in_codes else "yellow"),
            layer.op,
            shape(layer.shape, layer.storage),
            layer.storage,
            scale(layer.codes),
            weights(layer.weights),
            # None is work of unknown size and prints as a question mark; 0 is none and prints as
            # nothing.
            amount(layer.macs) if layer.macs != 0 else "",
        )
        for layer in summary.layers
        # They change how numbers are stored and compute nothing: half of a QDQ model's rows would
        # be these.
        if layer.op not in ("quantize", "dequantize")
    ]
    screen.table(_LAYER, layers, title="layers")


_TENSOR = (
    Column("name", fit="fold"),
    Column("shape"),
    Column("holds"),
    Column("scale:zero"),
)
_LAYER = (
    Column("name", fit="fold"),
    Column("op", fit="fold"),
    Column("result"),
    Column("holds"),
    Column("scale:zero", fit="drop"),
    Column("weights", fit="drop"),
    Column("work", "right"),
)


def _tensor(tensor: InterfaceTensor) -> tuple[str, str, str, str]:
    return tensor.name, shape(tensor.shape, tensor.dtype), tensor.dtype, scale(tensor.codes)


def _explain(screen: Screen, node: Explanation) -> None:
    screen.line(f"{node.name}  {node.op}", "bold")
    facts = {
        "does": node.doc,
        "came from": "; ".join(node.origins),
        "computes as": node.profile,
        "work": f"{amount(node.macs)} multiply-adds for one sample" if node.macs else "",
        "in integers": "yes" if node.in_codes else "no",
        **{name: f"= {value}" for name, value in node.attributes.items()},
        **{f"plan for {slot}": plan for slot, plan in node.plans.items()},
        "used by": ", ".join(node.used_by) or "nobody",
    }
    screen.facts({name: text for name, text in facts.items() if text})
    rows = [
        (
            operand.slot,
            operand.tensor.name,
            operand.made_by,
            shape(operand.tensor.shape, operand.tensor.dtype),
            operand.tensor.codes.storage if operand.tensor.codes else operand.tensor.dtype,
            scale(operand.tensor.codes),
            _contents(operand.contents),
        )
        for operand in node.operands
    ]
    columns = (
        Column("slot"),
        Column("value", fit="fold"),
        Column("made by", fit="drop"),
        Column("shape"),
        Column("holds"),
        Column("scale:zero"),
        Column("contents", fit="drop"),
    )
    screen.table(columns, rows, title="reads")
    results = [
        (t.name, shape(t.shape, t.dtype), t.codes.storage if t.codes else t.dtype, scale(t.codes))
        for t in node.results
    ]
    screen.table(_TENSOR, results, title="makes")


def _contents(contents: ConstantContents | None) -> str:
    if contents is None:
        return ""
    text = f"{number_text(contents.low)} .. {number_text(contents.high)}"
    if contents.at_bounds is not None:
        text += f", {percent(contents.at_bounds)} at the bounds"
    return text
