"""A captured graph as a script: a plain function, its inputs, a call by `torch.compile`, an assertion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchrepro.judge.leaves import tensors_in
from torchrepro.judge.loss import weights_like
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.assertions import assertion, raised_comment, sentence
from torchrepro.script.compile_call import compiled_call, marks
from torchrepro.script.document import Entry, Script, docstring, document, seen_with
from torchrepro.script.inputs import SIDE_FILE, Inputs
from torchrepro.script.layout import indented, laid_out
from torchrepro.script.literals import Unwritable
from torchrepro.script.observed import compared, observed, result_suffix
from torchrepro.script.plan import RAISING, Manner, Plan
from torchrepro.script.preamble import (
    DRAW_AS_EAGER,
    compiler_module,
    config_modules,
    contexts,
    environment_lines,
    within,
)

_ENTRIES = {
    Manner.PLAIN: Entry.PUBLIC,
    Manner.EXACT: Entry.PUBLIC,
    Manner.OPERATORS: Entry.OPERATORS,
    Manner.INTERNAL: Entry.INTERNAL,
}

Part = tuple[list[str], list[list[str]]]
"""The lines at the end of a script, and functions that they need."""


def graph_script(repro: Repro, verdict: Verdict, header: Sequence[str], manner: Manner) -> Script:
    """The script in one manner; `Unwritable` where there is none."""
    plan = Plan(repro, verdict, manner)
    definition = _definition(plan)
    statements, functions = _statements(plan)
    source = [plan.source] if plan.source else []
    modules = plan.modules | config_modules(plan.settings)
    modules |= {compiler_module(plan.compiler)} - {""}
    text = document(
        docstring(sentence(repro.compiler, verdict), [seen_with(repro), *header]),
        environ=environment_lines(repro.ambient.environ),
        modules=modules | ({"Path"} if plan.inputs.kept else set()),
        settings=plan.settings,
        definitions=[*source, definition, *functions],
        statements=statements,
    )
    internal = "torch.compile does not show it, only inductor's own entry point"
    remark = internal if manner is Manner.INTERNAL else ""
    return Script(text, _ENTRIES[manner], remark, plan.inputs.side_files)


# The function.


def _definition(plan: Plan) -> list[str]:
    body = plan.body
    names = list(body.parameters.values())
    if not plan.is_module:
        return [*laid_out(f"def f({', '.join(names)}):"), *indented(body.lines)]
    lines = ["class Model(torch.nn.Module):"]
    if body.state:
        made = ["def __init__(self):", *indented(["super().__init__()", *_state(plan)]), ""]
        lines += indented(made)
    forward = [*laid_out(f"def forward({', '.join(['self', *names])}):", margin=1), *indented(body.lines)]
    return [*lines, *indented(forward)]


def _state(plan: Plan) -> list[str]:
    lines = []
    for name, path in plan.body.state.items():
        value = plan.attribute(path)
        expression = plan.inputs.expression(name, value.detach())
        if isinstance(value, torch.nn.Parameter):
            frozen = "" if value.requires_grad else ", requires_grad=False"
            lines += laid_out(f"self.{name} = torch.nn.Parameter({expression}{frozen})", margin=2)
        else:
            lines += laid_out(f'self.register_buffer("{name}", {expression})', margin=2)
    return lines


# The calls.


def _statements(plan: Plan) -> Part:
    values = {name: plan.value_of(node) for node, name in plan.body.parameters.items()}
    arguments = ", ".join(plan.inputs.add(values).values())
    kind = plan.verdict.kind
    if kind is Kind.MISSING_ERROR:
        return _missing_error(plan, arguments)
    if not plan.is_plain_call:
        return _two_runs(plan, arguments)
    calls = _raising(plan, arguments) if kind in RAISING else _differing(plan, arguments)
    made = ["model = Model()"] if plan.is_module else []
    return [*made, *_input_lines(plan), *calls], []


def _raising(plan: Plan, arguments: str) -> list[str]:
    """The call in eager, and the call that fails."""
    backward = _loss(plan) if plan.runs_backward else ""
    compiled = compiled_call(plan, arguments)
    eager = f"{plan.callee}({arguments}){backward}  # eager is fine"
    failing = f"{compiled.call}{backward}  # {raised_comment(plan.verdict)}"
    return _around(plan, [eager, *compiled.lines, failing])


def _differing(plan: Plan, arguments: str) -> list[str]:
    """Both results, and the assertion that they are the same."""
    compiled = compiled_call(plan, arguments)
    calls = [f"eager = {plan.callee}({arguments})", *compiled.lines, f"compiled = {compiled.call}"]
    where = result_suffix(plan)
    return [*_around(plan, calls), assertion(compared(plan), f"compiled{where}", f"eager{where}")]


def _two_runs(plan: Plan, arguments: str) -> Part:
    """A function that makes everything anew and returns what is compared, called twice."""
    kind, callee = plan.verdict.kind, plan.callee
    compiled = compiled_call(plan, arguments).function
    if not compiled:
        raise Unwritable("a call that changes its inputs, with the compiler called directly")
    call = f"{callee}({arguments})"
    lines = [*_earlier_calls(plan), *_input_lines(plan), *_seed(plan)]
    returned = "" if kind in RAISING else observed(plan)
    if plan.runs_backward:
        lines += [*_around(plan, [f"out = {call}"]), f"out{_loss(plan)}"]
    elif returned.startswith("out"):
        lines += _around(plan, [f"return {call}{returned.removeprefix('out')}"])
    else:
        lines += _around(plan, [call])
    if returned and not (returned.startswith("out") and not plan.runs_backward):
        lines.append(f"return {returned}")
    body = [line for statement in lines for line in laid_out(statement, 1)]
    made = "Model()" if plan.is_module else "f"
    if kind in RAISING:
        calls = [f"run({made})  # eager is fine", f"run({compiled})  # {raised_comment(plan.verdict)}"]
    else:
        calls = [f"eager = run({made})", f"compiled = run({compiled})"]
        calls.append(assertion(compared(plan), "compiled", "eager"))
    return calls, [[f"def run({callee}):", *body]]


def _missing_error(plan: Plan, arguments: str) -> Part:
    compiled = compiled_call(plan, arguments).function
    if not compiled:
        raise Unwritable("a missing error, with the compiler called directly")
    call = _around(plan, [f"{plan.callee}({arguments})"])
    eager = "Model()" if plan.is_module else "f"
    return [*_input_lines(plan), *errors_compared(eager, compiled)], [raises_function(plan.callee, call)]


def raises_function(callee: str, call: Sequence[str]) -> list[str]:
    """A function that says which error a call raises."""
    tried = ["try:", *indented(call), "except Exception as error:", "    return type(error).__name__"]
    return [f"def raises({callee}):", *indented([*tried, 'return "nothing"'])]


def errors_compared(eager: str, compiled: str) -> list[str]:
    """Lines that ask both sides for their error."""
    return [
        f"eager, compiled = raises({eager}), raises({compiled})",
        'assert compiled == eager, f"eager raises {eager}, compiled raises {compiled}"',
    ]


def _around(plan: Plan, calls: Sequence[str]) -> list[str]:
    return within([] if plan.repro.place is Place.AFTER_AOT else contexts(plan.repro.ambient), calls)


# Inputs, loss and seed.


def _input_lines(plan: Plan) -> list[str]:
    return [*plan.inputs.lines, *marks(plan)]


def _earlier_calls(plan: Plan) -> list[str]:
    lines = []
    for inputs in plan.repro.earlier:
        given = dict(zip(plan.placeholders, inputs, strict=False))
        texts = [_earlier_value(plan, name, given[node]) for node, name in plan.body.parameters.items()]
        lines += _around(plan, [f"{plan.callee}({', '.join(texts)})"])
    return lines


def _earlier_value(plan: Plan, name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return plan.inputs.expression(f"earlier_{name}{len(plan.inputs.kept)}", value)
    return Inputs().add({name: value})[name]


def _seed(plan: Plan) -> list[str]:
    """Both sides draw the same numbers."""
    if not plan.traced.random:
        return []
    asked = "fallback_random" in plan.repro.compiler.options
    chosen = asked or DRAW_AS_EAGER.partition("  #")[0] in plan.settings
    if plan.repro.compiler.name == "inductor" and not chosen:
        plan.settings.append(DRAW_AS_EAGER)
    state = plan.repro.ambient.rng.get("cpu")
    if plan.manner is Manner.PLAIN or state is None:
        return ["torch.manual_seed(0)"]
    plan.inputs.kept["random_state"] = state
    return [f'torch.set_rng_state(torch.load(Path(__file__).with_name("{SIDE_FILE}"))["random_state"])']


def _loss(plan: Plan) -> str:
    """What is appended to the outputs to run backward through them."""
    wanting = [(path, found) for path, found in tensors_in(plan.traced.output, "out") if found.requires_grad]
    if len(wanting) != 1 or wanting[0][0] not in plan.body.results:
        raise Unwritable("several outputs that ask for gradients")
    path, tensor = wanting[0]
    where = plan.body.results[path]
    if tensor.dim() == 0 and not tensor.is_complex():
        return f"{where}.backward()"
    if plan.manner is Manner.PLAIN or tensor.is_complex():
        return f"{where}{'.abs()' if tensor.is_complex() else ''}.sum().backward()"
    weights = weights_like(torch.empty(tensor.shape, dtype=tensor.dtype))
    return f"{where}.backward({plan.inputs.expression('gradient', weights)})"
