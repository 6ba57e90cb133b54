"""From the text of an artefact to an `Artefact`: its statements by their forms, none of them executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchrepro.graph_text.syntax import dotted_name
from torchrepro.interchange.artefact import (
    Artefact,
    ArtefactError,
    GeneratorInput,
    Input,
    NumberInput,
    Size,
    StorageLine,
    TensorInput,
    device_name,
    dtype_name,
    shown,
    size_of,
)
from torchrepro.interchange.repro_class import read_class
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place, is_data
from torchrepro.torch_api.names import AFTER_AOT_TOOL, AFTER_DYNAMO_TOOL

_CONFIG = re.compile(r"torch\._(\w+)\.config\.([\w.]+)\Z")
_VERSION = re.compile(r"^# torch version: (\S{1,60})$", re.MULTILINE)
_LARGEST = 16 << 20
"""Characters: a graph of 20,000 nodes has four million, and its syntax tree takes 230 bytes for each."""
_HASH = re.compile(r"[0-9a-f]{8,128}\Z")
_PLACES = {
    AFTER_DYNAMO_TOOL: Place.AFTER_CAPTURE,
    AFTER_AOT_TOOL: Place.AFTER_AOT,
}
_NO_MEANING = re.compile(
    r"mod = Repro\(\)|load_args\._version = 0|isolate_fails_code_str = None|fbcode_builder_path = .*"
    r"|torch\._higher_order_ops\.triton_kernel_wrap\.kernel_side_table\.reset_table\(\)"
    r"|os\.environ\.pop\(.*\)|if '__compile_source__' in globals\(\):.*",
    re.DOTALL,
)
"""Statements that torch writes into every artefact and that say nothing about the graph."""


def is_artefact(text: str) -> bool:
    """Return whether a text looks like an artefact; `read_artefact` says what is wrong with one."""
    return "class Repro(" in text and "def load_args(" in text


def read_artefact(text: str, name: str) -> Artefact:
    """Return what an artefact says; ArtefactError, with the line, for one that cannot be understood."""
    if len(text) > _LARGEST:
        raise TorchReproError(
            f"{name} has {len(text):,} characters, and to parse it would take gigabytes",
            next_step="run the program itself under torchrepro run",
        )
    try:
        return _Reader(ast.parse(text), text, name).artefact()
    except SyntaxError as failure:
        fact = f"it is no Python ({failure.msg})"
        # Graphs in a graph and modules of the user have no constructor that torch could write.
        broken = (failure.text or "").strip()
        if broken.startswith("self.") and "=" in broken:
            fact = f"torch could not write the module {broken[:60]!r} as code"
        raise ArtefactError(failure.lineno or 0, fact) from None
    except (RecursionError, MemoryError):
        raise TorchReproError(f"{name} is nested too deeply", next_step="import another file") from None
    except ValueError as failure:
        raise TorchReproError(
            f"{name} cannot be parsed: {failure}", next_step="import another file"
        ) from None


class _Reader:
    """Reads one artefact, statement by statement."""

    def __init__(self, tree: ast.Module, text: str, name: str) -> None:
        self._body = tree.body
        self._text = text
        self._name = name
        self._symbols: dict[str, int] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._environ: dict[str, str] = {}
        self._run: dict[str, Any] = {}
        self._place: Place | None = None
        self._notes: list[str] = []

    def artefact(self) -> Artefact:
        classes = [one for one in self._body if isinstance(one, ast.ClassDef) and one.name == "Repro"]
        loaders = [one for one in self._body if isinstance(one, ast.FunctionDef) and one.name == "load_args"]
        if len(classes) != 1 or len(loaders) != 1:
            line = self._body[-1] if self._body else 0
            raise ArtefactError(
                line, "it has no class Repro with a function load_args, as torch's repros and launchers have"
            )
        for statement in self._body:
            if statement not in (classes[0], loaders[0]):
                self._statement(statement)
        if self._place is None:
            raise ArtefactError(
                self._body[-1],
                "it does not say where in the compiler the graph was taken",
                f"the file ends with `from {AFTER_AOT_TOOL} import run_repro`, or {AFTER_DYNAMO_TOOL}",
            )
        storages, inputs = self._inputs(loaders[0])
        inputs = _with_symbols(inputs, self._symbols)
        found = read_class(classes[0], inputs)
        version = _VERSION.search(self._text)
        accuracy = self._run.get("accuracy")
        return Artefact(
            name=self._name,
            graph_text=found.text,
            state=found.state,
            modules=found.modules,
            storages=storages,
            inputs=inputs,
            place=self._place,
            backend=str(self._run.get("backend") or "inductor"),
            symbols=self._symbols,
            configs=self._configs,
            environ=self._environ,
            accuracy=bool(accuracy),
            autocast=self._run.get("autocast") is True,
            save_dir=str(self._run.get("save_dir") or ""),
            torch=version[1] if version else "",
            notes=tuple(self._notes),
        )

    # The statements around the graph.

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import() | ast.ImportFrom():
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(value))) if (
                type(value) is int and 0 <= value < 1 << 53
            ):
                self._symbols[name] = value
                return
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                setting = _CONFIG.match(dotted_name(target) or "")
                if setting is not None:
                    self._setting(setting[1], setting[2], value)
                    return
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Attribute() as owner, slice=ast.Constant(value=str(name)))],
                value=ast.Constant(value=str(text)),
            ) if dotted_name(owner) == "os.environ":
                self._environ[name] = text
                return
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                self._main(statement)
                return
        if not _NO_MEANING.fullmatch(ast.unparse(statement)):
            self._notes.append(f"line {statement.lineno} has no part in the bundle: {shown(statement)}")

    def _setting(self, module: str, name: str, value: ast.expr) -> None:
        try:
            known = ast.literal_eval(value)
        except (ValueError, TypeError, MemoryError):
            known = ...
        known = sorted(known) if isinstance(known, set | frozenset) and all(map(is_data, known)) else known
        known = list(known) if isinstance(known, tuple) else known
        if is_data(known):
            self._configs.setdefault(module, {})[name] = known
        else:
            self._notes.append(
                f"line {value.lineno}: the setting {module}.{name} is no data, and is left out"
            )

    def _main(self, main: ast.If) -> None:
        """Read how torch runs the graph: the module of `run_repro`, and its arguments."""
        for node in ast.walk(main):
            match node:
                case ast.ImportFrom(module=str(module), names=[ast.alias(name="run_repro")]) if (
                    module in _PLACES
                ):
                    self._place = _PLACES[module]
                case ast.Call(func=ast.Name(id="run_repro"), keywords=keywords):
                    for item in keywords:
                        if item.arg and isinstance(item.value, ast.Constant):
                            self._run[item.arg] = item.value.value

    # The inputs.

    def _inputs(self, loader: ast.FunctionDef) -> tuple[dict[str, StorageLine], tuple[Input, ...]]:
        storages: dict[str, StorageLine] = {}
        inputs: list[Input] = []
        for statement in loader.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if (
                    dotted_name(call.func) == "reader.storage"
                ):
                    storages[name] = self._storage(call)
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="reader"))) as call):
                    inputs.append(self._input(call, storages))
                case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                    pass  # what torch writes about an input that it does not support
                case ast.If():
                    self._notes.append(
                        f"line {statement.lineno}: values that torch adjusts before the call "
                        "(repeat_interleave) are left as they are"
                    )
                case _:
                    raise ArtefactError(statement, f"{shown(statement)} does not load an input")
        return storages, tuple(inputs)

    def _storage(self, call: ast.Call) -> StorageLine:
        match call.args:
            case [ast.Constant(value=None | str() as digest), nbytes]:
                pass
            case _:
                raise ArtefactError(call, f"{shown(call)} describes no storage")
        if digest is not None and not _HASH.match(digest):
            raise ArtefactError(
                call,
                f"{digest[:60]!r} is no name of a storage",
                "torch names storages by hashes: do not trust the file",
            )
        given = {item.arg: item.value for item in call.keywords}
        device = device_name(given["device"]) if "device" in given else "cpu"
        return StorageLine(digest or "", size_of(nbytes, self._symbols), device, call.lineno)

    def _input(self, call: ast.Call, storages: Mapping[str, StorageLine]) -> Input:
        given = {item.arg: item.value for item in call.keywords}
        assert isinstance(call.func, ast.Attribute)
        match call.func.attr, call.args:
            case "tensor", [ast.Name(id=storage), ast.Tuple() as shape, *rest] if storage in storages:
                strides = rest[0] if rest else given.get("stride")
                return self._tensor(call, storage, shape, strides, given)
            case "symint", [ast.Constant(value=int() | float() | None as value)]:
                match given.get("expr"):
                    case ast.Constant(value=str(text)):
                        return NumberInput(value, self._expression(text, value, call))
                return NumberInput(value)
            case "symint", [tree]:
                size = size_of(tree, self._symbols)
                return NumberInput(size.value, size.expression)
            case "const", _:
                return NumberInput(None)
            case "generator", [ast.Constant(value=str(kind)), ast.Constant(value=None | int() as index)]:
                return GeneratorInput(kind if index is None else f"{kind}:{index}")
            case "unsupported" | "opaque" as word, _:
                raise ArtefactError(
                    call,
                    f"torch has left an input out, because it is no tensor or number ({word})",
                    "run the program under torchrepro run, which keeps such inputs",
                )
        raise ArtefactError(call, f"{shown(call)} loads no input")

    def _expression(self, text: str, value: int | float | None, call: ast.Call) -> str:
        """Return the expression of a symbolic number; a symbol alone tells its own value."""
        if text.isidentifier() and isinstance(value, int):
            self._symbols.setdefault(text, value)
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise ArtefactError(call, f"{text[:60]!r} is no expression over sizes") from None
        ast.increment_lineno(tree, call.lineno - 1)
        return size_of(tree, self._symbols).expression

    def _tensor(
        self,
        call: ast.Call,
        storage: str,
        shape: ast.Tuple,
        strides: ast.expr | None,
        given: Mapping[str | None, ast.expr],
    ) -> TensorInput:
        sizes = tuple(size_of(size, self._symbols) for size in shape.elts)
        match strides:
            case None:
                steps = tuple(_contiguous(sizes))
            case ast.Tuple(elts=items) if len(items) == len(sizes):
                steps = tuple(size_of(item, self._symbols) for item in items)
            case _:
                raise ArtefactError(call, f"{shown(strides)} are no strides of this tensor")
        offset = given.get("storage_offset")
        extra = [name for name in given if name not in _TENSOR_WORDS]
        for name in extra:
            self._notes.append(f"line {call.lineno}: the property {name} of an input is left out")
        return TensorInput(
            storage=storage,
            shape=sizes,
            stride=steps,
            dtype=dtype_name(given["dtype"]) if "dtype" in given else "float32",
            offset=Size(0) if offset is None else size_of(offset, self._symbols),
            requires_grad=_flag(given.get("requires_grad")),
            is_leaf=_flag(given.get("is_leaf")) or "is_leaf" not in given,
            line=call.lineno,
        )


_TENSOR_WORDS = ("stride", "storage_offset", "dtype", "requires_grad", "is_leaf")


def _flag(tree: ast.expr | None) -> bool:
    match tree:
        case None:
            return False
        case ast.Constant(value=bool(value)):
            return value
    raise ArtefactError(tree, f"{shown(tree)} is neither True nor False")


def _contiguous(sizes: tuple[Size, ...]) -> Iterator[Size]:
    """Yield the strides of a contiguous tensor, by value: their expressions follow from the sizes."""
    steps, step = [], 1
    for size in reversed(sizes):
        steps.append(Size(step))
        step *= max(size.value, 1)
    yield from reversed(steps)


def _with_symbols(inputs: tuple[Input, ...], symbols: Mapping[str, int]) -> tuple[Input, ...]:
    """Give numbers without an expression the symbol of their value, where there is exactly one.

    Torch 2.11 writes `reader.symint(5)` next to `s77 = 5`.
    """
    taken = {item.expression for item in inputs if isinstance(item, NumberInput)}
    values = [item.value for item in inputs if isinstance(item, NumberInput) and not item.expression]
    found: list[Input] = []
    for item in inputs:
        if isinstance(item, NumberInput) and not item.expression and values.count(item.value) == 1:
            alike = [name for name, value in symbols.items() if value == item.value and name not in taken]
            item = NumberInput(item.value, alike[0]) if len(alike) == 1 else item
        found.append(item)
    return tuple(found)
