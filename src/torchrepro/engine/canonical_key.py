"""The canonical key of a candidate: equal for two that no compiler and no judge could tell apart.

What is left out cannot matter: names of nodes, inputs, attributes and nested graphs, stack traces and
example values on nodes, notes for the reader, the failure that is expected, settings that are not data. What
cannot be described is keyed by its identity, so that two different candidates never share a key; judging an
equal candidate twice only costs time.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import marshal
import types
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node

from torchrepro.bundle.storage_entries import StorageEntry
from torchrepro.bundle.storages import StorageTable, digest_of_storage, known
from torchrepro.bundle.values import describe_values
from torchrepro.graph_text import resolver
from torchrepro.graph_text.annotations import Note, SymbolNote, TensorNote, note_of_node, write_note
from torchrepro.graph_text.literals import LiteralWriter
from torchrepro.graph_text.triton_kernels import calls_kernel, with_places
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.nouns.repro import Compiler, Registered, Repro, is_data
from torchrepro.torch_api.modules import own_state
from torchrepro.torch_api.tensors import is_fake, storage_identity

_PROCESS = uuid.uuid4().hex
_numbers = itertools.count()
_tokens: dict[int, tuple[Callable[[], Any], str]] = {}
_names: dict[int, tuple[Any, str]] = {}

_OPAQUE = b'{"kind":"opaque"'
"""Prefix of the entry of a value that cannot be described (`OpaqueEntry`)."""
_STATE_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules", "training"})


def canonical_text(module: GraphModule) -> tuple[str, dict[str, Any]]:
    """Return the text of a graph, of its nested graphs and of the modules that it calls; and its tensors."""
    writer = _Writer()
    return "\n".join(writer.graph(module)), writer.values


def token_of(value: Any) -> str:
    """Return a token for this object that is unique among all objects of all processes."""
    known = _tokens.get(id(value))
    if known is None or known[0]() is not value:
        try:
            reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            reference = functools.partial(lambda held: held, value)  # kept alive: its id is not reused
        known = _tokens[id(value)] = reference, f"<{_PROCESS} {next(_numbers):08}>"
    return known[1]


class _Literals(LiteralWriter):
    """Arguments as a bundle writes them; what a bundle cannot keep is written as its token."""

    def write(self, value: Any) -> str:
        try:
            return super().write(value)
        except (CannotSerialise, RecursionError):
            return token_of(value)

    def callable(self, target: Callable[..., Any]) -> str:
        name = _names.get(id(target))
        if name is not None:
            return name[1]
        try:
            path = super().callable(target)
        except CannotSerialise:
            return token_of(target)
        if isinstance(target, types.FunctionType) and path.startswith("user("):
            # A function may be edited between two runs and keep its name.
            return f"{path}#{hashlib.sha256(marshal.dumps(target.__code__)).hexdigest()[:16]}"
        if resolver.path_of(target) is not None:
            _names[id(target)] = target, path  # torch's own functions: some hundreds, alive anyway
        return path


class _Writer:
    """One walk over a graph and everything that it holds; an object that is met again is the same one."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._variables: dict[Node, str] = {}
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []  # ids are unique only while their objects live
        self._literals = _Literals(self._variables, self._name, keep_kernel=token_of)

    def graph(self, module: GraphModule, nested: bool = False) -> Iterator[str]:
        for node in module.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                yield from self._attribute(module, str(node.target))
            self._variables[node] = f"v{len(self._variables)}"
            yield f"{self._variables[node]} = {self._expression(module, node, nested)}"
        # The compiler also gets parameters and buffers that no node reads.
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
            if id(tensor) not in self._seen:
                yield from self._attribute(module, name)

    def _name(self, value: Any, letter: str = "c") -> str:
        """Return the name of a tensor, a generator or a module."""
        if id(value) not in self._seen:
            name = self._seen[id(value)] = f"{letter}{len(self._seen)}"
            self._alive.append(value)
            if isinstance(value, torch.Tensor | torch.Generator):
                self.values[name] = value
        return self._seen[id(value)]

    def _expression(self, module: GraphModule, node: Node, nested: bool) -> str:
        write = self._literals.write
        arguments = ", ".join(
            [write(value) for value in node.args]
            + [f"{name}={write(value)}" for name, value in sorted(_keywords(node).items())]
        )
        match node.op:
            case "placeholder":
                stars = "*" * str(node.target).count("*")
                return f"{stars}input({arguments}){_note(node, nested)}"
            case "get_attr":
                return self._reference(module, str(node.target))
            case "call_module":
                return f"{self._reference(module, str(node.target))}({arguments})"
            case "call_function":
                assert callable(node.target)
                return f"{self._literals.callable(node.target)}({arguments})"
        return f"{node.op} {node.target}({arguments})"

    def _reference(self, module: torch.nn.Module, path: str) -> str:
        value, _ = _reach(module, path)
        return self._seen.get(id(value)) or self._literals.write(value)

    def _attribute(self, module: torch.nn.Module, path: str) -> Iterator[str]:
        """Yield lines for the value of an attribute on its first occurrence."""
        value, owner = _reach(module, path)
        if id(value) in self._seen:
            return
        if isinstance(value, torch.Tensor):
            yield f"{self._name(value, 'a')}: {_role(value, owner, path.rpartition('.')[2])}"
        elif isinstance(value, GraphModule):
            name = self._name(value, "g")
            yield f"{name}: graph"
            yield from self.graph(value, nested=True)
            yield f"{name}: end"
        elif isinstance(value, torch.nn.Module):
            yield from self._module(value)

    def _module(self, module: torch.nn.Module) -> Iterator[str]:
        """Yield lines for a module: its class, its attributes and its state."""
        name = self._name(module, "m")
        yield f"{name}: {self._literals.callable(type(module))}"
        state = {key: value for key, value in vars(module).items() if key not in _STATE_OF_MODULES}
        for key, value in sorted(state.items()):
            plain = dict(value) if type(value) is OrderedDict else value  # hooks
            yield f"{name}.{key}: {self._literals.write(plain)}"
        yield f"{name}.training: {module.training}"
        for key in itertools.chain(*own_state(module)[:3]):
            yield from self._attribute(module, key)
            yield f"{name}.{key}: {self._reference(module, key)}"


