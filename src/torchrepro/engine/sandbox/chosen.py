"""Decide how a bundle is run: as the user's own, or confined; and with what. Needs no torch."""

from __future__ import annotations

import importlib.util
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from torchrepro.bundle.manifest import Manifest, devices_of
from torchrepro.bundle.provenance import Standing, config_directory
from torchrepro.engine.processes.fresh_process import compiler_environment, run_isolated
from torchrepro.engine.processes.limits import usable_cores, usable_memory
from torchrepro.engine.sandbox.confinement import INSIDE, PLAIN_DEVICES, Confinement, Kind, Limits
from torchrepro.engine.search.run_directory import seed_here
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import AOT_INDUCTOR, telling_environment

CHOICE = "TORCHREPRO_SANDBOX"
"""Environment variable that forces a kind of sandbox: namespaces, landlock or bubblewrap."""
MORE_PATHS, MORE_NAMES = "TORCHREPRO_SANDBOX_READ", "TORCHREPRO_SANDBOX_ENV"
"""Environment variables of the user: more paths to read (as in PATH), more variables to pass (by comma)."""
_MODULE = "torchrepro.engine.sandbox.supervise"
_BUBBLEWRAP = "bwrap"
_PASSED = (
    *("PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "TERM", "COLUMNS"),
    *("PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"),
)
_PASSED_PREFIXES = ("LC_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "NUMEXPR_", "CUDA_", "NVIDIA_")
"""Variables of the user's environment that a confined process has; any other may hold a secret."""
_ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "passwd", "group", "nsswitch.conf"),
    *("localtime", "os-release", "ssl/openssl.cnf", "locale.alias", "locale.conf"),
)
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *(f"/etc/{name}" for name in _ETC),
    *("/sys/devices/system", "/sys/fs/cgroup"),
)
_PACKAGES = ("torch", "torchrepro", "triton", "numpy", "msgspec")
_ACCELERATORS = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*", "/dev/kfd", "/dev/dxg")
_DRIVERS = ("/sys", "/proc/driver/nvidia", "/opt/rocm", "/usr/local/cuda", "/run/nvidia-persistenced")

