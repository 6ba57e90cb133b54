"""torchrepro: from "my compiled model is broken" to a small, verified reproduction and a verdict.

The public API, a page. Names are loaded when they are first used: importing torchrepro does not import torch.
`torchrepro.minify`, `.locate` and `.report` are packages, so the functions have an object to their verb:
`minify_bundle`, `locate_bundle`, `report_on`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torchrepro.ambient import Ambient as Ambient
    from torchrepro.bundle.load import load_bundle as load_bundle
    from torchrepro.bundle.save import save_bundle as save_bundle
    from torchrepro.capture.backend import backend as backend
    from torchrepro.capture.hook import deferred_for_real_inputs as deferred_for_real_inputs
    from torchrepro.capture.on_demand import save_repro as save_repro
    from torchrepro.capture.settings import WatchSettings as WatchSettings
    from torchrepro.capture.watching import disable as disable
    from torchrepro.capture.watching import enable as enable
    from torchrepro.capture.watching import watch as watch
    from torchrepro.capture.wrapping import dump_compiler_graph_state as dump_compiler_graph_state
    from torchrepro.capture.wrapping import dump_to_minify as dump_to_minify
    from torchrepro.capture.wrapping import save_graph_repro as save_graph_repro
    from torchrepro.capture.wrapping import wrap_compiler_debug as wrap_compiler_debug
    from torchrepro.comparison import Comparison as Comparison
    from torchrepro.errors import AccuracyError as AccuracyError
    from torchrepro.errors import TorchReproError as TorchReproError
    from torchrepro.flow import check_bundle as check_bundle
    from torchrepro.flow import compare_model as compare_model
    from torchrepro.flow import locate_bundle as locate_bundle
    from torchrepro.flow import minify_bundle as minify_bundle
    from torchrepro.flow import report_on as report_on
    from torchrepro.frontend.api import trace as trace
    from torchrepro.frontend.explain.call import explain_capture as explain_capture
    from torchrepro.frontend.explain.explanation import CaptureExplanation as CaptureExplanation
    from torchrepro.frontend.runtime.capture import CaptureError as CaptureError
    from torchrepro.judge.compare import same as same
    from torchrepro.judge.execute import run_fwd_maybe_bwd as run_fwd_maybe_bwd
    from torchrepro.judge.loss import reduce_to_scalar_loss as reduce_to_scalar_loss
    from torchrepro.judge.models import same_two_models as same_two_models
    from torchrepro.locate.answer import Located as Located
    from torchrepro.locate.settings import LocateSettings as LocateSettings
    from torchrepro.minify.session.result import Minified as Minified
    from torchrepro.minify.session.settings import MinifySettings as MinifySettings
    from torchrepro.report.contents import Contents as Contents
    from torchrepro.report.formats import Format as Format
    from torchrepro.report.formats import rendered as rendered
    from torchrepro.repro import Compiler as Compiler
    from torchrepro.repro import Place as Place
    from torchrepro.repro import Repro as Repro
    from torchrepro.request import ModelRequest as ModelRequest
    from torchrepro.runner.run import repro_common as repro_common
    from torchrepro.runner.run import repro_run as repro_run
    from torchrepro.signature import Signature as Signature
    from torchrepro.verdict import Kind as Kind
    from torchrepro.verdict import Stage as Stage
    from torchrepro.verdict import Verdict as Verdict

_HOMES = {
    # the nouns
    "Repro": "repro",
    "Place": "repro",
    "Compiler": "repro",
    "Ambient": "ambient",
    "Verdict": "verdict",
    "Kind": "verdict",
    "Stage": "verdict",
    "Signature": "signature",
    "Comparison": "comparison",
    "ModelRequest": "request",
    # errors
    "AccuracyError": "errors",
    "TorchReproError": "errors",
    # the judge
    "same": "judge.compare",
    "same_two_models": "judge.models",
    "run_fwd_maybe_bwd": "judge.execute",
    "reduce_to_scalar_loss": "judge.loss",
    # running
    "repro_run": "runner.run",
    "repro_common": "runner.run",
    "check_bundle": "flow",
    "compare_model": "flow",
    # minifying
    "minify_bundle": "flow",
    "MinifySettings": "minify.session.settings",
    "Minified": "minify.session.result",
    # locating
    "locate_bundle": "flow",
    "LocateSettings": "locate.settings",
    "Located": "locate.answer",
    # reporting
    "report_on": "flow",
    "rendered": "report.formats",
    "Format": "report.formats",
    "Contents": "report.contents",
    # catching
    "enable": "capture.watching",
    "disable": "capture.watching",
    "watch": "capture.watching",
    "backend": "capture.backend",
    "save_repro": "capture.on_demand",
    "WatchSettings": "capture.settings",
    "wrap_compiler_debug": "capture.wrapping",
    "save_graph_repro": "capture.wrapping",
    "dump_compiler_graph_state": "capture.wrapping",
    "dump_to_minify": "capture.wrapping",
    "deferred_for_real_inputs": "capture.hook",
    # capturing Python, by the front end of our own
    "trace": "frontend.api",
    "explain_capture": "frontend.explain.call",
    "CaptureExplanation": "frontend.explain.explanation",
    "CaptureError": "frontend.runtime.capture",
    # bundles
    "load_bundle": "bundle.load",
    "save_bundle": "bundle.save",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchrepro' has no attribute {name!r}")
    return getattr(import_module(f"torchrepro.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
