"""The networkx views, on attention with its loop."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from attngen.ir.core import Op, Value
from attngen.ir.func import Func
from attngen.ir.graph import captures, dominators, to_dot, topological_order, use_def
from attngen.ir.parser import parse
from tests.ir.generate import random_func

TEXT = """\
func @running(%q: tensor<i=37, d=8, f32> "i d", %k: tensor<j=53, d=8, f32> "j d") -> (tensor<i=37, f32> "i") {
  %half = nd.constant value 0.5 element f32 : tensor<f32>
  %scaled = nd.mul %q, %half : tensor<i=37, d=8, f32>
  %low = nd.constant value -inf element f32 : tensor<f32>
  %init = nd.expand %low axes [i=37] : tensor<i=37, f32>
  %m = loop.for %j: j = 0 to 53 step 8 carry (%max = %init) : (tensor<i=37, f32>) {
    %kj = tile.load %k, %j : tensor<j=?<=8, d=8, f32>
    %s = nd.contract %scaled, %kj over [d] acc f32 : tensor<i=37, j=?<=8, f32>
    %top = nd.reduce %s kind max over [j] acc f32 : tensor<i=37, f32>
    %new = nd.max %top, %max : tensor<i=37, f32>
    loop.yield %new
  }
  %o = nd.exp %m : tensor<i=37, f32>
  return %o
}
"""


@pytest.fixture
def func() -> Func:
    return parse(TEXT)


def named(func: Func) -> dict[str, Op | Value]:
    values = {v.hint: v for v in func.args}
    for op in func.walk():
        values |= {v.hint: v for v in (*op.results, *(arg for region in op.regions for arg in region.args))}
    return {name: v.op or v for name, v in values.items()}


def test_edges_lead_from_definitions_to_what_waits(func: Func) -> None:
    graph, at = use_def(func), named(func)
    assert set(graph) == set(at.values())
    names = {node: name for name, node in at.items()}
    assert {(names[a], names[b]) for a, b in graph.edges} == {
        ("q", "scaled"), ("half", "scaled"), ("low", "init"), ("init", "m"),
        ("init", "j"), ("init", "max"),  # arguments of the body wait for the operands of the loop
        ("k", "m"), ("scaled", "m"),  # captures
        ("k", "kj"), ("j", "kj"), ("scaled", "s"), ("kj", "s"), ("s", "top"), ("top", "new"), ("max", "new"),
        ("new", "m"), ("m", "o"),
    }  # fmt: skip
    assert [v.hint for v in captures(func.body.ops[4].regions[0])] == ["k", "scaled"]


def test_order_keeps_every_edge_and_else_the_text(func: Func) -> None:
    names = [op.results[0].hint for op in topological_order(func)]
    assert names == ["half", "scaled", "low", "init", "kj", "s", "top", "new", "m", "o"]


def test_dominators(func: Func) -> None:
    at, above = named(func), dominators(func)
    assert set(above) == set(at.values())
    assert above[at["o"]] is at["m"]
    assert above[at["max"]] is at["init"]
    assert above[at["top"]] is at["s"]
    assert above[at["init"]] is at["low"]
    assert above[at["m"]] is None  # reached from q, from k and from the constants
    assert above[at["q"]] is None


@pytest.mark.parametrize("seed", range(20))
def test_random_functions_are_acyclic(seed: int) -> None:
    func = random_func(seed)
    graph, order = use_def(func), topological_order(func)
    place = {op: k for k, op in enumerate(order)}
    assert set(order) == set(func.walk())
    assert all(place[a] < place[b] for a, b in graph.edges if isinstance(a, Op) and isinstance(b, Op))
    above = dominators(func)
    node = random.Random(seed).choice(order)
    over = above[node]
    if over is not None:  # without it, there is no way to the node
        roots = [n for n in graph if graph.in_degree(n) == 0 and n is not over]
        cut = graph.subgraph(n for n in graph if n is not over)
        assert not any(nx.has_path(cut, root, node) for root in roots)


def test_dot(func: Func) -> None:
    dot = to_dot(func)
    assert dot.startswith('digraph "running" {\n  node [shape=box, fontname="monospace"];\n')
    assert '  n0 [label="%q: tensor<i=37, d=8, f32>", shape=ellipse];\n' in dot
    assert '[label="%scaled = nd.mul %q, %half"];\n' in dot
    assert '    label="body of %m";\n' in dot
    assert dot.count("subgraph cluster_") == 1
    assert dot.count(" -> ") == use_def(func).number_of_edges()
    assert dot.count("{") == dot.count("}") == 2