CACHE = "inductor"
"""The compiler's cache in the scratch directory of a job that judges a bundle itself."""
USES_SEED = ("inductor", AOT_INDUCTOR)
_SEED_SECONDS = 180.0
_MEMORY_SHARE = 0.8
_DISK = 32 << 30
_FILES = 4096
_PROCESSES, _PROCESSES_PER_CORE = 512, 64
_LONGEST = 12 * 3600
"""Processor seconds of a process of a search, which has no time limit of its own."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a confined process may use; `command` starts one."""

    kind: Kind
    scratch: Path
    """The only directory that it may write to, removed afterwards."""
    readable: tuple[str, ...]
    devices: tuple[str, ...]
    limits: Limits
    leaf: bool = True
    """It runs one job itself, and starts no other process that it would have to kill."""

    def command(self, command: Sequence[str], *, reports: int, passed: tuple[int, ...] = ()) -> list[str]:
        """Return the command that starts `command` confined; it has the pipe for reports, and `passed`."""
        confinement = Confinement(
            kind=self.kind,
            command=tuple(command),
            scratch=str(self.scratch),
            home=str(self.home),
            readable=self.readable,
            writable=(str(self.scratch),),
            devices=self.devices,
            limits=self.limits,
            reports=reports,
            passed=(reports, *passed),
            parent=0 if self.kind is Kind.BUBBLEWRAP else os.getpid(),
            leaf=self.leaf,
        )
        supervised = [sys.executable, "-P", "-m", _MODULE, confinement.to_json()]
        return [*self._bubblewrap(), *supervised] if self.kind is Kind.BUBBLEWRAP else supervised

    def environment(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of a confined process: of the user's only what is known."""
        wanted = {name.strip() for name in os.environ.get(MORE_NAMES, "").split(",")}
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _PASSED or name in wanted or name.startswith(_PASSED_PREFIXES)
        }
        found = {**telling_environment(), **kept, **chosen, **self._own_directories(), INSIDE: "1"}
        cache = found.get("TORCHINDUCTOR_CACHE_DIR", "")
        if not Path(cache).is_relative_to(self.scratch):
            found["TORCHINDUCTOR_CACHE_DIR"] = str(self.scratch / CACHE)
        return found

    def signalled(self, pid: int) -> int:
        """Return where `os.kill` reaches the supervisor; behind bubblewrap it is in the group of that."""
        return -pid if self.kind is Kind.BUBBLEWRAP else pid

    @property
    def home(self) -> Path:
        return self.scratch / "home"

    def _own_directories(self) -> dict[str, str]:
        home = str(self.home)
        return {
            "HOME": home,
            "TMPDIR": str(self.scratch / "tmp"),
            "XDG_CACHE_HOME": f"{home}/.cache",
            "XDG_CONFIG_HOME": f"{home}/.config",
            "TORCHREPRO_CACHE_DIR": f"{home}/.cache/torchrepro",
            "TORCHREPRO_CONFIG_DIR": f"{home}/.config/torchrepro",
            "TRITON_CACHE_DIR": f"{home}/.cache/triton",
        }

    def _bubblewrap(self) -> list[str]:
        words = [_BUBBLEWRAP, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--proc", "/proc"]
        words += ["--dev", "/dev"]
        for path in sorted(self.readable, key=len):
            words += ["--ro-bind-try", path, path]
        for path in self.devices:
            words += ["--dev-bind-try", path, path]
        return [*words, "--bind", str(self.scratch), str(self.scratch), "--"]


@contextmanager
def sandbox_for(
    bundle: Path,
    manifest: Manifest,
    standing: Standing,
    *,
    seed: Path | None = None,
    time_limit: float = math.inf,
    scratch: Path | None = None,
    oracle: str = "",
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Iterator[Sandbox | None]:
    """Yield the sandbox in which a bundle has to be run; None for the user's own and for what is trusted.

    `scratch` is the directory of a search; without it a job judges the bundle itself, in a temporary one.
    Both are removed afterwards. `seed` is a warm cache of the compiler (default: that of
    this installation), made first if it is missing.
    `oracle` is a command of the user, which may read its files. Raise where no sandbox is possible.
    """
    if standing.own or standing.trusted or os.environ.get(INSIDE) == "1":
        yield None
        return
    kind, owner = _kind(), os.getpid()
    seed = seed_here() if seed is None else seed
    own = (scratch or Path(tempfile.mkdtemp(prefix="torchrepro-sandbox-"))).resolve()
    try:
        for name in ("home", "tmp"):
            (own / name).mkdir(parents=True, exist_ok=True)
        wanted = devices_of(manifest)
        if manifest.compiler.name in USES_SEED and not seed.exists():
            on_phase("warm")
            make_seed(seed)
        if scratch is None and seed.is_dir():
            shutil.copytree(seed, own / CACHE)
        yield Sandbox(
            kind=kind,
            scratch=own,
            readable=(
                *_readable(bundle, oracle, on_device=bool(wanted)),
                *_linked_headers(own / "tmp"),
                *((str(seed.resolve()),) if seed.is_dir() else ()),
            ),
            devices=(*PLAIN_DEVICES, *(_accelerators() if wanted else ())),
            limits=_limits(time_limit),
            leaf=scratch is None,
        )
    finally:
        if os.getpid() == owner:  # as in `owned_directory`
            remove(own)


def make_seed(seed: Path) -> None:
    """Compile something of our own outside of any sandbox, and keep what that leaves in the compiler's cache.

    A confined compiler starts from a copy of it: its own cache is removed with the sandbox, and an empty one
    costs 15 s (`engine/search/setup.py`).
    """
    with tempfile.TemporaryDirectory(prefix="torchrepro-seed-") as cache:
        run_isolated(
            "torchrepro.engine.search.setup:fill_seed",
            {"cache": cache, "seed": str(seed)},
            time_limit=_SEED_SECONDS,
            environ={**compiler_environment(), "TORCHINDUCTOR_CACHE_DIR": cache},
        )


def remove(directory: Path) -> None:
    """Remove a directory, also one in which a stranger's process has made unreadable directories."""

    def again(function: Callable[..., Any], path: str, raised: object) -> None:
        with suppress(OSError):
            _make_accessible(os.path.dirname(path))
            if os.path.isdir(path) and not os.path.islink(path):
                _make_accessible(path)
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    if directory.exists():
        shutil.rmtree(directory, onerror=again)


def _make_accessible(path: str) -> None:
    """Let the owner of a directory read and write it; never through a link."""
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)
    finally:
        os.close(place)


def probed() -> str:
    """Return which sandbox this machine has, in words, by trying one; or why there is none."""
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="torchrepro-sandbox-") as directory:
        try:
            own = Path(directory).resolve()
            for name in ("home", "tmp"):
                (own / name).mkdir()
            sandbox = Sandbox(_kind(), own, _readable(own, ""), PLAIN_DEVICES, _limits(30.0))
            outcome = run_isolated(
                "torchrepro.engine.sandbox.chosen:answer",
                {},
                time_limit=30.0,
                sandbox=sandbox,
                on_message=lambda message: found.extend(filter(None, [message.get("sandbox")])),
            )
        except TorchReproError as exc:
            return f"none: {exc.fact}"
    if outcome.result is True and found:
        return found[0]
    return f"none: {outcome.death}"


def answer(payload: object, phase: object) -> bool:
    """Do nothing, in a sandbox: that it can be started is the answer."""
    return True


