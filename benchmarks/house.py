"""`make house`: the size and shape of the package, counted; and the files that two commands pass through.

`python -m benchmarks.house --static` counts only, in a second. A file counts as passed through when one of
its functions runs, in the command or in any of its child processes.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "torchrepro"
PRIVATE = ("torch._", "torch.utils._", "torch.fx.experimental", "torch.fx._")
SHORT = 80
"""Lines of a module that its one importer could hold."""

HOOK = '''
"""Append each file of torchrepro to a list when a function of it runs first in this process."""
import os, sys, threading

_out, _root, _seen = os.environ["HOUSE_OUT"], os.environ["HOUSE_ROOT"], set()


def _called(frame, event, argument):
    if event != "call":
        return
    code = frame.f_code
    file = code.co_filename
    if not file.startswith(_root) or code.co_name.startswith("<"):
        return
    mark = "function" if code.co_flags & 1 else "class"  # a class body runs when its file is imported
    if (mark, file) in _seen:
        return
    _seen.add((mark, file))
    descriptor = os.open(_out, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{mark} {file}\\n".encode())
    os.close(descriptor)


sys.setprofile(_called)
threading.setprofile(_called)
'''


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package, parsed."""

    name: str
    path: Path
    lines: int
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def room(self) -> str:
        """The folder right below the package; the file's own name for one that has none."""
        return self.name.split(".")[1] if "." in self.name else self.name


def modules_of(root: Path) -> list[Module]:
    """Every module below a folder of the package, packages included."""
    found = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, text.count("\n"), ast.parse(text)))
    return found


def imports_of(module: Module, known: set[str]) -> set[str]:
    """The modules of the package that a module imports, lazily or not, those for types alone excluded."""
    for_types = {
        id(inner)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in inner}
    return (found & known) - {module.name}


def private_names_of(module: Module) -> set[str]:
    """The private names of torch that a module imports or reads."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
    return {name for name in found if name.startswith(PRIVATE) and not name.startswith("torch.__")}


def cycles_of(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of names that import one another, directly or not (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(edges.get(name, ())):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(edges):
        if name not in order:
            visit(name)
    return found


def deepest_chain(modules: Iterable[Module]) -> tuple[str, ...]:
    """The longest chain of classes that inherit from one another, the base last; bases by their name."""
    bases: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] += [ast.unparse(base).rpartition(".")[2] for base in node.bases]

    def chain(name: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
        inner = [chain(base, (*above, name)) for base in bases[name] if base in bases and base not in above]
        return (name, *max(inner, key=len, default=()))

    return max((chain(name) for name in list(bases)), key=len, default=())


def static_rows() -> Iterator[tuple[str, str]]:
    """What the text of the package says about it."""
    modules = modules_of(PACKAGE)
    known = {module.name for module in modules}
    holding = [module for module in modules if module.path.name != "__init__.py"]
    sizes = sorted(module.lines for module in holding)
    largest = max(holding, key=lambda module: module.lines)
    yield "lines in src/", f"{sum(module.lines for module in modules):,}"
    yield "modules (without __init__)", f"{len(holding)}"
    yield "median, longest", f"{median(sizes):g}, {largest.lines} ({largest.name.partition('.')[2]})"

    edges = {module.name: imports_of(module, known) for module in modules}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, others in edges.items():
        for other in others:
            importers[other].add(name)
    lonely = [
        module
        for module in holding
        if module.lines < SHORT
        and len(importers[module.name]) == 1
        and next(iter(importers[module.name])).rpartition(".")[0] == module.folder
    ]
    yield f"modules below {SHORT} lines with one importer, in the same folder", f"{len(lonely)}"

    private = [m for m in holding if m.room != "torch_api" and private_names_of(m)]
    yield "files with a private name of torch outside torch_api/", f"{len(private)}"
    rooms: dict[str, set[str]] = defaultdict(set)
    room_of = {module.name: module.room for module in modules}
    for name, others in edges.items():
        rooms[room_of[name]] |= {room_of[other] for other in others} - {room_of[name]}
    rooms.pop("torchrepro", None)
    cycles = cycles_of(rooms)
    yield "import cycles between rooms", "; ".join(", ".join(cycle) for cycle in cycles) or "none"

    frontend = [module for module in modules if module.room == "frontend"]
    yield "front end: lines, modules", f"{sum(m.lines for m in frontend):,}, {len(frontend)}"
    chain = deepest_chain(frontend)
    yield "front end: longest chain of base classes", f"{len(chain)} ({' < '.join(chain)})"


def rooms_table() -> Iterator[str]:
    """Lines and modules of each room."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for module in modules_of(PACKAGE):
        lines[module.room] += module.lines
        files[module.room] += module.path.name != "__init__.py"
    for room, count in sorted(lines.items(), key=lambda item: -item[1]):
        yield f"| `{room}` | {count:,} | {files[room]} |"


