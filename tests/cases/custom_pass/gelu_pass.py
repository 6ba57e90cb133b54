"""A post-grad pass that should replace tanh by a cheap rational, and got a constant wrong."""

import torch

aten = torch.ops.aten


def cheaper_gelu(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is aten.tanh.default:
            with graph.inserting_before(node):
                x = node.args[0]
                clamped = graph.call_function(
                    aten.clamp_min.default, (graph.call_function(aten.clamp_max.default, (x, 0.9)), -0.9)
                )
            for inner in (clamped.args[0], clamped):
                inner.meta = dict(node.meta)
            node.replace_all_uses_with(clamped)
            graph.erase_node(node)
