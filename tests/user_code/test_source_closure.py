"""A source closure: what the user's code needs and nothing else, as a text that stands alone."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from user_files import taken_along, write_module

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure import load_source, source_closure


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Any]:
    """Writes files of the user and imports them."""
    path, modules = list(sys.path), set(sys.modules)

    def make(text: str, name: str | None = None) -> ModuleType:
        return write_module(tmp_path, text, name)

    yield make
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_only_what_is_needed_is_taken_along(write: Any) -> None:
    module = write("""
        import os
        import math
        UNUSED = os.environ.get("HOME")
        FACTOR = 3
        print("imported")
        def other(x): return x
        def helper(x): return math.floor(x) * FACTOR
        def f(x): return helper(x) + 1
        if __name__ == "__main__":
            raise SystemExit
    """)
    closure = source_closure([module.f])
    assert closure.names == ("f",)
    for absent in ("UNUSED", "import os", "print", "other", "__main__"):
        assert absent not in closure.text
    (f,) = taken_along(module.f)
    assert f(2.5) == module.f(2.5) == 7


def test_installed_packages_are_imported(write: Any) -> None:
    module = write("""
        import numpy as np
        import torch.nn.functional as F
        from torch import nn
        class Net(nn.Module):
            def forward(self, x): return F.relu(x) + np.float32(1)
        relu = F.relu
        def f(x): return Net()(relu(x))
    """)
    closure = source_closure([module.f])
    assert "import numpy as np\n" in closure.text
    assert "def relu" not in closure.text
    (f,) = taken_along(module.f)
    assert torch.equal(f(torch.tensor([-1.0])), torch.tensor([1.0]))


def test_a_global_has_the_value_that_it_has_now(write: Any) -> None:
    module = write("""
        TABLE = []
        for i in range(3):
            TABLE.append(i * i)
        COUNT = 0
        SMALL = {"a": 1}  # a comment that stays
        def f():
            global COUNT
            COUNT += 1
            return COUNT, TABLE, SMALL
    """)
    module.COUNT = 41
    closure = source_closure([module.f])
    assert "for i in" not in closure.text
    (f,) = taken_along(module.f)
    assert f() == (42, [0, 1, 4], {"a": 1})
    assert module.COUNT == 41


def test_what_a_value_holds_twice_stays_one_object(write: Any) -> None:
    module = write("""
        import torch
        class Holder:
            def __init__(self, **held): vars(self).update(held)
        inner, small, pair = [1], torch.ones(2), (128, 128)
        STATE = {"a": inner, "deep": [{"again": inner, "t": small}], "t": small, "p": pair, "q": pair}
        HOLDER = Holder(size=pair, block=pair, first=inner, other=Holder(state=STATE, last=inner))
        def f(): return STATE, HOLDER
    """)
    (f,) = taken_along(module.f)
    state, holder = f()
    assert state["a"] is state["deep"][0]["again"] is holder.first is holder.other.last
    assert state["t"] is state["deep"][0]["t"]
    assert holder.other.state is state
    assert (state["p"], state["q"], holder.size, holder.block) == ((128, 128),) * 4
    (again,) = taken_along(f)
    assert again()[1].other.state["a"] is again()[1].first


def test_two_modules_with_the_same_names_stay_apart(write: Any) -> None:
    write(
        "SCALE = 10\ndef scaled(x): return x * SCALE\ndef bump():\n    global SCALE\n    SCALE += 1",
        "other_part",
    )
    module = write("""
        import other_part
        from other_part import scaled as other_scaled, bump
        SCALE = 2
        def scaled(x): return x * SCALE
        def f(x):
            bump()
            return scaled(x), other_scaled(x), other_part.scaled(x), other_part.SCALE
    """)
    (f,) = taken_along(module.f)
    assert f(1) == (2, 11, 11, 11)


def test_functions_share_the_variables_that_they_change(write: Any) -> None:
    module = write("""
        def make(start):
            total = start
            def add(n):
                nonlocal total
                total += n
            def read(): return total
            return add, read
        add, read = make(5)
    """)
    module.add(1)
    add, read = taken_along(module.add, module.read)
    add(10)
    assert read() == 16
    assert module.read() == 6


def test_a_local_class_and_a_function_attribute_hold_the_same_dictionary(write: Any) -> None:
    module = write("""
        def make():
            state = {"n": 0}
            class Helper:
                def touch(self, x):
                    state["n"] += 1
                    return x + 1
            def f(x): return Helper().touch(x)
            f.state = state
            return f
    """)
    (f,) = taken_along(module.make())
    assert f(1) == 2
    assert f.state == {"n": 1}


def test_a_local_class_brings_its_local_base(write: Any) -> None:
    module = write("""
        def make(k):
            class Base:
                def get(self): return k
            class Child(Base):
                def get(self): return super().get() + 1
            return Child
        Child = make(3)
    """)
    (child,) = taken_along(module.Child)
    assert child().get() == 4


def test_local_functions_may_call_themselves_and_each_other(write: Any) -> None:
    module = write("""
        def make(limit):
            def even(n): return True if n == 0 else odd(n - 1)
            def odd(n): return False if n == 0 else even(n - 1)
            def fact(n): return 1 if n < limit else n * fact(n - 1)
            return even, fact
        even, fact = make(2)
    """)
    even, fact = taken_along(module.even, module.fact)
    assert (even(10), even(7), fact(5)) == (True, False, 120)


def test_defaults_are_those_that_the_function_has(write: Any) -> None:
    module = write("""
        def make(n):
            def f(a, b=n * 2, *, c=[n], d="plain"): return a, b, c, d
            return f
        f = make(4)
        def g(x, seen=[]):
            seen.append(x)
            return seen
        g(1)
    """)
    f, g = taken_along(module.f, module.g)
    assert f(0) == (0, 8, [4], "plain")
    assert g(2) == [1, 2]
    assert module.g(3) == [1, 3]


def test_lambdas_on_one_line_are_told_apart(write: Any) -> None:
    module = write("first, second = (lambda x: x + 1), (lambda x: x + 2)")
    first, second = taken_along(module.first, module.second)
    assert (first(0), second(0)) == (1, 2)


def test_decorators_run_again_where_they_make_the_function_what_it_is(write: Any) -> None:
    module = write("""
        import functools
        def twice(fn):
            @functools.wraps(fn)
            def wrapper(x): return fn(fn(x))
            return wrapper
        def counted(fn):
            calls = 0
            @functools.wraps(fn)
            def wrapper(x):
                nonlocal calls
                calls += 1
                return calls, fn(x)
            return wrapper
        @twice
        def f(x): return x * 3
        @counted
        def g(x): return x
        @functools.lru_cache
        def h(x): return -x
    """)
    module.g(0)
    f, g, h = taken_along(module.f, module.g, module.h)
    assert f(1) == 9
    assert g(7) == (2, 7)
    assert g.__name__ == "g"
    assert h(1) == -1


def test_a_function_that_a_package_makes_of_one_of_the_users_is_made_again(write: Any) -> None:
    module = write("""
        import torch
        def g(x): return (x * x).sum()
        f = torch.func.jacfwd(g)
    """)
    (f,) = taken_along(module.f)
    assert f(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


def test_a_function_that_no_statement_makes_is_an_error_in_words(write: Any) -> None:
    module = write("""
        import torch
        def g(x): return (x * x).sum()
        f, h = [torch.func.jacfwd(g), torch.func.jacrev(g)]
    """)
    with pytest.raises(CannotSerialise, match="need one another"):
        source_closure([module.f])


def test_a_decorator_of_a_package_runs_again(write: Any) -> None:
    module = write("""
        import torch
        @torch.no_grad()
        def h(x): return x * 2
    """)
    (h,) = taken_along(module.h)
    assert not h(torch.ones(1, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "@torch.no_grad()\n    def f(x): return x * n",
            r"f is a builtins.function that no global name leads to",
        ),
        (
            "@functools.lru_cache\n    def f(x): return x + n",
            r"f is a functools._lru_cache_wrapper that no glob",
        ),
        (
            "@again\n    def f(x): return f(x - 1) + n",
            r"f means different things .*a decorated function that",
        ),
        ("def f(x): return x + n\n    del n", r"f reads the variable n, which is not bound now"),
    ],
)
def test_local_functions_that_cannot_be_made_again_are_refused(write: Any, body: str, reason: str) -> None:
    module = write(
        f"""