def files_run_by(arguments: list[str], directory: Path) -> tuple[list[str], int]:
    """Return the files of which a command runs a function, in the order of their first call.

    The number is larger: it counts also those of which only the body of a class runs.
    """
    site = directory / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(HOOK)
    out = directory / "files"
    out.write_text("")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HOUSE_OUT": str(out),
        "HOUSE_ROOT": f"{PACKAGE}{os.sep}",
    }
    subprocess.run(
        [sys.executable, "-m", "torchrepro", *arguments],
        cwd=directory,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    seen = [line.split(" ", 1) for line in out.read_text().splitlines()]
    called = dict.fromkeys(file for mark, file in seen if mark == "function")
    return [str(Path(file).relative_to(PACKAGE)) for file in called], len({file for _, file in seen})


def traced_rows() -> Iterator[tuple[str, str]]:
    """The files that two commands pass through: a check of one op, and the demo from program to script."""
    with tempfile.TemporaryDirectory(prefix="torchrepro-house-") as scratch:
        directory = Path(scratch)
        subprocess.run([sys.executable, "-c", ONE_OP, "bundle"], cwd=directory, check=True)
        program = ROOT / "examples" / "label_images.py"
        commands = {
            "check of a bundle of one op": ["check", "bundle"],
            "run --level 4 --minify of the demo": ["run", "--level", "4", "--minify", str(program)],
        }
        for title, arguments in commands.items():
            files, more = files_run_by(arguments, directory)
            folders = [file.rpartition("/")[0] for file in files]
            changes = sum(one != other for one, other in pairwise(folders))
            yield (
                f"files run by {title}",
                f"{len(files)} ({changes} changes of folder); with class bodies {more}",
            )


def print_walk(arguments: list[str]) -> None:
    """Print the files that a command passes through, a line for each stay in a folder."""
    with tempfile.TemporaryDirectory(prefix="torchrepro-house-") as scratch:
        files, _ = files_run_by(arguments, Path(scratch))
    for folder, stay in groupby(files, key=lambda file: file.rpartition("/")[0]):
        names = " ".join(file.rpartition("/")[2].removesuffix(".py") for file in stay)
        print(f"{folder or '.'}/  {names}")
    print(f"{len(files)} files")


ONE_OP = """
import sys
from itertools import groupby, pairwise
from pathlib import Path
import torch
from torchrepro import Place, Repro, save_bundle


class OneOp(torch.nn.Module):
    def forward(self, x):
        return torch.erf(x)


repro = Repro(torch.fx.symbolic_trace(OneOp()), (torch.linspace(-1, 1, 8),), Place.AFTER_CAPTURE)
save_bundle(repro, Path(sys.argv[1]))
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--static", action="store_true", help="only count, run nothing")
    parser.add_argument("--walk", nargs=argparse.REMAINDER, help="only list the files that a command runs")
    parser.add_argument("--rooms", action="store_true", help="also print lines and modules of each room")
    chosen = parser.parse_args()
    if chosen.walk:
        print_walk(chosen.walk)
        return 0
    print("| | |\n|---|---|")
    for name, value in static_rows():
        print(f"| {name} | {value} |")
    if not chosen.static:
        for name, value in traced_rows():
            print(f"| {name} | {value} |")
    if chosen.rooms:
        print("\n| room | lines | modules |\n|---|---|---|")
        print("\n".join(rooms_table()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
