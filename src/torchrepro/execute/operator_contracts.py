"""Check what custom operators promise, on the values that reach them in an eager run.

A compiler believes an operator: its fake kernel for sizes and strides, its schema for what it writes to and
what it returns, its backward for gradients. Where that is wrong, the compiled program fails, and the compiler
looks like the culprit. Of torch's own operators only the fake kernels are compared, without any data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.execute.fake_results import (
    Arguments,
    Difference,
    Raised,
    differences,
    fake_arguments,
    run_fake,
)
from torchrepro.execute.gradient_check import NotChecked, WrongGradient, check_backward
from torchrepro.execute.operator_calls import Call, Calls, RunWithNodes
from torchrepro.graph_text.triton_kernels import kernel_of
from torchrepro.judge.clone import clone_inputs, is_plain
from torchrepro.judge.compare import tensors_in
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Phase
from torchrepro.judge.op_forms import is_composite
from torchrepro.judge.tensors import unequal
from torchrepro.nouns.contracts import Contract, FakeDifference, Violation
from torchrepro.nouns.repro import ModelRequest, Place, Repro
from torchrepro.state.ambient import applied_settings
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.ops import (
    DispatchKey,
    HigherOrderOperator,
    custom_op_definition,
    has_kernel,
    registered_functions,
    schema_of,
)
from torchrepro.torch_api.pytree import tree_leaves, tree_map_only
from torchrepro.torch_api.tensors import storage_identity
from torchrepro.user_code.registrations import Role, place_of, registered_at

Eager = Callable[[Calls], object]
"""Runs the computation once, eagerly, with its calls recorded."""
_ROUNDING = 256
"""Units in the last place, of the largest element, by which two runs may differ: the order of additions."""


# The jobs: each runs in a process of its own, because an operator may crash.


def check_repro(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> bool:
    """Check the operators that a repro calls; write what is found to the file `log`."""
    from torchrepro.execute.judge_repro import Prepared
    from torchrepro.execute.judge_user_call import subject_of_call

    def eager(calls: Calls) -> Run:
        if repro.place is Place.BEFORE_CAPTURE:
            return subject_of_call(repro, phase, fp64=False).eager(calls)
        prepared = Prepared(repro)
        graph, inputs = prepared.graph(), prepared.inputs()
        with calls:
            return prepared.observe(graph, RunWithNodes(graph, calls).run, inputs)

    phase("eager")
    start = capture_rng_state().starting_from(repro.ambient.rng or {})
    with applied_settings(repro.ambient), same_randomness(start):
        check_operators(eager, Path(payload["log"]))
    return True


def check_model(payload: dict[str, Any], phase: Phase) -> bool:
    """Check the operators that a user's model calls; write what is found to the file `log`."""
    from torchrepro.execute.user_model import load_trial

    phase("build")
    trial = load_trial(msgspec.convert(payload["request"], ModelRequest))

    def eager(calls: Calls) -> Run:
        built = trial.factory.fresh()
        with calls:
            return trial.observe(built, built.model)

    phase("eager")
    check_operators(eager, Path(payload["log"]))
    return True


def check_operators(eager: Eager, log: Path) -> None:
    """Run a computation and check every custom operator that it calls; write what is found line by line.

    So it survives an operator that takes the process with it; what is most likely to do so comes last.
    """
    with log.open("a") as file:

        def write(**fields: Any) -> None:
            file.write(msgspec.json.encode(fields).decode() + "\n")
            file.flush()

        own = _OwnFakes()
        calls = Calls(own)
        eager(calls)
        for name, values in (
            ("difference", own.seen),
            ("operator", calls.operators),
            ("skipped", calls.skipped),
        ):
            for value in values:
                write(**{name: value})
        for what, check in _CHECKS.items():
            for call in calls.found:
                write(checking=f"{call.name}: {what}")
                try:
                    for violation in check(call):
                        write(violation=violation)
                except NotChecked as reason:
                    write(skipped=f"{call.name}: {what} not checked: {reason}")
        write(checking="")


# Fake against real.


class _OwnFakes:
    """Compares the fake result of every operator of torch with the real one, in the run itself."""

    def __init__(self) -> None:
        self.seen: dict[FakeDifference, None] = {}

    def __call__(self, op: Any, arguments: Arguments) -> Callable[[Any], None]:
        tensors = [tensor for _, tensor in tensors_in(arguments)]
        if op.namespace != "aten" or not all(map(is_plain, tensors)):
            return lambda real: None
        fake = run_fake(op, *fake_arguments(arguments))

        def look(real: Any) -> None:
            # Many operators need data that a fake tensor has not, and say so.
            if not isinstance(fake, Raised):
                for one in differences(fake, real):
                    detail = f"{one.subject}: {one.fake} as fake, {one.real} as computed"
                    self.seen[FakeDifference(str(op.name()), one.contract, detail)] = None

        return look


