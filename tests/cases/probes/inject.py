"""Plants one failure, named by $PLANT, into inductor: `../injected/_site` loads it in every process.

Only graphs with a `relu` are affected. What is planted passes the ordinary comparison with eager.
"""

import os
import time

PLANT = os.environ.get("PLANT", "")
_compiled = []


def in_lowering(lowering):
    import torch
    from torch._inductor import config, ir
    from torch._inductor.virtualized import ops

    aten = torch.ops.aten
    relu = lowering.lowerings[aten.relu.default]

    def lowered(op, *args):
        return lowering.lowerings[op](*args)

    def is_wrong(size):
        return {
            "recompile": config.max_fusion_size == 1,
            "recompile again": len(_compiled) > 1,
            "batch": len(size) > 1 and size[0] == 1,
            "threads": torch.get_num_threads() == 3,
        }.get(PLANT, False)

    def wrong_tail(x, size):
        load = x.make_loader()

        def inner(index):
            value = ops.maximum(load(index), ops.constant(0.0, torch.float32))
            tail = ops.ge(ops.index_expr(index[0], torch.int64), ops.constant(16, torch.int64))
            return ops.where(tail, ops.add(value, ops.constant(1.0, torch.float32)), value)

        return ir.Pointwise.create(
            device=x.get_device(), dtype=x.get_dtype(), inner_fn=inner, ranges=list(size)
        )

    def planted(x):
        size = x.get_size()
        _compiled.append(size)
        if is_wrong(size):
            return lowered(aten.abs.default, x)
        if PLANT == "sizes" and any(getattr(each, "free_symbols", None) for each in size):
            return wrong_tail(x, size)
        if PLANT == "slow":
            wasted = x
            for _ in range(40):
                wasted = lowered(aten.tanh.default, wasted)
            return lowered(aten.add.Tensor, relu(x), lowered(aten.mul.Tensor, wasted, 1e-30))
        if PLANT == "fat":
            copies = lowered(aten.repeat.default, x, [8] + [1] * (len(size) - 1))
            copies.realize()
            return relu(lowered(aten.slice.Tensor, copies, 0, 0, size[0]))
        if PLANT == "slow_compile":
            until = time.process_time() + 4
            while time.process_time() < until:
                pass
        return relu(x)

    lowering.lowerings[aten.relu.default] = planted


def in_calls(output_code):
    """Change what compiled graphs return."""
    call = output_code.CompiledFxGraph.__call__

    def planted(self, inputs):
        import torch

        calls = self.__dict__.setdefault("_calls", [])
        results = call(self, inputs)
        calls.append([value.clone() for value in results])
        if PLANT == "repeat" and len(calls) == 3:
            return [value + 1e-6 for value in results]
        if PLANT == "hold":
            return [torch.Tensor.copy_(kept, value) for kept, value in zip(calls[0], results)]
        return results

    output_code.CompiledFxGraph.__call__ = planted


def in_cache(codecache):
    """Change what compiled graphs return that come from the cache."""
    look_up = codecache.FxGraphCache._lookup_graph

    def planted(*args, **kwargs):
        found, info = look_up(*args, **kwargs)
        if found is not None:
            call = found.current_callable
            found.current_callable = lambda inputs: [value + 1 for value in call(inputs)]
        return found, info

    codecache.FxGraphCache._lookup_graph = staticmethod(planted)


PATCHES = {"torch._inductor.lowering": in_lowering}
if PLANT in ("repeat", "hold"):
    PATCHES = {"torch._inductor.output_code": in_calls}
if PLANT == "cache":
    PATCHES = {"torch._inductor.codecache": in_cache}
