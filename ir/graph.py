"""A function as networkx graphs: use and definition, order, dominance, DOT. Nothing else imports networkx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import networkx as nx

from attngen.ir.core import Block, Op, Value, walk
from attngen.ir.func import Func
from attngen.ir.printer import Names

Node = Op | Value
"""An op, or an argument of a block."""


def source(value: Value) -> Node:
    """What a value comes from: its op, or itself if it is an argument."""
    return value.op or value


def use_def(func: Func) -> nx.DiGraph[Node]:
    """Ops and block arguments, with an edge from a definition to each op that waits for it: because the op reads it, because
    a region of the op reads it (a capture), or because a region of the op hands it on. Arguments of a region wait for the
    operands of its op. Nodes are in the order of the text.
    """
    graph: nx.DiGraph[Node] = nx.DiGraph()

    def add(block: Block) -> None:
        graph.add_nodes_from(block.args)
        for op in block.ops:
            graph.add_node(op)
            graph.add_edges_from((source(v), op) for v in op.operands)
            for region in op.regions:
                graph.add_edges_from((source(v), arg) for v in op.operands for arg in region.args)
                add(region)
                graph.add_edges_from((source(v), op) for v in (*captures(region), *region.yields))

    add(func.body)
    return graph


def captures(block: Block) -> tuple[Value, ...]:
    """The values that a block reads, regions inside included, and that are defined outside of it."""
    inside = set(block.args)
    read: dict[Value, None] = {}
    for op in walk(block):
        inside |= {*op.results, *(arg for region in op.regions for arg in region.args)}
        read |= dict.fromkeys((*op.operands, *(v for region in op.regions for v in region.yields)))
    return tuple(v for v in (*read, *block.yields) if v not in inside)


def topological_order(func: Func) -> list[Op]:
    """Every op after all that it waits for, ops of regions before the op they belong to; else in the order of the text."""
    graph = use_def(func)
    place = {node: k for k, node in enumerate(graph)}
    return [node for node in nx.lexicographical_topological_sort(graph, key=place.__getitem__) if isinstance(node, Op)]


def dominators(func: Func) -> dict[Node, Node | None]:
    """For each op and block argument, the nearest node that lies on every path to it from the start of the function, so that
    it must have run before; None where only the start does. Paths begin at arguments and at ops without operands.
    """
    graph, library, start = cast(Any, use_def(func)), cast(Any, nx), "start"
    graph.add_edges_from([(start, node) for node in list(graph) if graph.in_degree(node) == 0])
    found: dict[Any, Any] = library.immediate_dominators(graph, start)
    return {node: None if above == start else above for node, above in found.items() if node != start}


def to_dot(func: Func) -> str:
    """The use-def graph in the DOT language, a box per region: ``dot -Tsvg``."""
    names, ids = Names(), {node: f"n{k}" for k, node in enumerate(use_def(func))}

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def lines(block: Block, pad: str) -> Iterator[str]:
        for name, arg in zip(names.define(block.args), block.args, strict=True):
            yield f"{pad}{ids[arg]} [label={quoted(f'{name}: {arg.type}')}, shape=ellipse];"
        for op in block.ops:
            results = ", ".join(names.define(op.results))
            yield f"{pad}{ids[op]} [label={quoted(f'{results} = {op.line(names)}')}];"
            for k, (title, region) in enumerate(named_regions(op)):
                yield f"{pad}subgraph cluster_{ids[op]}_{k} {{"
                yield f"{pad}  label={quoted(f'{title} of {results}')};"
                yield from lines(region, pad + "  ")
                yield f"{pad}}}"

    edges = (f"  {ids[a]} -> {ids[b]};" for a, b in use_def(func).edges)
    head = (f"digraph {quoted(func.name)} {{", '  node [shape=box, fontname="monospace"];')
    return "\n".join([*head, *lines(func.body, "  "), *edges, "}"]) + "\n"


def named_regions(op: Op) -> Iterator[tuple[str, Block]]:
    for name in op.fields.regions:
        block: Block | None = getattr(op, name)
        if block is not None:
            yield name, block