def _fake_kernel(call: Call) -> Iterator[Violation]:
    """Yield where the fake kernel says something else than the real one does."""
    if isinstance(call.op, HigherOrderOperator) or is_composite(call.op):
        return  # traced into: it has no fake kernel of its own
    fake = run_fake(call.op, *fake_arguments((call.args, call.kwargs)))
    real, _ = _run(call)
    if isinstance(fake, Raised):
        declared, computed = f"it raises {fake.line}", _described(real)
        remedy = f"its fake kernel should return {computed}"
        if fake.needs_data:
            remedy += "; use torch.library.get_ctx().new_dynamic_size() for a size that depends on data"
        if fake.is_missing:
            declared = "none is registered"
            remedy = f"register one: @torch.library.register_fake({call.name!r}) that returns {computed}"
        said = (declared, f"it computes {computed}")
        role: Role = "kernel" if fake.is_missing else "fake"
        yield _violation(call, Contract.FAKE, "fake kernel", said, remedy, role)
        return
    for one in differences(fake, real):
        said = (f"its fake kernel says {one.fake}", f"it computes {one.real}")
        yield _violation(call, one.contract, one.subject, said, _remedy(one), "fake")


def _remedy(one: Difference) -> str:
    if one.contract is Contract.STRIDE:
        stride = one.real.removeprefix("stride ")
        fake = f"its fake kernel should return torch.empty_strided({one.size}, {stride}) for these arguments"
        return f"{fake}, or its kernel a result of {one.fake}"
    return f"its fake kernel should say {one.real} for these arguments, or its kernel return {one.fake}"


# The schema against what happens.


def _mutation(call: Call) -> Iterator[Violation]:
    """Yield the arguments that the operator writes to without saying so."""
    before = call.fresh()
    arguments = call.fresh()
    _, after = _run(call, arguments)
    changes_shape = torch.Tag.inplace_view in getattr(call.op, "tags", ())
    written = {
        storage_identity(tensor)
        for name, tensor in _named_tensors(call, after)
        if _may_be_written(call, name)
    }
    for (name, old), (_, new) in zip(_named_tensors(call, before), _named_tensors(call, after), strict=True):
        subject = f"argument {name}"
        who = (
            "its schema" if not isinstance(call.op, HigherOrderOperator) else "torch's analysis of the kernel"
        )
        remedy = (
            f"declare it: mutates_args={{{name!r}}}, or Tensor(a!) in the schema; or do not write to it"
            if who == "its schema"
            else f"launch it in an operator (torch.library.triton_op) with mutates_args={{{name!r}}}"
        )
        if (old.shape, old.stride()) != (new.shape, new.stride()) and not changes_shape:
            was, now = (f"shape {tuple(one.shape)}, stride {one.stride()}" for one in (old, new))
            seen = (f"{who} does not say that it changes (it is {was})", f"it is {now} afterwards")
            yield _violation(call, Contract.MUTATION, subject, seen, remedy, "kernel")
        elif storage_identity(new) not in written and (found := unequal(old, new, bits=True)).count:
            seen = (
                f"{who} does not say that it is written to",
                f"{found.count:,} of its {old.numel():,} elements change",
            )
            yield _violation(call, Contract.MUTATION, subject, seen, remedy, "kernel")


def _aliasing(call: Call) -> Iterator[Violation]:
    """Yield results that share memory with an argument or another result without saying so."""
    if isinstance(call.op, HigherOrderOperator):
        yield from _kernel_aliasing(call)
        return
    arguments = call.fresh()
    real, after = _run(call, arguments)
    returns = schema_of(call.op).returns
    found = real if isinstance(real, tuple | list) and len(returns) != 1 else [real]
    owners: list[tuple[str, torch.Tensor, frozenset[str]]] = [
        (f"argument {name}", tensor, _labels(_argument(call, name)))
        for name, tensor in _named_tensors(call, after)
    ]
    for place, (value, declared) in enumerate(zip(found, returns, strict=False)):
        labels = _labels(declared)
        subject = "result" if len(returns) == 1 else f"result[{place}]"
        for _, tensor in tensors_in(value):
            for owner, other, told in owners:
                if _shares(tensor, other) and not _may_share(labels, told):
                    said = ("its schema says that it is new memory", f"it shares memory with {owner}")
                    remedy = (
                        f"return a copy (clone()), or say so in the schema (Tensor(a) for {owner} and it)"
                    )
                    yield _violation(call, Contract.ALIAS, subject, said, remedy, "kernel")
            owners.append((subject, tensor, labels))