def _linked_headers(temporary: Path) -> tuple[str, ...]:
    """Link inductor's precompiled headers into a sandbox, and return their directory, to be read.

    g++ reads them, and they have hundreds of megabytes; what a confined compiler adds is its own.
    """
    headers = _headers_directory(Path(tempfile.gettempdir()))
    if not headers.is_dir() or headers.is_symlink() or headers.stat().st_uid != os.getuid():
        return ()
    linked = _headers_directory(temporary)
    linked.mkdir(parents=True, exist_ok=True)
    for path in headers.iterdir():
        if path.suffix in (".h", ".gch"):
            (linked / path.name).symlink_to(path.resolve())
    return (str(headers.resolve()),)


def _headers_directory(temporary: Path) -> Path:
    """Return where inductor keeps precompiled headers (`default_cache_dir`, torch 2.11 to 2.15)."""
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    return temporary / f"torchinductor_{user}" / "precompiled_headers"


def _kind() -> Kind:
    """Return the kind of sandbox: as chosen, bubblewrap where installed, else what the kernel offers."""
    if sys.platform != "linux":
        raise _refusal(f"on {sys.platform} torchrepro has none")
    has_bubblewrap = shutil.which(_BUBBLEWRAP) is not None
    chosen = os.environ.get(CHOICE, "")
    if not chosen:
        return Kind.BUBBLEWRAP if has_bubblewrap else Kind.AUTO
    if chosen not in {kind.value for kind in Kind}:
        words = ", ".join(kind.value for kind in Kind)
        raise TorchReproError(
            f"{CHOICE} is {chosen!r}, which is no kind of sandbox", next_step=f"choose one of {words}"
        )
    if Kind(chosen) is Kind.BUBBLEWRAP and not has_bubblewrap:
        raise _refusal(f"{CHOICE} is {chosen}, and {_BUBBLEWRAP} is not installed")
    return Kind(chosen)


def _refusal(why: str) -> TorchReproError:
    return TorchReproError(
        f"this bundle is not yours, and no sandbox is possible here ({why})",
        next_step="--trust bundle would run it without one: with your files, network and all your rights",
    )


def _limits(time_limit: float) -> Limits:
    cores = usable_cores()
    return Limits(
        memory=int(usable_memory() * _MEMORY_SHARE),
        disk=_DISK,
        files=_FILES,
        processes=_PROCESSES + _PROCESSES_PER_CORE * cores,
        cpu_seconds=int(min(_LONGEST, (time_limit + 60) * cores)),
    )


def _readable(bundle: Path, oracle: str, *, on_device: bool = False) -> tuple[str, ...]:
    """Return what a confined process may read: the system, Python, torch, the compiler, and the bundle."""
    if not _is_narrow(bundle):
        raise TorchReproError(
            f"{bundle} is not yours, and your home directory or your key is in it",
            next_step="put the bundle into a directory of its own: all of that can be read in the sandbox",
        )
    own = {path for path in (*_SYSTEM, *(_DRIVERS if on_device else ())) if os.path.exists(path)}
    own |= {str(Path(path).absolute()) for path in _of_python() if _is_narrow(Path(path))}
    own |= {os.path.abspath(path) for path in os.environ.get(MORE_PATHS, "").split(os.pathsep) if path}
    own |= _of_compilers()
    own |= {str(path) for path in _of_oracle(oracle) if _is_narrow(path)}
    return tuple(sorted({*own, str(bundle.resolve())}))


def _of_python() -> Iterator[str]:
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    # `python -m` puts the working directory there, which confined interpreters do not search (-P).
    yield from (path for path in sys.path if os.path.isabs(path) and path != os.getcwd())
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    for name in _PACKAGES:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
            yield from (spec.submodule_search_locations or ()) if spec is not None else ()


def _of_compilers() -> set[str]:
    """Return the directories of the user's own C++ compiler, where it is not of the system."""
    found = set()
    for name in (os.environ.get("CXX", ""), os.environ.get("CC", ""), "g++", "clang++", "ptxas"):
        path = shutil.which(name.split()[0]) if name.strip() else None
        if path is not None:
            place = Path(path).resolve().parent
            found.add(str(place.parent if place.name == "bin" and _is_narrow(place.parent) else place))
    return found


def _of_oracle(oracle: str) -> Iterator[Path]:
    """Yield the files in a command of the user, and the working directory."""
    if not oracle:
        return
    yield Path.cwd()
    with suppress(ValueError):  # quotes that are not closed: the shell will say so
        for word in shlex.split(oracle):
            found = shutil.which(word) or word
            if os.path.exists(found):
                yield Path(found).absolute()


def _is_narrow(path: Path) -> bool:
    """Return whether neither the home directory nor the user's key is in a directory."""
    path = path.resolve()
    kept = (Path.home().resolve(), config_directory().resolve())
    return not any(place.is_relative_to(path) for place in kept)


def _accelerators() -> tuple[str, ...]:
    found = (path for pattern in _ACCELERATORS for path in sorted(glob(pattern)))
    return tuple(path for path in found if not os.path.isdir(path))
