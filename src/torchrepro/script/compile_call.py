"""The call of the compiled function: by the public API, or by the compiler's own entry point."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchrepro.nouns.repro import AOT_INDUCTOR, Place
from torchrepro.script.inputs import dynamic_dimensions
from torchrepro.script.literals import Unwritable
from torchrepro.script.plan import Manner, Plan
from torchrepro.script.preamble import compile_arguments

_NOT_PUBLIC = "# torch.compile(f) does not show it: this is inductor's own entry point."


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """Lines that come first, and the call; `function` is empty where only the call as a whole compiles."""

    call: str
    function: str = ""
    lines: tuple[str, ...] = ()


def compiled_call(plan: Plan, arguments: str) -> CompiledCall:
    """How the compiled function is called with these arguments."""
    if plan.repro.compiler.name == AOT_INDUCTOR:
        return _ahead_of_time(plan, arguments)
    if plan.manner is Manner.INTERNAL:
        return _internal(plan, arguments)
    dynamic = bool(plan.repro.symbols) and not marks(plan)
    made = "Model()" if plan.is_module else "f"
    given = compile_arguments(plan.compiler, dynamic=dynamic)
    return CompiledCall(f"torch.compile({plan.callee}{given})({arguments})", f"torch.compile({made}{given})")


def marks(plan: Plan) -> list[str]:
    """Marks on dimensions, where some of them are dynamic and others are not."""
    repro = plan.repro
    if not repro.symbols or repro.compiler.dynamic is not None:
        return []
    if any(not isinstance(value, torch.Tensor) for value in map(plan.value_of, plan.body.parameters)):
        return []  # a number of its own is dynamic only if everything is
    symbolic, fixed = [], 0
    for node, dim, is_symbol in dynamic_dimensions(repro.graph):
        if node not in plan.body.parameters:
            continue
        if is_symbol:
            symbolic.append(f"torch._dynamo.mark_dynamic({plan.body.parameters[node]}, {dim})")
        else:
            fixed += plan.value_of(node).shape[dim] > 1
    return symbolic if fixed else []


def _ahead_of_time(plan: Plan, arguments: str) -> CompiledCall:
    if plan.repro.symbols:
        raise Unwritable("an exported program with dynamic sizes")
    given = f"({arguments},)" if arguments else "()"
    lines = (
        f"program = torch.export.export(model, {given})",
        "package = torch._inductor.aoti_compile_and_package(program)",
    )
    plan.modules.add("torch._inductor")
    return CompiledCall(f"torch._inductor.aoti_load_package(package)({arguments})", lines=lines)


def _internal(plan: Plan, arguments: str) -> CompiledCall:
    """Inductor's own entry points. Checked on torch 2.11 to 2.15 (`compile_fx`, `compile_fx_inner`)."""
    repro, compiler = plan.repro, plan.repro.compiler
    asked = compiler.options or compiler.mode or compiler.recapture
    if compiler.name != "inductor" or asked or repro.symbols:
        raise Unwritable("a compiler with settings, called directly")
    if plan.is_module or not plan.is_plain_call:
        raise Unwritable("a call that changes its inputs, handed to the compiler directly")
    if repro.place is Place.AFTER_AOT:
        plan.modules.add("from torch._inductor.compile_fx import compile_fx_inner")
        plan.modules.add("from torch.fx.experimental.proxy_tensor import make_fx")
        # It takes a list of inputs, and only graphs that return several values or a list.
        alone = len(plan.body.results) == 1
        listed = "lambda *inputs: [f(*inputs)]" if alone else "f"
        call = f"compile_fx_inner(graph, [{arguments}])([{arguments}]){'[0]' if alone else ''}"
        return CompiledCall(call, lines=(_NOT_PUBLIC, f"graph = make_fx({listed})({arguments})"))
    plan.modules.add("from torch._inductor.compile_fx import compile_fx")
    call = f"compile_fx(graph, [{arguments}])({arguments})"
    return CompiledCall(call, lines=(_NOT_PUBLIC, "graph = torch.fx.symbolic_trace(f)"))