def _kernel_aliasing(call: Call) -> Iterator[Violation]:
    """Yield arguments of a Triton kernel that share memory, where the kernel depends on that.

    A compiler makes such a launch functional: each argument that the kernel writes to is a copy of its own.
    """
    named = _named_tensors(call, _run(call)[1])
    own = tree_map_only(torch.Tensor, lambda one: clone_inputs(((one,), {}))[0][0], call.fresh())
    apart = dict(_named_tensors(call, _run(call, own)[1]))
    before, again = (dict(_named_tensors(call, one)) for one in (call.fresh(), _run(call)[1]))
    for name, one in named:
        sharing = next((other for other, tensor in named if other != name and _shares(one, tensor)), None)
        is_written = unequal(before[name], apart[name], bits=True).count
        if sharing is None or not is_written or unequal(one, again[name], bits=True).count:
            continue
        found = unequal(one, apart[name], bits=True)
        if found.count:
            seen = f"{found.count:,} of its {one.numel():,} elements depend on sharing memory with {sharing}"
            remedy = f"pass a copy (clone()) of {sharing}, or write to another tensor"
            said = ("a compiler gives it memory of its own", seen)
            yield _violation(call, Contract.ALIAS, f"argument {name}", said, remedy, "kernel")


def _determinism(call: Call) -> Iterator[Violation]:
    """Yield results that differ between two runs on the same arguments and the same random numbers."""
    if torch.Tag.nondeterministic_seeded in getattr(call.op, "tags", ()):
        return
    first, second = (
        [tensor for _, tensor in tensors_in(_run(call, call.fresh(), dirt=dirt))] for dirt in (0x7B, 0x35)
    )
    if len(first) != len(second):
        raise NotChecked("two runs return another number of tensors")
    for place, (one, other) in enumerate(zip(first, second, strict=True)):
        if not (is_plain(one) and is_plain(other)):
            raise NotChecked("it returns a tensor of another layout or class")
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            seen = f"shape {tuple(one.shape)} in one run and {tuple(other.shape)} in another"
        else:
            found = unequal(one, other, bits=True)
            if not found.count:
                continue
            size = "" if found.max_abs is None else f" (by {found.max_abs:.2g})"
            if found.max_abs is not None and _within_rounding(one, found.max_abs):
                raise NotChecked(f"two runs differ, within rounding{size}")
            seen = f"{found.count:,} of {one.numel():,} elements differ between two runs{size}"
        yield _violation(
            call,
            Contract.DETERMINISM,
            "result" if place == 0 else f"result {place}",
            ("the same arguments give the same result", seen),
            "write every element of the result, draw from torch's generators, and give an operator that "
            "draws the tag torch.Tag.nondeterministic_seeded",
            "kernel",
        )


def _within_rounding(value: torch.Tensor, gap: float) -> bool:
    if not value.is_floating_point() or not value.numel():
        return False
    largest = float(value.detach().abs().nan_to_num(0.0, 0.0, 0.0).max())
    return gap <= _ROUNDING * torch.finfo(value.dtype).eps * largest


def _backward(call: Call) -> Iterator[Violation]:
    """Yield the arguments for which the registered backward is not the derivative."""
    if not call.with_gradients or not _has_backward(call):
        return
    if any(_may_be_written(call, name) for name, _ in _named_tensors(call, (call.args, call.kwargs))):
        raise NotChecked("it writes to its arguments")
    names = _leaf_names(call)
    for one in check_backward(call):
        name = names.get(one.leaf, f"argument {one.leaf}")
        said = (
            f"its backward gives {one.registered:.6g} along a random direction",
            f"finite differences in {str(one.dtype).removeprefix('torch.')} give {one.measured:.6g}",
        )
        yield _violation(call, Contract.BACKWARD, f"gradient of {name}", said, _scaled(one, name), "backward")


def _scaled(one: WrongGradient, name: str) -> str:
    remedy = f"its backward should return the derivative with respect to {name}"
    return remedy if one.ratio is None else f"{remedy}, which is {1 / one.ratio:.4g} times what it returns"


