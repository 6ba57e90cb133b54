"""The product's flow on one page: from a program that fails to a verdict, a culprit and a minimal script.

    program ── catch ──► bundle ── check ──► Verdict ── locate ──► Located ── minify ──► Minified ── report

Each step that runs a compiler does so in a process of its own, so that a segfault, a hang or a lack of memory
is a verdict and not the end of the tool. Nothing here imports torch: a wrong path is an error at once.
The command line and the Python API call these functions and add only words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from torchrepro.engine.check_bundle import OnPhase, check_bundle, generate_code
from torchrepro.engine.compare_model import compare_model
from torchrepro.engine.processes.fresh_process import compiler_environment, result_in_isolation
from torchrepro.nouns.errors import DoesNotFail, TorchReproError
from torchrepro.nouns.probe import PROBES, Probe, ProbeAnswer
from torchrepro.nouns.repro import Compiler, ModelRequest, telling_environment
from torchrepro.nouns.verdict import Kind

if TYPE_CHECKING:
    from torchrepro.catch.catch_target import CaughtBundle
    from torchrepro.engine.processes.child import OnMessage
    from torchrepro.engine.remote.ray_cluster import RayCluster
    from torchrepro.interchange.export import Exported, Form
    from torchrepro.interchange.import_artefact import Imported
    from torchrepro.locate.settings import LocateSettings
    from torchrepro.minify.run_directory import MinifySettings
    from torchrepro.nouns.results import Located, Minified
    from torchrepro.report.contents import Contents
    from torchrepro.second_opinion.explanation import Explained

__all__ = ["catch", "check_bundle", "compare_model", "explain_model", "locate", "locate_bundle", "minify"]
__all__ += ["cluster_at", "export_bundle", "import_artefacts", "minify_bundle", "probe", "report_on"]
__all__ += ["trace_of"]

# Catch: a program or a function becomes a bundle of what fails in it. `torchrepro run` is catch/launcher.py.


def catch(
    target: str | ModelRequest,
    *,
    out: Path | None,
    default_for: Callable[[Path], Path],
    fresh: bool = False,
    on_phase: OnPhase = lambda phase: None,
) -> CaughtBundle:
    """Return the bundle that a target stands for; run a program, or compare a function, to get one.

    It is kept in the directory `out`, by default the one that `default_for` derives from the target's path.
    The same command later finds it there unless `fresh`.
    """
    from torchrepro.catch.catch_target import catch_target

    request = target if isinstance(target, ModelRequest) else ModelRequest(target)
    return catch_target(request, out=out, default_for=default_for, fresh=fresh, on_phase=on_phase)


def import_artefacts(
    place: Path,
    *,
    out: Path | None = None,
    trusted: tuple[str, ...] = (),
    on_phase: OnPhase = lambda phase: None,
) -> Imported:
    """Make bundles of what PyTorch's own tools have written: a file, a directory or a trace.

    Nothing in it is executed. The bundles are a stranger's unless something is `trusted`.
    """
    from torchrepro.interchange.find_artefacts import find_artefacts

    payloads = find_artefacts(place)  # a wrong path is an error at once, before torch is imported
    from torchrepro.interchange.import_artefact import import_each

    return import_each(payloads, out=out, trusted=trusted, on_phase=on_phase)


# Judge: `check_bundle` a bundle, `compare_model` a user's model; `explain_model` shows how it is captured.


def probe(
    request: ModelRequest,
    kinds: Iterable[Kind] = PROBES,
    *,
    against: Compiler | None = None,
    threshold: float | None = None,
    seconds: float = 60.0,
    save_to: Path | None = None,
    trusted: tuple[str, ...] = (),
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Iterator[ProbeAnswer]:
    """Yield the answers of probes about a bundle or a user's function, as they come.

    `against` and `threshold` are for costs alone. What fails is saved in `save_to` as it is found.
    """
    from torchrepro.catch.target import Target
    from torchrepro.engine.probe_target import probe_target

    named = Target.parse(request.target)
    named.require_fitting(request)
    if named.is_program:
        raise TorchReproError(f"{request.target} is a program", next_step="give a bundle or FILE.py:FUNCTION")
    return probe_target(
        request,
        [Probe.of(kind, seconds=seconds, against=against, threshold=threshold) for kind in kinds],
        is_bundle=named.is_bundle,
        save_to=save_to,
        trusted=trusted,
        time_limit=time_limit,
        on_phase=on_phase,
    )


def explain_model(
    request: ModelRequest,
    *,
    verify: bool = False,
    dynamo: bool = False,
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Explained:
    """Explain how a user's model becomes graphs in torchrepro's front end; run only its forward call.

    `verify` also runs it in plain Python; `dynamo` asks TorchDynamo for a second opinion.
    """
    from torchrepro.second_opinion.explanation import Agreement, CaptureExplanation, Explained

    request = replace(request, environ=telling_environment())
    answer = result_in_isolation(
        "torchrepro.second_opinion.explain_call:explain_model",
        {"request": msgspec.to_builtins(request), "verify": verify, "dynamo": dynamo},
        time_limit=time_limit,
        environ=compiler_environment(),
        on_phase=on_phase,
        unfinished=f"{request.target} could not be explained",
        next_step="raise --time-limit, or try torchrepro compare",
    )
    verified = answer["verified"]
    return Explained(
        CaptureExplanation.from_dict(answer),
        fullgraph=answer["fullgraph"],
        verified=None if verified is None else msgspec.convert(verified, Agreement),
    )


# Locate: the failing stage, the culprit in it, the graph, the op, the kernel, a workaround.


def locate(
    target: str | ModelRequest,
    settings: LocateSettings | None = None,
    *,
    out: Path | None = None,
    fresh: bool = False,
    on_phase: OnPhase = lambda phase: None,
    on_message: OnMessage = lambda message: None,
) -> Located:
    """Locate the failure of a bundle, a program or a function; a request says how the function is run."""
    from torchrepro.nouns.results import Located

    def default_for(path: Path) -> Path:
        return path.absolute().with_name(f"{path.name}.located")

    try:
        caught = catch(target, out=out, default_for=default_for, fresh=fresh, on_phase=on_phase)
        located = locate_bundle(caught.bundle, settings, out=out, fresh=fresh, on_message=on_message)
    except DoesNotFail as healthy:
        named = target.target if isinstance(target, ModelRequest) else target
        return Located(bundle=named, kind=Kind.PASS, notes=(str(healthy),))
    return replace(located, notes=(*caught.notes, *located.notes))


def locate_bundle(
    bundle: Path,
    settings: LocateSettings | None = None,
    *,
    out: Path | None = None,
    fresh: bool = False,
    on_message: OnMessage = lambda message: None,
) -> Located:
    """Return what makes a bundle fail: the stage, the part of it, the graph, the op, the kernel.

    The answer is kept in `located/` in the bundle, and returned again at once unless `fresh`. The first
    Ctrl-C ends the search with what was found so far, the second raises KeyboardInterrupt.
    """
    from torchrepro.locate.settings import locate_search

    return locate_search(bundle, settings, out=out, fresh=fresh).answer(on_message)


# Minify: the smallest repro that fails in the same way, and its script.


def minify(
    target: str | ModelRequest,
    settings: MinifySettings | None = None,
    *,
    out: Path | None = None,
    fresh: bool = False,
    on: str = "",
    on_phase: OnPhase = lambda phase: None,
    on_message: OnMessage = lambda message: None,
) -> Minified:
    """Minify the failure of a bundle, a program or a function; a request says how the function is run.

    Candidates run `on` a cluster, by its address; empty: on this machine.
    """
    from torchrepro.engine.search.run_directory import minified_beside

    with cluster_at(on) as cluster:  # a wrong address is an error at once
        caught = catch(target, out=out, default_for=minified_beside, fresh=fresh, on_phase=on_phase)
        minified = minify_bundle(
            caught.bundle,
            settings,
            out=caught.directory or out,
            fresh=fresh,
            executor=None if cluster is None else cluster.executor_for(caught.bundle),
            on_message=on_message,
        )
    return replace(minified, notes=(*caught.notes, *minified.notes))


def cluster_at(address: str) -> AbstractContextManager[RayCluster | None]:
    """Connect to the cluster at an address; to none if it is empty."""
    if not address:
        return nullcontext()
    from torchrepro.engine.remote.ray_cluster import ray_cluster

    return ray_cluster(address)


def minify_bundle(
    bundle: Path,
    settings: MinifySettings | None = None,
    *,
    out: Path | None = None,
    fresh: bool = False,
    executor: Executor | None = None,
    on_message: OnMessage = lambda message: None,
) -> Minified:
    """Return the smallest repro that fails as the one in the bundle does, with its script.

    An interrupted run continues where it stopped, and a finished one is answered at once; `fresh` starts
    over. The first Ctrl-C ends the search with the best so far, which is verified, the second raises
    KeyboardInterrupt. Candidates run on `executor`, if there is one (`engine/remote/`).
    """
    from torchrepro.minify.run_directory import minify_search

    return minify_search(bundle, settings, out=out, fresh=fresh, executor=executor).answer(on_message)


# Export: a bundle as a file for other tools; nothing is run.


def export_bundle(
    bundle: Path, form: Form, output: Path | None = None, *, trusted: tuple[str, ...] = ()
) -> Exported:
    """Write a bundle, minimal where it was minified, for torch's tools, as a test, or for AOTInductor."""
    from torchrepro.interchange.export import export_bundle

    return export_bundle(bundle, form, output, trusted=trusted)


