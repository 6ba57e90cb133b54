"""torchrepro: from "my compiled model is broken" to a small, verified reproduction and a verdict.

The public API, a page. Names are loaded when they are first used: importing torchrepro does not import torch.
`torchrepro.minify`, `.locate` and `.report` are packages, so the functions have an object to their verb:
`minify_bundle`, `locate_bundle`, `report_on`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchrepro.nouns import __version__

if TYPE_CHECKING:
    from torchrepro.bundle.load import load_bundle as load_bundle
    from torchrepro.catch.backend import backend as backend
    from torchrepro.catch.backend import dump_compiler_graph_state as dump_compiler_graph_state
    from torchrepro.catch.backend import dump_to_minify as dump_to_minify
    from torchrepro.catch.backend import save_graph_repro as save_graph_repro
    from torchrepro.catch.backend import wrap_compiler_debug as wrap_compiler_debug
    from torchrepro.catch.hook import deferred_for_real_inputs as deferred_for_real_inputs
    from torchrepro.catch.save_repro import save_repro as save_repro
    from torchrepro.catch.session import disable as disable
    from torchrepro.catch.settings import WatchSettings as WatchSettings
    from torchrepro.catch.torch_hooks import enable as enable
    from torchrepro.catch.torch_hooks import watch as watch
    from torchrepro.engine.check_bundle import check_bundle as check_bundle
    from torchrepro.engine.check_bundle import compare_model as compare_model
    from torchrepro.execute.judge_repro import repro_common as repro_common
    from torchrepro.execute.judge_repro import repro_run as repro_run
    from torchrepro.frontend.runtime.capture import CaptureError as CaptureError
    from torchrepro.judge.compare import reduce_to_scalar_loss as reduce_to_scalar_loss
    from torchrepro.judge.compare import same as same
    from torchrepro.judge.execute import run_fwd_maybe_bwd as run_fwd_maybe_bwd
    from torchrepro.judge.models import same_two_models as same_two_models
    from torchrepro.locate.settings import LocateSettings as LocateSettings
    from torchrepro.minify.run_directory import MinifySettings as MinifySettings
    from torchrepro.nouns.errors import AccuracyError as AccuracyError
    from torchrepro.nouns.errors import TorchReproError as TorchReproError
    from torchrepro.nouns.repro import Ambient as Ambient
    from torchrepro.nouns.repro import Compiler as Compiler
    from torchrepro.nouns.repro import ModelRequest as ModelRequest
    from torchrepro.nouns.repro import Place as Place
    from torchrepro.nouns.repro import Repro as Repro
    from torchrepro.nouns.results import Located as Located
    from torchrepro.nouns.results import Minified as Minified
    from torchrepro.nouns.verdict import Comparison as Comparison
    from torchrepro.nouns.verdict import Kind as Kind
    from torchrepro.nouns.verdict import Signature as Signature
    from torchrepro.nouns.verdict import Stage as Stage
    from torchrepro.nouns.verdict import Verdict as Verdict
    from torchrepro.pipeline import locate_bundle as locate_bundle
    from torchrepro.pipeline import minify_bundle as minify_bundle
    from torchrepro.pipeline import report_on as report_on
    from torchrepro.report.contents import Contents as Contents
    from torchrepro.report.formats import Format as Format
    from torchrepro.report.formats import rendered as rendered
    from torchrepro.script.save_bundle import save_bundle as save_bundle
    from torchrepro.second_opinion.api import trace as trace
    from torchrepro.second_opinion.explain_call import explain_capture as explain_capture
    from torchrepro.second_opinion.explanation import CaptureExplanation as CaptureExplanation

_HOMES = {
    # the nouns
    "Repro": "nouns.repro",
    "Place": "nouns.repro",
    "Compiler": "nouns.repro",
    "Ambient": "nouns.repro",
    "Verdict": "nouns.verdict",
    "Kind": "nouns.verdict",
    "Stage": "nouns.verdict",
    "Signature": "nouns.verdict",
    "Comparison": "nouns.verdict",
    "ModelRequest": "nouns.repro",
    # errors
    "AccuracyError": "nouns.errors",
    "TorchReproError": "nouns.errors",
    # the judge
    "same": "judge.compare",
    "same_two_models": "judge.models",
    "run_fwd_maybe_bwd": "judge.execute",
    "reduce_to_scalar_loss": "judge.compare",
    # running
    "repro_run": "execute.judge_repro",
    "repro_common": "execute.judge_repro",
    "check_bundle": "engine.check_bundle",
    "compare_model": "engine.check_bundle",
    # minifying
    "minify_bundle": "pipeline",
    "MinifySettings": "minify.run_directory",
    "Minified": "nouns.results",
    # locating
    "locate_bundle": "pipeline",
    "LocateSettings": "locate.settings",
    "Located": "nouns.results",
    # reporting
    "report_on": "pipeline",
    "rendered": "report.formats",
    "Format": "report.formats",
    "Contents": "report.contents",
    # catching
    "enable": "catch.torch_hooks",
    "disable": "catch.session",
    "watch": "catch.torch_hooks",
    "backend": "catch.backend",
    "save_repro": "catch.save_repro",
    "WatchSettings": "catch.settings",
    "wrap_compiler_debug": "catch.backend",
    "save_graph_repro": "catch.backend",
    "dump_compiler_graph_state": "catch.backend",
    "dump_to_minify": "catch.backend",
    "deferred_for_real_inputs": "catch.hook",
    # capturing Python, by the front end of our own
    "trace": "second_opinion.api",
    "explain_capture": "second_opinion.explain_call",
    "CaptureExplanation": "second_opinion.explanation",
    "CaptureError": "frontend.runtime.capture",
    # bundles
    "load_bundle": "bundle.load",
    "save_bundle": "script.save_bundle",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchrepro' has no attribute {name!r}")
    return getattr(import_module(f"torchrepro.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