def _has_backward(call: Call) -> bool:
    if isinstance(call.op, HigherOrderOperator):
        return False
    definition = custom_op_definition(call.name)
    if definition is not None:
        return registered_functions(definition)["backward"] is not None
    keys = ("Autograd", "AutogradCPU", "AutogradCUDA", "AutogradOther")
    name = call.op.name()
    return any(has_kernel(name, getattr(DispatchKey, key)) for key in keys if hasattr(DispatchKey, key))


_CHECKS: dict[str, Callable[[Call], Iterator[Violation]]] = {
    "fake against real": _fake_kernel,
    "mutation": _mutation,
    "aliasing": _aliasing,
    "determinism": _determinism,
    "backward": _backward,
}


# Running a call again, and the names of its arguments.


def _run(call: Call, arguments: Arguments | None = None, *, dirt: int = 0) -> tuple[Any, Arguments]:
    """Run the operator on copies; return its result, and the arguments afterwards.

    `dirt` fills memory of the size of each argument with a byte and frees it: a result that is not written to
    completely is then likely to hold it.
    """
    args, kwargs = arguments or call.fresh()
    if dirt:
        for _, tensor in tensors_in((args, kwargs)):
            torch.full((tensor.untyped_storage().nbytes(),), dirt, dtype=torch.uint8, device=tensor.device)
    try:
        with torch.no_grad(), same_randomness(capture_rng_state()):
            return call.op(*args, **kwargs), (args, kwargs)
    except Exception as failure:  # it ran before: it depends on something else than its arguments
        first = str(failure).partition("\n")[0][:120]
        raise NotChecked(f"run again it raises {type(failure).__name__}: {first}") from failure


def _named_values(call: Call, arguments: Arguments) -> Iterator[tuple[str, Any]]:
    args, kwargs = arguments
    if isinstance(call.op, HigherOrderOperator):
        yield from kwargs.get("kwargs", {}).items()
        return
    names = [argument.name for argument in schema_of(call.op).arguments]
    yield from zip(names, args, strict=False)
    yield from kwargs.items()


def _named_tensors(call: Call, arguments: Arguments) -> list[tuple[str, torch.Tensor]]:
    found = _named_values(call, arguments)
    return [(name, tensor) for name, value in found for _, tensor in tensors_in(value)]


def _leaf_names(call: Call) -> dict[int, str]:
    """Return the names of tensor arguments by their places among the leaves of all arguments."""
    by_identity = {id(tensor): name for name, tensor in _named_tensors(call, (call.args, call.kwargs))}
    leaves = tree_leaves((call.args, call.kwargs))
    return {place: by_identity[id(leaf)] for place, leaf in enumerate(leaves) if id(leaf) in by_identity}


def _argument(call: Call, name: str) -> Any:
    return next(argument for argument in schema_of(call.op).arguments if argument.name == name)


def _may_be_written(call: Call, name: str) -> bool:
    if isinstance(call.op, HigherOrderOperator):
        # Below AOT the call says which tensors torch's analysis of the kernel found to be written to.
        return name in call.kwargs.get("tensors_to_clone", (name,))
    alias = _argument(call, name).alias_info
    return alias is not None and bool(alias.is_write)


_ANY = "*"
"""Any memory, in a schema."""


def _labels(item: Any) -> frozenset[str]:
    """Return the names of the memory that an argument or result may have; those in a list are not known."""
    alias = item.alias_info
    return frozenset() if alias is None else frozenset({*alias.before_set, *alias.after_set} or {_ANY})


def _may_share(one: frozenset[str], other: frozenset[str]) -> bool:
    return bool(one & other) or (bool(one and other) and _ANY in one | other)


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not (is_plain(one) and is_plain(other) and one.numel() and other.numel()):
        return False
    return storage_identity(one) == storage_identity(other)


def _described(value: Any) -> str:
    tensors = [f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for _, one in tensors_in(value)]
    return ", ".join(tensors) or "nothing"


def _violation(
    call: Call, contract: Contract, subject: str, said: Sequence[str], remedy: str, role: Role
) -> Violation:
    kernel = isinstance(call.op, HigherOrderOperator)
    where = place_of(kernel_of(call.kwargs)) if kernel else registered_at(call.op.name(), role)
    declared, seen = said
    return Violation(call.name, contract, subject, declared, seen, remedy, where, call.node, call.source)
