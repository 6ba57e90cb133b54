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
    from torchrepro.engine.compare_model import compare_model as compare_model
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

_NAMES = {
    "nouns.repro": ("Repro", "Place", "Compiler", "Ambient", "ModelRequest"),
    "nouns.verdict": ("Verdict", "Kind", "Stage", "Signature", "Comparison"),
    "nouns.errors": ("AccuracyError", "TorchReproError"),
    "judge.compare": ("same", "reduce_to_scalar_loss"),
    "judge.models": ("same_two_models",),
    "judge.execute": ("run_fwd_maybe_bwd",),
    "execute.judge_repro": ("repro_run", "repro_common"),
    "engine.check_bundle": ("check_bundle",),
    "engine.compare_model": ("compare_model",),
    "pipeline": ("minify_bundle", "locate_bundle", "report_on"),
    "minify.run_directory": ("MinifySettings",),
    "nouns.results": ("Minified", "Located"),
    "locate.settings": ("LocateSettings",),
    "report.formats": ("rendered", "Format"),
    "report.contents": ("Contents",),
    "catch.torch_hooks": ("enable", "watch"),
    "catch.session": ("disable",),
    "catch.backend": (
        "backend",
        "wrap_compiler_debug",
        "save_graph_repro",
        "dump_compiler_graph_state",
        "dump_to_minify",
    ),
    "catch.save_repro": ("save_repro",),
    "catch.settings": ("WatchSettings",),
    "catch.hook": ("deferred_for_real_inputs",),
    "second_opinion.api": ("trace",),
    "second_opinion.explain_call": ("explain_capture",),
    "second_opinion.explanation": ("CaptureExplanation",),
    "frontend.runtime.capture": ("CaptureError",),
    "bundle.load": ("load_bundle",),
    "script.save_bundle": ("save_bundle",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchrepro' has no attribute {name!r}")
    return getattr(import_module(f"torchrepro.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
