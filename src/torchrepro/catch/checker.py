"""Level 4: compare a call that has just happened with the same graph run eagerly.

The result that the user got is what is judged. If it needs gradients, forward and backward are run again
through the same compiled function, on copies, because the user's program runs the real backward. If it is
random, the compiler's random numbers are not eager's, so a second function is compiled that draws from
eager's generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchrepro.execute.compilers import without_tokens
from torchrepro.execute.judge_repro import Prepared, truth_of
from torchrepro.judge.clone import clone_inputs, is_plain
from torchrepro.judge.compare import needs_grad, tensors_in
from torchrepro.judge.execute import Run, Storages, changed_storages, fingerprints, storages_only_read
from torchrepro.judge.models import Subject, judge, verdict_of_comparison
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Blame, Comparison, Difference, Kind, LeafComparison, Verdict
from torchrepro.state.fake_run import inputs_written
from torchrepro.torch_api.generators import capture_rng_state, same_states
from torchrepro.torch_api.tensors import storage_number, version_of


@dataclass(frozen=True, eq=False)
class Before:
    """The inputs of a call from before it: copies, but large ones that the graph only reads themselves."""

    inputs: tuple[Any, ...]
    shared: Storages
    fingerprints: list[torch.Tensor]

    def damaged(self) -> list[int]:
        """Return the positions of inputs that the call has written to and that were not copied."""
        changed = changed_storages(self.shared, self.fingerprints)
        numbers = [
            {storage_number(tensor.untyped_storage()) for _, tensor in tensors_in(value) if is_plain(tensor)}
            for value in self.inputs
        ]
        return [position for position, each in enumerate(numbers) if each & changed]


def verdict_on_damaged(positions: Iterable[int]) -> Verdict:
    """Return the verdict on a call that wrote to inputs that the graph only reads: what they were is lost."""
    text = "the compiled function wrote to it, and the graph only reads it"
    leaves = [
        LeafComparison(f"inputs[{position}]", Difference.VALUE, detail=text, blamed=Blame.COMPILED)
        for position in positions
    ]
    return verdict_of_comparison(Comparison(tuple(leaves)))


@dataclass(eq=False)
class Checker:
    """Checks the calls of one compiled function."""

    compiled: Callable[..., Any]
    _written: frozenset[int] | None = field(default=None, init=False)
    """Positions of the inputs that the graph writes to, once that matters and if it is known."""
    _analysed: bool = field(default=False, init=False)
    _steady: bool = field(default=False, init=False)
    """Eager was deterministic in an earlier check."""
    _twin: tuple[torch.nn.Module, Callable[..., Any]] | None = field(default=None, init=False)

    def before(self, repro: Repro) -> Before:
        """Return the inputs of a call that is about to happen, as `check` needs them.

        Below AOT all are copied, because there a compiler may reuse the memory of dead inputs.
        """
        if not self._analysed and storages_only_read(repro.inputs, ()):
            self._analysed, self._written = True, inputs_written(repro)
        shared = {} if repro.place is Place.AFTER_AOT else self._only_read(repro)
        return Before(clone_inputs(repro.inputs, keep=shared), shared, fingerprints(shared.values()))

    def _only_read(self, repro: Repro) -> Storages:
        return {} if self._written is None else storages_only_read(repro.inputs, self._written)

    def check(self, repro: Repro, outputs: Any, after: tuple[Any, ...]) -> tuple[Repro, Verdict]:
        """Return the verdict on a call, and the repro as it was judged.

        `repro` has the graph, the inputs from before the call and the generators' states from before it;
        `after` are the same inputs after it. Large inputs that the graph only reads are shared by its runs in
        eager. A compiled function, which may write to anything, is run on copies.
        """
        # Never through the user's own parameters, whose gradients would change.
        own = repro.place is Place.AFTER_AOT or any(True for _ in repro.graph.parameters())
        with_grad = not own and needs_grad(outputs)
        judged, verdict, eager_needs_grad = self._judge(repro, outputs, after, with_grad=with_grad)
        if eager_needs_grad and not (own or with_grad or verdict.fails):
            # The compiled function cut its results off from autograd: gradients show it.
            judged, verdict, _ = self._judge(repro, outputs, after, with_grad=True)
        return judged, verdict

    def _judge(
        self, repro: Repro, outputs: Any, after: tuple[Any, ...], *, with_grad: bool
    ) -> tuple[Repro, Verdict, bool]:
        """Return the repro as it was judged, the verdict, and whether eager's results need gradients."""
        shared = self._only_read(repro)
        repro = replace(repro, backward=None if with_grad else False)
        # The user's results came from real collectives: eager's must be the same ones.
        prepared = Prepared(repro, exact=not with_grad)
        random = eager_needs_grad = False
        written: set[int] = set()

        def eager(around: AbstractContextManager[Any]) -> Run:
            nonlocal random, eager_needs_grad
            graph, inputs = prepared.eager_graph(), prepared.inputs(shared)
            with around:
                before = capture_rng_state().devices
                versions = _versions(inputs)
                run = prepared.observe(graph, graph, inputs)
                written.update(index for index, now in _versions(inputs).items() if now != versions[index])
            random = random or not same_states(before, run.rng)
            eager_needs_grad = needs_grad(run.outputs)
            if run.changed:
                raise TorchReproError(
                    "the graph keeps state of its own, which the call has changed",
                    next_step="use watch(whole=True)",
                )
            return run

        def compiled(around: AbstractContextManager[Any]) -> Run:
            if not random and not with_grad:
                seen = after
                if repro.place is Place.AFTER_AOT:
                    # There a compiler may reuse the memory of dead inputs, so only those are compared that
                    # the graph writes to.
                    pairs = enumerate(zip(repro.inputs, after, strict=True))
                    seen = tuple(now if index in written else former for index, (former, now) in pairs)
                return Run(outputs=without_tokens(repro.graph, outputs), inputs=seen)
            graph: torch.nn.Module = prepared.eager_graph()
            function = self.compiled
            with around:
                if random:
                    self._twin = self._twin or prepared.compile()
                    graph, function = self._twin
                return prepared.observe(graph, function, prepared.inputs())

        subject = Subject(eager, compiled, lambda draws: truth_of(prepared, draws))
        verdict = judge(subject, rng=repro.ambient.rng, steady=self._steady)
        self._steady = self._steady or verdict.kind is Kind.PASS
        if verdict.fails and self._steady:
            verdict = judge(subject, rng=repro.ambient.rng)  # check again that eager is deterministic
        return repro, verdict, eager_needs_grad


def _versions(inputs: tuple[Any, ...]) -> dict[int, int]:
    return {
        index: version_of(value)
        for index, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and not value.is_inference()
    }
