"""Dynamo and the contexts in which it calls a backend."""

from __future__ import annotations

import sys
import threading
from typing import Any

from torchrepro.torch_api.seam import Seam, loading

SEAMS = {
    "list_backends": Seam("torch._dynamo", "names of the registered backends"),
    "lookup_backend": Seam("torch._dynamo", "the function behind the name of a backend"),
    "registered_backends": Seam(
        "torch._dynamo.backends.registry", "functions of backends by name", name="_COMPILER_FNS"
    ),
    "reset": Seam("torch._dynamo", "forget everything that was compiled"),
    "decorators": Seam("torch._dynamo.decorators", "`mark_dynamic` and its siblings", name="."),
    "eval_frame": Seam("torch._dynamo.eval_frame", "the stance of `torch.compiler.set_stance`", name="."),
    "get_eval_frame_callback": Seam("torch._C._dynamo.eval_frame", "whether a frame is being compiled now"),
    "skip_code": Seam("torch._dynamo.eval_frame", "keep a function of ours out of capture"),
    "exc": Seam("torch._dynamo.exc", "exceptions by which Dynamo tells itself to start over", name="."),
    "callback_handler": Seam("torch._dynamo.callback", "follow the start and end of compilations"),
    "CallbackTrigger": Seam("torch._dynamo.callback", "who starts a compilation"),
    "ConstantSource": Seam("torch._dynamo.source", "where guards say that a symbol comes from"),
    "config": Seam("torch._dynamo.config", "whether capture makes symbols of `.item()`", name="."),
    "same": Seam("torch._dynamo.utils", "what torch's own benchmarks call equal"),
    "counters": Seam("torch._dynamo.utils", "how many graphs and graph breaks a call had"),
    "numpy_wrappers": Seam("torch._dynamo.utils", "NumPy calls in captured graphs", name="."),
    "torch_numpy": Seam("torch._numpy", "NumPy's functions on tensors", name="."),
    "TransformGetItemToIndex": Seam(
        "torch._dynamo._trace_wrapped_higher_order_op", "indexing by a tensor inside flex attention"
    ),
    "TensorGuards": Seam("torch._C._dynamo.guards", "check many tensors in one call of C++"),
    "CompileContext": Seam("torch._guards", "the id of the frame that is being compiled"),
    "TracingContext": Seam("torch._guards", "the context in which capture calls a backend"),
    "tracing": Seam("torch._guards", "enter a `TracingContext`"),
    "StopRecomputation": Seam(
        "torch.utils.checkpoint", "ends a recomputation early", name="_StopRecomputationError"
    ),
    "InductorWrapper": Seam(
        "torch", "the object `torch.compile` makes of inductor", name="_TorchCompileInductorWrapper"
    ),
    "BackendWrapper": Seam(
        "torch", "the object `torch.compile` makes of other backends", name="_TorchCompileWrapper"
    ),
}


__getattr__ = loading(__name__, SEAMS)


def is_one_graph() -> bool:
    """Return whether the graph in compilation was captured with `fullgraph=True`.

    Then its symbols allow `.item()` whatever the setting is. Checked on torch 2.11 to 2.15
    (`TracingContext.fake_mode`, `ShapeEnv.allow_scalar_outputs`).
    """
    context = __getattr__("TracingContext").try_get()
    symbols = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    allowed = symbols is not None and symbols.allow_scalar_outputs
    return allowed and not __getattr__("config").capture_scalar_outputs


def renew_locks() -> None:
    """Replace the lock of compilations: in a forked child, a thread that does not exist may hold it.

    Checked on torch 2.13 (`convert_frame.compile_lock`).
    """
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and hasattr(frames, "compile_lock"):
        frames.compile_lock = threading.RLock()
