"""Code of the user in a compiler's settings is blamed only if it is wrong by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchrepro.locate.context import Inquiry
from torchrepro.locate.users_code import find_users_code
from torchrepro.nouns.repro import Ambient, Compiler, Registered, Repro
from torchrepro.nouns.results import Confidence, Located, Part
from torchrepro.nouns.sentences import culprit_of, title_of
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.report.markdown import _not_for_pytorch
from torchrepro.user_code.settings import code_settings

PASS = ("inductor", "post_grad_custom_post_pass")
JOINT = ("inductor", "joint_custom_pre_pass")
OPTION = ("options", "pre_grad_custom_pass")
LOWERING = ("lowerings", "aten.tanh.default")


def cheaper_gelu(graph: torch.fx.Graph) -> None:
    """Be blamed."""


def harmless(graph: torch.fx.Graph) -> None:
    """Be there."""


class Scripted(Inquiry):
    """Fails as a function of the settings that are left, without running anything."""

    def __init__(self, fails: Callable[[Repro], bool]) -> None:
        ambient = Ambient(
            configs={"inductor": {PASS[1]: cheaper_gelu, JOINT[1]: harmless}},
            registered={"lowerings": {LOWERING[1]: Registered(harmless)}},
        )
        graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
        compiler = Compiler(options={OPTION[1]: harmless})
        repro = Repro(graph, (torch.ones(2),), compiler=compiler, ambient=ambient)
        oracle: Any = None
        super().__init__(repro, Verdict(Kind.MISMATCH), oracle)
        self._fails = fails

    def verdict_on(self, candidate: Repro, **_: Any) -> Verdict:
        return Verdict(Kind.MISMATCH if self._fails(candidate) else Kind.PASS)


def without_code_generation(repro: Repro) -> bool:
    return bool(repro.compiler.options.get("fallback_by_default"))


START = Located(bundle="b", kind=Kind.MISMATCH)


@pytest.mark.parametrize(
    ("place", "blamed", "code"),
    [
        (
            PASS,
            "pass cheaper_gelu in inductor.post_grad_custom_post_pass",
            "torch._inductor.config.post_grad_custom_post_pass = None",
        ),
        (OPTION, "pass harmless in options.pre_grad_custom_pass", "without the option pre_grad_custom_pass"),
        (
            LOWERING,
            "lowering harmless in lowerings.aten.tanh.default",
            "do not register a lowering for aten.tanh.default",
        ),
    ],
)
def test_the_one_setting_without_which_the_failure_goes_away_is_blamed(
    place: tuple[str, str], blamed: str, code: str
) -> None:
    inquiry = Scripted(lambda repro: place in code_settings(repro))
    found = find_users_code(inquiry, START)
    assert found["blamed"] == blamed
    assert code in found["workaround"].code  # type: ignore[attr-defined]
    assert not inquiry.notes


def test_a_failure_that_stays_without_the_users_code_is_the_compilers() -> None:
    assert find_users_code(Scripted(lambda repro: True), START) == {}


def test_a_pass_that_only_brings_a_bug_of_code_generation_to_light_is_not_blamed() -> None:
    inquiry = Scripted(lambda repro: PASS in code_settings(repro) and not without_code_generation(repro))
    assert find_users_code(inquiry, START) == {}
    (note,) = inquiry.notes
    assert "cheaper_gelu" in note
    assert "hides the failure" in note


def test_a_blamed_pass_is_no_issue_for_pytorch() -> None:
    located = Located(
        bundle="b",
        kind=Kind.MISMATCH,
        blamed="pass cheaper_gelu in inductor.post_grad_custom_post_pass",
        part=Part("pass", "cheaper_gelu", "the failure goes away without it alone"),
        confidence=Confidence.VERIFIED,
    )
    said = culprit_of(located)
    assert said.startswith(
        "The culprit is the custom pass cheaper_gelu in inductor.post_grad_custom_post_pass"
    )
    assert "without it alone" in said
    assert "no bug of PyTorch" in "".join(_not_for_pytorch(located))
    title = title_of(None, compiler="inductor", op="", devices=frozenset(), blamed=located.blamed)
    assert "declares" not in title