# Report: what is known of a bundle, for people.


def trace_of(
    bundle: Path,
    *,
    trusted: tuple[str, ...] = (),
    time_limit: float | None = None,
    on_phase: OnPhase = lambda phase: None,
) -> str:
    """Return the generated code of a bundle, minimal where it was minified: an attachment for an issue."""
    from torchrepro.report import trace

    return trace.trace_of(bundle, trusted=trusted, time_limit=time_limit, on_phase=on_phase)


def report_on(
    bundle: Path,
    *,
    run: bool = True,
    against: str = "",
    trusted: tuple[str, ...] = (),
    time_limit: float | None = None,
    on_phase: OnPhase = lambda phase: None,
) -> Contents:
    """Collect what is known of a bundle, of a directory of `minify`, or of the minimal bundle in it.

    Only where values are wrong is it `run`, for the map of their errors. `against` names another environment:
    a bundle, a report in JSON, or `here`. `torchrepro.rendered` makes a page or a text of it.
    """
    from torchrepro.report.collect import collect, measured
    from torchrepro.report.environments import other_place
    from torchrepro.report.run_files import surroundings_of

    surroundings_of(bundle)  # a wrong path is an error at once

    measure = partial(measured, trusted=trusted, time_limit=time_limit, on_phase=on_phase)
    other = other_place(against) if against else None
    generate = partial(generate_code, trusted=trusted, time_limit=time_limit)
    return collect(bundle, measure=measure if run else None, generate=generate if run else None, other=other)
