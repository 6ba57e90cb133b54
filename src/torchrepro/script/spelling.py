"""The choice between the ways to write a call: the first that reaches the same operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from torchrepro.graph_text import resolver
from torchrepro.judge.leaves import tensors_in
from torchrepro.script.calls import Spelling, function, nodes_in, operator_call, torch_level
from torchrepro.script.literals import Text, Unwritable, Writer
from torchrepro.script.public_names import public_spellings
from torchrepro.state.fake_run import Decompositions, FakeRun, OperatorLog, identity
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torchrepro.torch_api.pytree import tree_leaves


@dataclass
class Speller:
    """Chooses how calls are written, and remembers what has to be imported for them."""

    traced: FakeRun
    same: SameCall
    public: bool
    """Whether operators are written by public names, where these reach the same operator."""
    modules: set[str] = field(default_factory=set)
    """`F`, `math`, or a module of the user."""
    own: frozenset[str] = frozenset()
    """Operators of the user that the script registers, or imports what does."""

    def spelling(self, node: Node) -> Spelling:
        if isinstance(node.target, OpOverload | OpOverloadPacket):
            needed = resolver.needs_trust(node.target)
            if needed is not None:
                return self._of_the_user(node, needed)
        if isinstance(node.target, HigherOrderOperator):
            return self._higher_order(node, node.target.name())
        if not isinstance(node.target, OpOverload):
            found = torch_level(node)
            self._needs(found.module)
            return found.spelling
        if self.public:
            for spelling in public_spellings(node):
                if self._is_same(node, node.target, spelling):
                    return spelling
        return operator_call(node)

    def _of_the_user(self, node: Node, path: str) -> Spelling:
        namespace, name = path.split(".")[2:4]
        if f"{namespace}::{name}" not in self.own:
            raise Unwritable(f"the operator {namespace}::{name}, whose source is not known")
        return function(path.removesuffix(".default"), list(node.args), dict(node.kwargs))

    def _is_same(self, node: Node, target: OpOverload, spelling: Spelling) -> bool:
        """Whether the spelling reaches the operator of the node, tried on fakes."""
        given = list(dict.fromkeys(nodes_in((node.args, node.kwargs))))
        values = self.traced.values
        if any(used not in values for used in given):
            return False
        names = {used: f"v{number}" for number, used in enumerate(given)}
        try:
            text = spelling(Writer({used: Text(name) for used, name in names.items()})).text
        except Unwritable:
            return False
        scope = {"torch": torch, "F": torch.nn.functional}
        scope |= {name: values[used] for used, name in names.items()}
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        same = self.same(
            lambda: target(*args, **kwargs),
            lambda: eval(text, scope),
            [values[used] for used in given],
        )
        if same and "F." in text:
            self._needs("F")
        return same

    def _higher_order(self, node: Node, name: str) -> Spelling:
        """Operators with graphs of their own that have a public function."""
        args = list(node.args)
        if name == "cond" and not node.kwargs:
            return function("torch.cond", args, {})
        if name == "tag_activation_checkpoint":
            self._needs("torch.utils.checkpoint")
            return function("torch.utils.checkpoint.checkpoint", args, {"use_reentrant": False})
        if name == "while_loop" and len(args) == 4 and not args[3]:
            self._needs("torch._higher_order_ops")
            return function("torch._higher_order_ops.while_loop", args[:3], {})
        raise Unwritable(f"the higher-order operator {name}")

    def _needs(self, module: str) -> None:
        if module and module != "torch":
            self.modules.add(module)


class SameCall:
    """Tells whether two ways to write a call are the same one: both are run on fake tensors.

    They are if they reach the dispatcher as the same operators on the same arguments. Where a compiler takes
    an operator apart before it sees it, that is done here too.
    """

    def __init__(self, run: FakeRun, decompositions: Decompositions | None = None) -> None:
        self._run = run
        self._tables: list[Decompositions] = [{}, *([decompositions] if decompositions else [])]

    def __call__(self, first: Callable[[], Any], second: Callable[[], Any], arguments: Sequence[Any]) -> bool:
        """Whether both reach the dispatcher alike, as they are or as the compiler takes them apart."""
        known = {identity(tensor): f"argument {path}" for path, tensor in tensors_in(list(arguments))}
        for table in self._tables:
            first_seen, second_seen = (
                self._seen(call, OperatorLog(table, known)) for call in (first, second)
            )
            if first_seen is not None and first_seen == second_seen:
                return True
        return False

    def _seen(self, call: Callable[[], Any], log: OperatorLog) -> tuple[Any, str] | None:
        try:
            with self._run.around(), log:
                return log.calls, log.described(tree_leaves(call()))
        except Exception:
            return None  # this way to write it does not take these arguments