def _keywords(node: Node) -> dict[str, Any]:
    if not calls_kernel(node):
        return node.kwargs
    try:
        return with_places(node)
    except CannotSerialise:
        return {**node.kwargs, "process": _PROCESS}  # indices into a table of this process


def _role(value: torch.Tensor, owner: torch.nn.Module, name: str) -> str:
    if isinstance(value, torch.nn.Parameter):
        return "parameter"
    if name in own_state(owner).buffers:
        return "temporary buffer" if name in own_state(owner).temporary else "buffer"
    return "constant"


def _note(node: Node, nested: bool) -> str:
    """Return what the compiler gets for an input in addition to its value: sizes that are symbols.

    An input of a nested graph has no value, so all of its note counts.
    """
    note = note_of_node(node)
    return f": {write_note(note)}" if note is not None and (nested or _is_symbolic(note)) else ""


def _is_symbolic(note: Note | None) -> bool:
    if isinstance(note, tuple):
        return any(_is_symbolic(item) for item in note)
    if isinstance(note, TensorNote):
        return any(isinstance(size, str) for size in (*note.shape, *(note.stride or ())))
    return isinstance(note, SymbolNote)


def _reach(module: torch.nn.Module, path: str) -> tuple[Any, torch.nn.Module]:
    """Return the attribute at a dotted path (None if it is missing) and the module that holds it."""
    value: Any = module
    owner = module
    for part in path.split("."):
        owner, value = value, getattr(value, part, None)
    return value, owner


def canonical_key(repro: Repro) -> str:
    """Return a digest of the graph without its names, of all values, and of the other fields."""
    storages = _Contents()
    text, held = canonical_text(repro.graph)
    values = {
        **{
            f"{name}.{index}": value
            for name, inputs in (("input", repro.inputs), *enumerate(repro.earlier))
            for index, value in enumerate(inputs)
        },
        **held,
        **{f"rng.{device}": repro.ambient.rng[device] for device in sorted(repro.ambient.rng)},
    }
    found = describe_values(values, storages, token_of)
    entries = {name: msgspec.json.encode(entry) for name, entry in found.items()}
    described = msgspec.json.encode(
        [
            text,
            {name: msgspec.Raw(entry) for name, entry in entries.items()},
            storages.digests,
            [token_of(values[name]) for name, entry in entries.items() if _OPAQUE in entry],
            [len(repro.inputs), [len(inputs) for inputs in repro.earlier]],
            _around(repro),
        ]
    )
    return hashlib.sha256(described).hexdigest()


def _around(repro: Repro) -> list[Any]:
    """Return all fields of a repro but its graph and values; a new field is included automatically."""
    left_out = {"graph", "inputs", "earlier", "ambient", "expected", "origin", "notes"}
    fields = {name: value for name, value in vars(repro).items() if name not in left_out}
    ambient = {
        name: getattr(repro.ambient, name)
        for name in repro.ambient.__slots__
        if name not in ("rng", "left_out")
    }
    return [
        msgspec.to_builtins(_with_tokens(each), enc_hook=token_of, str_keys=True, order="sorted")
        for each in (fields, ambient)
    ]


def _with_tokens(value: Any) -> Any:
    """Return settings with a token for each that is code: a function by its name and its bytecode."""
    if isinstance(value, Registered):
        return [_with_tokens(value.function), value.arguments]
    if isinstance(value, Compiler):
        value = {name: getattr(value, name) for name in value.__slots__}
    if isinstance(value, Mapping):
        return {key: _with_tokens(item) for key, item in value.items()}
    if isinstance(value, types.FunctionType) and not value.__closure__:
        digest = hashlib.sha256(marshal.dumps(value.__code__)).hexdigest()[:16]
        return f"{value.__module__}:{value.__qualname__}#{digest}"
    if isinstance(value, list | tuple) and not is_data(value):
        return [_with_tokens(item) for item in value]
    return token_of(value) if callable(value) else value


class _Contents(StorageTable):
    """Which tensors lie in which memory, how large it is, and what lies in it."""

    def __init__(self) -> None:
        super().__init__()
        self.digests: list[str] = []
        self._entries: dict[tuple[str, int], StorageEntry] = {}

    def entry_for(self, tensor: torch.Tensor, where: str) -> StorageEntry:
        identity = storage_identity(tensor)
        if identity not in self._entries:
            nbytes = known(tensor.untyped_storage().nbytes())
            self._entries[identity] = StorageEntry(str(len(self._entries)), nbytes, str(tensor.device))
            self.digests.append("" if is_fake(tensor) else digest_of_storage(tensor))
        return self._entries[identity]
