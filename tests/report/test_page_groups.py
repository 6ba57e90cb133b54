"""The tree of modules that a picture is collapsed by."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from page_samples import transformer

from torchrepro.report.contents import Node
from torchrepro.report.graph_picture import LONGEST, ROOM, SMALL, Grouping, grouped

MODULES = st.lists(st.sampled_from(["", "a", "b.c", "b.c.0", "b.c.1", "b.c.1.d", "e.e.e", "..", "f.g.h.i"]))


def graph(modules: list[str], guilty: int | None = None) -> list[Node]:
    """A chain of ops; each fifth node is an input without a module, read by the next."""
    nodes: list[Node] = []
    for place, module in enumerate(modules):
        kind = "input" if place % 5 == 0 else "op"
        before = (nodes[-1].name,) if nodes else ()
        nodes.append(
            Node(f"n{place}", "aten.add.Tensor", kind, before, module, guilty=place == guilty)
            if kind == "op"
            else Node(f"n{place}", "placeholder", kind)
        )
    return nodes


def ancestors(grouping: Grouping, group: int) -> list[int]:
    around = [group]
    while around[-1]:
        around.append(grouping.groups[around[-1]].parent)
    return around


def seen_at_first(grouping: Grouping) -> int:
    """Boxes: nodes and closed groups whose groups are all open."""
    groups = grouping.groups
    inside = [
        number for number in grouping.group_of if all(groups[a].open for a in ancestors(grouping, number))
    ]
    closed = [
        number
        for number, group in enumerate(groups)
        if not group.open and all(groups[a].open for a in ancestors(grouping, group.parent))
    ]
    return len(inside) + len(closed)


@settings(deadline=None)
@given(MODULES.flatmap(lambda short: st.integers(1, 40).map(lambda times: short * times)), st.data())
def test_every_node_is_in_a_group_and_the_way_to_the_guilty_one_is_open(
    modules: list[str], data: st.DataObject
) -> None:
    guilty = data.draw(st.integers(0, len(modules) - 1)) if modules else None
    nodes = graph(modules, guilty)
    grouping = grouped(nodes)
    groups = grouping.groups
    assert len(grouping.group_of) == len(nodes)
    assert all(group.parent < number for number, group in enumerate(groups) if number)
    for number, group in enumerate(groups):
        inside = sum(number in ancestors(grouping, place) for place in grouping.group_of)
        assert group.nodes == inside
        assert number == 0 or inside > 1, "a group of one is only in the way"
    for node, place in zip(nodes, grouping.group_of, strict=True):
        if node.guilty or len(nodes) <= SMALL:
            assert all(groups[around].open for around in ancestors(grouping, place))
    if len(nodes) > SMALL:
        for number in range(len(groups)):
            parts = sum(place == number for place in grouping.group_of)
            parts += sum(group.parent == number for group in groups[1:])
            assert parts <= LONGEST
        if not any(node.guilty for node in nodes):
            assert seen_at_first(grouping) <= max(ROOM, LONGEST)


def test_a_large_model_is_a_few_boxes_at_first() -> None:
    nodes = transformer(104, guilty_layer=50)
    assert len(nodes) > 3000
    assert seen_at_first(grouped(nodes)) < 80


def test_a_graph_without_modules_is_divided_into_runs() -> None:
    nodes = [Node(f"add_{place}", "aten.add.Tensor", "op", guilty=place == 1234) for place in range(3000)]
    grouping = grouped(nodes)
    assert seen_at_first(grouping) < 100
    assert grouping.groups[1].label.startswith("add_0 … add_")


def test_a_list_of_layers_is_named_with_its_numbers() -> None:
    labels = {group.label for group in grouped(transformer(24, guilty_layer=None)).groups}
    assert {"encoder", "layers.0", "layers.23", "attention"} <= labels


def test_parameters_of_a_large_graph_are_where_they_are_read() -> None:
    nodes = transformer(24, guilty_layer=None)
    grouping = grouped(nodes)
    outside = [node.name for node, place in zip(nodes, grouping.group_of, strict=True) if place == 0]
    assert not any(name.startswith("p_") for name in outside)
