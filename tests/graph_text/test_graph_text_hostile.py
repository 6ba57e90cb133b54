"""A stranger's text reaches no code of ours but what computes on tensors."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.graph_text import resolver
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.nouns.errors import CannotSerialise, GraphTextError, TorchReproError


def graph_of(*lines: str, state: str = "pass_state = 1") -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"class Graph:\n    self.{state}\n    def forward(self, x):\n{body}\n"


CALLS = [
    'torch.os.system("true")',
    'torch.hub.load("a", "b")',
    'torch.load("file")',
    'torch.save(x, "file")',
    'torch.jit.load("file")',
    'torch.import_ir_module("file")',
    "torch.compile(x)",
    'torch.from_file("file")',
    'torch.ops.load_library("evil.so")',
    'torch.ops.aten.from_file.default("file")',
    'torch.ops.aten.save.default(x, "file")',
    "torch.ops.aten.__class__(x)",
    "torch.ops.aten.add.__init__(x)",
    "torch.ops.__class__(x)",
    'torch._C._jit_script_compile("x")',
    'torch._C._load_for_lite_interpreter("file")',
    'torch.utils.cpp_extension.load("a", "b")',
    "torch.nn.functional.torch.load(x)",
    "torch.nn.functional.importlib(x)",
    "torch.library.Library(x)",
    "torch.package.PackageImporter(x)",
    "torch.serialization.load(x)",
    "torch._dynamo.allow_in_graph(x)",
    "torch.Tensor.__reduce_ex__(x, 2)",
    "torch.Tensor.apply_(x, torch.relu)",
    'builtins.eval("1")',
    'builtins.exec("1")',
    'builtins.open("file")',
    'builtins.__import__("os")',
    'builtins.getattr(x, "__class__")',
    'eval("1")',
    'exec("1")',
    'open("file")',
    'getattr(x, "__class__")',
    'setattr(x, "data", 1)',
    "globals()",
    'compile("1", "a", "exec")',
    '__import__("os")',
    'operator.attrgetter("__class__")',
    'operator.methodcaller("__reduce__")',
    "operator.call(x)",
    "operator.__class__(x)",
    'os.system("true")',
    "x.__class__()",
    "x.__reduce_ex__(2)",
    "x.apply_(torch.relu)",
    "x.register_hook(torch.relu)",
    "x.tofile('file')",
    "x.numpy().tofile('file')",
    "self.forward(x)",
    "self.__class__(x)",
    'self["__class__"](x)',
    'call_module("__class__", x)',
    'call_method("__reduce__", x)',
    'call_method("a(); import os; os.b", x)',
    'get_attr("__class__")',
    'user("os:system")("true")',
    'user("builtins:eval")("1")',
    'user("torch.hub:load")("a")',
    'named("x); import os; os.system(1", x.relu())',
    'named("a\\nimport os", x.relu())',
    'arg("x, y=print(1)")',
    "(lambda: x)()",
    "[y for y in x]",
    'f"{x}"',
    "(y := x)",
    "torch.add(*x)",
    "torch.add(**x)",
    "x if x else x",
    "x and x",
    "await x",
    "torch.add(x.relu(), 1)",
    'enum("os._Environ", "x")',
    'torch.add(x, enum("torch.os._Environ", "x"))',
    'torch.add(x, enum("torch.nn.Module", "__init__"))',
    'torch.add(x, named_tuple("subprocess.Popen", "true"))',
    'torch.add(x, named_tuple("torch.nn.Linear", 1, 2))',
    'torch.add(x, named_tuple("torch.os.stat_result", 1))',
    'torch.add(x, user("os:system"))',
    'torch.add(x, const("missing"))',
    "torch.add(x, torch.os)",
    "torch.add(x, torch.nn)",
    "torch.add(x, __builtins__)",
    "torch.add(x, 10 ** 10 ** 10)",
    "torch.add(x, undefined)",
    "x.__dict__",
    "x.grad_fn",
    'numpy_function("load")("file")',
    'numpy_function("sys")()',
    'numpy_function("os.system")("true")',
    'numpy_method("__reduce__")(x)',
    'numpy_method("tofile")(x, "file")',
    'numpy_operator("call")(x)',
    'numpy_operator("attrgetter")("x")',
    'torch._dynamo.utils.numpy_attr_wrapper(x, "__class__")',
    "torch._dynamo.utils.istype(x, x)",
    "torch.add(x, sym(9 ** 9 ** 9 ** 9))",
    "torch.add(x, sym(__import__('os')))",
    "torch.float32",
    "1",
    "x",
]


@pytest.mark.parametrize("call", CALLS)
def test_an_attack_is_one_clear_line(call: str) -> None:
    with pytest.raises(GraphTextError) as refusal:
        read_graph(graph_of(f"y = {call}", "return y"), {})
    message = str(refusal.value)
    assert "\n" not in message
    assert "line 4" in message or "cannot be parsed" in message
    assert refusal.value.next_step


TEXTS = {
    "code before the graph": "import os\nclass Graph:\n    def forward(self, x):\n        return x\n",
    "code after the graph": "class Graph:\n    def forward(self, x):\n        return x\nprint(1)\n",
    "a decorator": "@print\nclass Graph:\n    def forward(self, x):\n        return x\n",
    "a decorated forward": "class Graph:\n    @print\n    def forward(self, x):\n        return x\n",
    "a base class": "class Graph(print(1)):\n    def forward(self, x):\n        return x\n",
    "a metaclass": "class Graph(metaclass=print):\n    def forward(self, x):\n        return x\n",
    "a call in the class": "class Graph:\n    print(1)\n    def forward(self, x):\n        return x\n",
    "a default that runs": "class Graph:\n    def forward(self, x=print(1)):\n        return x\n",
    "an annotation that runs": "class Graph:\n    def forward(self, x: print(1)):\n        return x\n",
    "a return annotation": "class Graph:\n    def forward(self, x) -> print(1):\n        return x\n",
    "star arguments": "class Graph:\n    def forward(self, *x):\n        return x\n",
    "an import in forward": graph_of("import os", "return x"),
    "a loop": graph_of("for y in x: pass", "return x"),
    "a with": graph_of("with x: pass", "return x"),
    "an assert": graph_of("assert x", "return x"),
    "a delete": graph_of("del x", "return x"),
    "a global": graph_of("global y", "return x"),
    "an early return": graph_of("return x", "y = x.relu()"),
    "a bare call": graph_of("x.relu()", "return x"),
    "an unpacking": graph_of("a, b = x.relu()", "return a"),
    "two targets": graph_of("a = b = x.relu()", "return a"),
    "an attribute target": graph_of("x.data = x.relu()", "return x"),
    "a root as a name": graph_of("torch = x.relu()", "return x"),
    "a name twice": graph_of("y = x.relu()", "y = x.relu()", "return y"),
    "state outside the graph": graph_of("return x", state="__class__ = 1"),
    "state over a method": graph_of("return x", state="forward = 1"),
    "a module of no torch.nn class": graph_of("return x", state="m = torch.nn.functional.relu(x=1)"),
    "a module with a call inside": graph_of("return x", state='m = torch.nn.Linear(in_features=open("f"))'),
    "a nested class with a base": graph_of("return x", state="a = 1\n    class b(object):\n        pass"),
    "a carriage return in a comment": graph_of("# a\r        import os", "return x"),
    "a null byte": "class Graph:\n    def forward(self, x):\n        return x\0\n",
    "no graph": "",
    "another name": "class Other:\n    def forward(self, x):\n        return x\n",
    "no forward": "class Graph:\n    self.a = 1\n",
    "a newer format": "# torchrepro graph 7.\nclass Graph:\n    def forward(self, x):\n        return x\n",
    "deep nesting": "class Graph:\n    def forward(self, x):\n        return "
    + "(" * 3000
    + ")" * 3000
    + "\n",
    "deep signs": "class Graph:\n    def forward(self, x):\n        return " + "-" * 50000 + "1\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_graph_is_refused(name: str) -> None:
    with pytest.raises(GraphTextError) as refusal:
        read_graph(TEXTS[name], {})
    assert "\n" not in str(refusal.value)


def test_a_newer_format_names_both_versions() -> None:
    with pytest.raises(GraphTextError, match=r"format 7 .* reads format 1"):
        read_graph(TEXTS["a newer format"], {})


def test_names_that_fx_would_write_into_code_never_carry_code(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    evil = f"a=open({str(witness)!r}, 'w')"
    texts = [
        graph_of(f"y = named({evil!r}, x.relu())", "return y"),
        graph_of(f"y = arg({evil!r})", "return y"),
        graph_of(f"y = call_method({'relu() or ' + evil!r}, x)", "return y"),
        graph_of(f"y = self[{evil!r}]", "return y", state=f'a = 1\n    self[{evil!r}] = const("k")'),
        graph_of(f"return named({evil!r}, x)"),
    ]
    for text in texts:
        with pytest.raises(GraphTextError):
            read_graph(text, {"k": torch.ones(1)})
    assert not witness.exists()


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_graph_or_a_clear_refusal(text: str) -> None:
    for candidate in (text, graph_of(f"y = {text}", "return y"), graph_of(f"return {text}")):
        try:
            read_graph(candidate, {})
        except TorchReproError:
            continue


def _user_function(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _graph_calling(target: object) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(target, (graph.placeholder("x"),)))  # type: ignore[arg-type]
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_a_users_function_needs_trust() -> None:
    written = write_graph(_graph_calling(_user_function))
    assert written.needs_trust == (f"{__name__}._user_function",)
    with pytest.raises(GraphTextError, match=f"--trust {__name__}"):
        read_graph(written.text, written.constants)
    again = read_graph(written.text, written.constants, trusted=[__name__])
    assert torch.equal(again(torch.ones(2)), torch.full((2,), 2.0))


def test_trust_covers_the_modules_below_but_not_their_siblings() -> None:
    text = graph_of('y = user("json.decoder:JSONDecoder")()', "return y")
    assert read_graph(text, {}, trusted=["json"])
    for other in ("jso", "json.encoder", "decoder"):
        with pytest.raises(GraphTextError, match="--trust"):
            read_graph(text, {}, trusted=[other])


def test_a_function_that_no_name_leads_to_cannot_be_written() -> None:
    with pytest.raises(CannotSerialise, match="cannot be found again by a name"):
        write_graph(_graph_calling(lambda x: x))


def test_an_operator_that_is_not_registered_is_named() -> None:
    text = graph_of("y = torch.ops.a_library_of_mine.foo.default(x)", "return y")
    with pytest.raises(
        GraphTextError, match=r"torch\.ops\.a_library_of_mine\.foo\.default is not registered"
    ):
        read_graph(text, {})


def test_a_custom_operator_is_written_and_named_as_needing_its_library() -> None:
    with torch.library._scoped_library("graph_text_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        written = write_graph(_graph_calling(torch.ops.graph_text_test.twice.default))
        assert written.needs_trust == ("torch.ops.graph_text_test.twice.default",)
        again = read_graph(written.text, written.constants)
        assert torch.equal(again(torch.ones(2)), torch.full((2,), 2.0))


def test_nothing_in_the_table_imports_loads_or_opens() -> None:
    telling = (
        "load",
        "save",
        "open",
        "import",
        "exec",
        "eval",
        "compile",
        "file",
        "register",
        "subprocess",
        "popen",
    )
    harmless = {
        "torch._functorch.predispatch.lazy_load_decompositions",
        "torch._functorch.vmap.lazy_load_decompositions",
        "torch.autograd.forward_ad._maybe_load_decompositions",
    }
    for path, _ in resolver.entries():
        name = path.rpartition(".")[2]
        words = set(name.lower().split("_"))
        assert path in harmless or "miopen" in name or not words & set(telling), path


def test_every_function_of_operator_that_computes_is_allowed() -> None:
    for function in (
        operator.add,
        operator.getitem,
        operator.setitem,
        operator.iadd,
        operator.not_,
        operator.truth,
    ):
        assert resolver.path_of(function) == f"operator.{function.__name__}"