import functools
import torch
def again(fn):
    def wrapper(x): return fn(x)
    return wrapper
def make(n):
    {body}
    return f
f = make(3)
"""
    )
    with pytest.raises(CannotSerialise, match=reason) as refused:
        source_closure([module.f])
    assert "top level" in str(refused.value)


def test_packages_of_the_user_are_followed(write: Any, tmp_path: Path) -> None:
    (tmp_path / "user_package").mkdir()
    (tmp_path / "user_package" / "__init__.py").write_text("from .part import *\nVERSION = 3\n")
    (tmp_path / "user_package" / "part.py").write_text(
        "from . import deep\ndef part(x): return deep.low(x)\n"
    )
    (tmp_path / "user_package" / "deep.py").write_text("import math\ndef low(x): return math.floor(x)\n")
    module = write("""
        import user_package.deep
        from user_package import part
        def f(x): return part(x), user_package.deep.low(x), user_package.VERSION, user_package.deep.math.pi
    """)
    closure = source_closure([module.f])
    assert "user_package" not in closure.text
    (f,) = taken_along(module.f)
    assert f(2.5) == module.f(2.5)


def test_classes_come_with_bases_decorators_and_changed_attributes(write: Any) -> None:
    module = write("""
        from dataclasses import dataclass
        from enum import Enum
        class Colour(Enum):
            RED = 1
        class Base:
            k = 1
            def get(self): return self.k
        class Child(Base):
            limit = 2
            def get(self): return super().get() + self.limit
        @dataclass
        class Config:
            n: int
            colour: Colour = Colour.RED
        CONFIG = Config(3)
        Child.limit = 5
        def f(): return Child().get(), CONFIG.n, CONFIG.colour is Colour.RED
    """)
    f, child = taken_along(module.f, module.Child)
    assert f() == (6, 3, True)
    assert child().get() == 6


def test_postponed_annotations_need_nothing(write: Any) -> None:
    module = write("""
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from nowhere import Thing
        def f(x: Thing, *, y: "Thing" = None) -> Thing:
            z: Thing = x
            return z
    """)
    (f,) = taken_along(module.f)
    assert f(1) == 1
    assert inspect.signature(f).parameters["x"].annotation == "Thing"


def test_lines_inside_strings_keep_their_indentation(write: Any) -> None:
    module = write('''
        def make():
            def f():
                return """one
              two
                        three"""
            return f
        f = make()
    ''')
    (f,) = taken_along(module.f)
    assert f() == module.f()


def test_names_over_several_lines_are_replaced_without_moving_the_strings_below(write: Any) -> None:
    write("def scaled(x): return x * 10", "part_over_lines")
    module = write('''
        import part_over_lines
        def make(limit):
            def f(x, bound=[
                limit,
            ]):
                first = part_over_lines. \\
                    scaled(x)
                second = (part_over_lines
                    .scaled)(x)
                return first + second + bound[0], """one
              two"""
            return f
        f = make(3)
    ''')
    (f,) = taken_along(module.f)
    number, text = f(1)
    assert (number, text) == module.f(1)
    assert number == 23


def test_a_decorated_kernel_brings_its_helpers_and_constants(write: Any) -> None:
    write(
        """
        class Kernel:
            def __init__(self, fn, configs=()):
                self.fn, self.configs = fn, configs
            def __getitem__(self, grid): return lambda *args: self.fn(*args)
        def jit(fn): return Kernel(fn)
        def autotune(configs): return lambda kernel: Kernel(kernel, configs)
        class constexpr(int): pass
        """,
        "fake_jit",
    )
    module = write("""
        import fake_jit
        from fake_jit import constexpr
        BLOCK = constexpr(8)
        SIZES: tuple = (4, BLOCK)
        @fake_jit.jit
        def helper(x): return x * BLOCK
        @fake_jit.autotune([1, 2])
        @fake_jit.jit
        def kernel(x): return helper.fn(x) + SIZES[1]
        def launch(x): return kernel.fn[(1,)](x)
    """)
    kernel, inner, launch = taken_along(module.kernel, module.kernel.fn, module.launch)
    assert kernel.configs == [1, 2]
    assert kernel.fn is inner
    assert launch(1) == 16
    assert "kernel(x)" in inspect.getsource(inner.fn)


def test_a_module_is_rebuilt_from_its_parts_without_its_constructor(write: Any) -> None:
    module = write("""
        import torch
        from torch import nn
        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.linear = nn.Linear(width, width)
                self.activation = torch.relu
                self.calls = 0
                self.register_buffer("scale", torch.full((width,), 2.0), persistent=False)
                self.register_parameter("missing", None)
            def forward(self, x):
                self.calls += 1
                return self.activation(self.linear(x)) * self.scale
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                raise_if_again()
                self.blocks = nn.ModuleList([Block(3), Block(3)])
                self.blocks[1].linear.weight = self.blocks[0].linear.weight
                self.hidden = [self.blocks[0]]
                self.step = self.forward
            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                return x
        made = []
        def raise_if_again():
            if made: raise RuntimeError("built a second time")
            made.append(1)
        net = Net().eval()
        net(torch.ones(3))
    """)
    closure = source_closure([module.net])
    (net,) = taken_along(module.net)
    x = torch.randn(2, 3)
    assert torch.equal(net(x), module.net(x))
    assert net.blocks[0].linear.weight is net.blocks[1].linear.weight
    assert net.hidden[0] is net.blocks[0]
    assert net.step.__self__ is net
    assert net.blocks[1].calls == 2
    assert not net.training
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in module.net.named_parameters()]
    assert list(net.state_dict()) == list(module.net.state_dict())
    assert closure.notes == ()


def test_hooks_and_what_is_no_data_are_named_in_notes(write: Any) -> None:
    module = write("""
        import threading, torch
        net = torch.nn.Linear(2, 2)
        net.lock = threading.Lock()
        net.register_forward_hook(lambda *args: None)
    """)
    notes = " ".join(source_closure([module.net]).notes)
    assert "_forward_hooks" in notes
    assert "lock" in notes


def test_large_tensors_are_kept_beside_the_text(write: Any) -> None:
    module = write("""
        import torch
        SMALL = torch.tensor([0.1, 2.0])
        LARGE = torch.randn(100, 100)
        VIEW = LARGE[0]
        def f(): return SMALL, LARGE, VIEW
    """)
    closure = source_closure([module.f])
    assert set(closure.tensors) == {f"{module.__name__}_LARGE", f"{module.__name__}_VIEW"}
    (f,) = taken_along(module.f)
    assert all(torch.equal(kept, given) for kept, given in zip(f(), module.f(), strict=True))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import threading\nx = [threading.Lock()]\nx.append(1)\ndef f(): return x", "x"),
        ("exec('def f(): return 1')", "f"),
        ("import sys\nme = sys.modules[__name__]\ndef f(): return me", "module"),
    ],
)
def test_what_cannot_be_kept_is_named(write: Any, text: str, named: str) -> None:
    module = write(text)
    with pytest.raises(CannotSerialise, match=named):
        source_closure([module.f])


def test_the_loaded_module_is_one_and_shows_its_source(write: Any) -> None:
    module = write("def f(x):\n    return 1 / x")
    text = source_closure([module.f]).text
    loaded = load_source(text)
    assert load_source(text) is loaded
    assert sys.modules[loaded.__name__] is loaded
    assert "return 1 / x" in inspect.getsource(loaded.f)
    with pytest.raises(ZeroDivisionError) as raised:
        loaded.f(0)
    assert str(raised.traceback[-1].statement).strip() == "return 1 / x"


def test_a_closure_of_a_closure_is_the_same(write: Any) -> None:
    module = write("""
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        def make(state):
            def f(x):
                state.append(1)
                return model(x)
            return f
        f = make([])
    """)
    first = source_closure([module.f])
    again = source_closure([getattr(load_source(first.text, first.tensors), first.names[0])])
    third = source_closure([getattr(load_source(again.text, again.tensors), again.names[0])])
    assert again.text == third.text
    assert again.names == first.names


def test_the_text_of_a_script_stands_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from torchrepro.user_code.closure import source_closure\n"
        "N = 4\n"
        "def g(x): return x + N\n"
        "def f(x): return g(x)\n"
        "print(source_closure([f]).text)\n"
    )
    text = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert load_source(text).f(1) == 5


def test_a_namespace_of_operators_is_named_and_not_taken_apart(tmp_path: Path) -> None:
    user = write_module(
        tmp_path,
        """
        import torch

        aten = torch.ops.aten
        held = [aten]

        def is_tanh(target):
            return target is aten.tanh.default or target is held[0].tan.default
        """,
    )
    closure = source_closure([user.is_tanh])
    assert "target is torch.ops.aten.tanh.default" in closure.text
    (again,) = taken_along(user.is_tanh)
    assert again(torch.ops.aten.tanh.default)
    assert again(torch.ops.aten.tan.default)
    assert not again(torch.ops.aten.sin.default)
