"""The state around a call: captured, applied, and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchrepro.nouns.repro import Ambient, Autocast, telling_environment
from torchrepro.state.ambient import applied_modes, applied_settings, capture_ambient
from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state


@contextmanager
def applied(ambient: Ambient) -> Iterator[None]:
    with applied_settings(ambient), applied_modes(ambient):
        yield


def test_what_is_captured_under_a_state_is_that_state() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        seen = capture_ambient()
    assert not seen.grad_enabled
    assert seen.autocast == (Autocast("cpu", "float16", True, False),)


def test_applying_gives_the_captured_state_and_puts_the_old_one_back() -> None:
    before = capture_ambient()
    wanted = Ambient(
        grad_enabled=False,
        autocast=(Autocast("cpu", "bfloat16"),),
        default_dtype="float64",
        matmul_precision="medium",
        deterministic="warn",
        threads=1,
        configs={"inductor": {"cpp.threads": 3}, "dynamo": {"cache_size_limit": 17}},
    )
    with applied(wanted):
        inside = capture_ambient()
        assert inside.default_dtype == "float64"
        assert inside.matmul_precision == "medium"
        assert inside.deterministic == "warn"
        assert inside.autocast == wanted.autocast
        assert inside.configs["inductor"]["cpp.threads"] == 3
        assert not inside.grad_enabled
    assert capture_ambient() == before


def test_inference_mode_is_applied() -> None:
    with (
        applied_settings(Ambient(inference_mode=True, grad_enabled=False)),
        applied_modes(Ambient(inference_mode=True, grad_enabled=False)),
    ):
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_setting_of_another_version_of_torch_is_passed_over() -> None:
    with (
        applied_settings(Ambient(configs={"inductor": {"no_such_setting_at_all": 1}})),
        applied_modes(Ambient(configs={"inductor": {"no_such_setting_at_all": 1}})),
    ):
        assert capture_ambient().configs.get("inductor", {}).get("no_such_setting_at_all") is None


def test_an_exception_inside_leaves_the_old_state() -> None:
    before = torch.get_default_dtype()
    try:
        with (
            applied_settings(Ambient(default_dtype="float64")),
            applied_modes(Ambient(default_dtype="float64")),
        ):
            raise RuntimeError
    except RuntimeError:
        assert torch.get_default_dtype() is before


def test_a_config_that_is_a_function_is_kept_as_the_live_object() -> None:
    import torch._inductor.config as config

    def own_pass(graph: torch.fx.Graph) -> None:
        pass

    with config.patch(post_grad_custom_post_pass=own_pass):
        seen = capture_ambient()
    assert seen.configs["inductor"]["post_grad_custom_post_pass"] is own_pass


def test_random_states_come_back() -> None:
    state = capture_rng_state()
    first = torch.rand(3)
    restore_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def test_secrets_and_paths_in_the_environment_are_not_captured() -> None:
    seen = telling_environment(
        {
            "TORCHINDUCTOR_FREEZING": "1",
            "TORCHINDUCTOR_CACHE_DIR": "/home/me/cache",
            "TORCHINDUCTOR_REMOTE_TOKEN": "hunter2",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "HOME": "/home/me",
        }
    )
    assert seen == {"TORCHINDUCTOR_FREEZING": "1"}
