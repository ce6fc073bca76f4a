"""Arrangements of dims in plain graphs."""

from meshweave.layout import Layout, Mesh
from meshweave.layout.factors import ORDERED, REDUCTION, Factor, Rule
from meshweave.plan.propagation.arrange import StatedLayout, arrange
from meshweave.plan.propagation.propagate import Graph, Spec, propagate

MESH = Mesh(x=2)
SHAPE, BYTES = (8,), 32
VECTOR = ((0,),)
CYCLIC, BLOCKS = Layout.parse("[_*x]"), Layout.parse("[x]")


def passing(kind="parallel", **more):
    """The rule of an op from vector to vector."""
    sizes, nbytes = (SHAPE, SHAPE), (BYTES, BYTES)
    return Rule((Factor(8, kind),), (VECTOR,), (VECTOR,), sizes, nbytes, **more)


def chain(*rules, last=None):
    """Return the layouts and decisions of ops one after the other, of which the first reads a cyclic value."""
    graph = Graph(rules=list(rules))
    first = graph.add_value(Spec((("x",),), (True,), fixed=True))
    value = first
    for k in range(len(rules)):
        spec = last if last is not None and k == len(rules) - 1 else Spec.unknown(1)
        made = graph.add_value(spec)
        graph.add_op(k, (value, made))
        value = made
    chosen = propagate(graph, MESH)
    return arrange(graph, *chosen, [StatedLayout(first, CYCLIC, SHAPE, BYTES)], MESH)


def test_what_is_said_at_the_edge_holds_for_all_that_may_follow():
    layouts, decisions = chain(passing(), passing())
    assert layouts == [CYCLIC] * 3
    assert all(d.operands == d.results == (CYCLIC,) for d in decisions)


def test_ops_that_need_order_run_on_blocks_and_it_is_cheaper_to_move_at_once():
    layouts, decisions = chain(passing(), passing(ORDERED))
    assert layouts == [BLOCKS] * 3
    assert decisions[1].operands == (BLOCKS,)


def test_values_that_the_user_put_in_blocks_stay_there():
    layouts, _ = chain(passing(), last=Spec((("x",),), (False,), fixed=True))
    assert layouts == [BLOCKS, BLOCKS]


def test_padding_is_for_ops_that_may_run_on_it():
    uneven = Layout.parse("[x{3,5}]")
    graph = Graph(rules=[passing(), passing(padding_safe=False)])
    values = [graph.add_value(Spec((("x",),), (True,), fixed=True))]
    values += [graph.add_value(Spec.unknown(1)) for _ in range(2)]
    for rule, result in enumerate(values[1:]):
        graph.add_op(rule, (values[0], result))
    chosen = propagate(graph, MESH)
    layouts, _ = arrange(graph, *chosen, [StatedLayout(values[0], uneven, SHAPE, BYTES)], MESH)
    assert layouts[0] == BLOCKS


def test_a_dim_that_is_taken_apart_stays_in_blocks_on_both_sides():
    merged = Rule(
        (Factor(8), Factor(4)), (((0,), (1,)),), (((0, 1),),), ((8, 4), (32,)), (128, 128)
    )
    graph = Graph(rules=[merged])
    first = graph.add_value(Spec((("x",), ()), (True, True), fixed=True))
    graph.add_op(0, (first, graph.add_value(Spec.unknown(1))))
    said = StatedLayout(first, Layout.parse("[_*x, _]"), (8, 4), 128)
    layouts, decisions = arrange(graph, *propagate(graph, MESH), [said], MESH)
    assert layouts[1] == BLOCKS
    assert str(decisions[0].operands[0]) == "[x, _]"


def test_a_sum_over_a_cyclic_dim_is_a_partial_result():
    total = Rule(
        (Factor(8, REDUCTION),),
        (VECTOR, ()),
        ((),),
        (SHAPE, (), ()),
        (BYTES, 4, 4),
        reduction="sum",
        inits=(1,),
    )
    graph = Graph(rules=[total])
    first = graph.add_value(Spec((("x",),), (True,), fixed=True))
    graph.add_op(0, (first, -1, graph.add_value(Spec.unknown(0))))
    chosen = propagate(graph, MESH)
    layouts, (decision,) = arrange(
        graph, *chosen, [StatedLayout(first, CYCLIC, SHAPE, BYTES)], MESH
    )
    assert layouts[0] == decision.operands[0] == CYCLIC
    assert str(decision.results[0]) == "[] +sum(x)"


def test_nested_and_flat_pieces_of_one_tensor_exclude_each_other():
    nested = Layout.parse("[x*y, _] uneven(nested)")
    dims = ((0,), (1,))
    square = Rule((Factor(5), Factor(5)), (dims,), (dims,), ((5, 5), (5, 5)), (100, 100))
    graph = Graph(rules=[square])
    rows = Spec((("x", "y"), ("z", "w")), (True, True), fixed=True)
    values = [graph.add_value(rows), graph.add_value(Spec.unknown(2))]
    graph.add_op(0, tuple(values))
    mesh = Mesh(x=2, y=2, z=2, w=2)
    layouts, decisions = propagate(graph, mesh)
    said = StatedLayout(values[0], nested, (5, 5), 100)
    assert arrange(graph, layouts, decisions, [said], mesh) == (layouts, decisions)
