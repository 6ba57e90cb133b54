"""The part of the corpus (`hostile.py`) with hostile values, groups, collectives, sizes and settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bundle.hostile_tools import (
    CORPUS,
    Attack,
    attack,
    healthy,
    planted_script,
    with_compiler,
    with_lines,
    with_manifest,
)

TWO_TENSORS = "torch.testing._internal.two_tensor.TwoTensor"
REPLICATE = ("torch.distributed.tensor.Replicate",)


def with_value(bundle: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Replace the input by what `change` makes of its entry."""

    def replaced(manifest: dict[str, Any]) -> None:
        tensor = {**manifest["values"]["input.0"], "number": 1}
        manifest["values"]["input.0"] = {"number": 0, **change(tensor)}

    return with_manifest(bundle, replaced)


def with_groups(bundle: Path, groups: dict[str, Any], *, size: int = 2) -> Path:
    return with_manifest(
        bundle, lambda manifest: manifest.update(groups={"rank": 0, "size": size, "groups": groups})
    )


def with_dtensor(
    bundle: Path, placements: list[tuple[Any, ...]], *, group: str = "0", names: list[str] | None = None
) -> Path:
    mesh = {"kind": "mesh", "number": 2, "device": "cpu", "shape": [2], "ranks": [0, 1]}
    mesh |= {"groups": [group], "names": names}
    entry = {"kind": "dtensor", "mesh": mesh, "placements": placements, "size": [128], "stride": [1]}
    with_value(bundle, lambda tensor: {**entry, "local": tensor})
    return with_groups(bundle, {group: [0, 1]})


def with_subclass(bundle: Path, type_: str, **more: Any) -> Path:
    entry = {"kind": "subclass", "type": type_, "context": {"kind": "none"}, "size": [64], "stride": [1]}
    return with_value(bundle, lambda tensor: {**entry, "inner": {"a": tensor, "b": tensor}, **more})


def with_setting(bundle: Path, **entry: Any) -> Path:
    entry = {"table": "inductor", "name": "post_grad_custom_post_pass", **entry}
    return with_manifest(bundle, lambda manifest: manifest.update(user_settings=[entry]))


def code_in_c(canary: Path) -> str:
    return f'0"); std::system("touch {canary}"); ("'


@attack
def placement_of_another_module(bundle: Path, canary: Path) -> Path:
    return with_dtensor(bundle, [("antigravity.fly",)])


@attack
def placement_that_does_not_fit(bundle: Path, canary: Path) -> Path:
    return with_dtensor(bundle, [("torch.distributed.tensor.Shard", 1 << 40)] * 3)


@attack
def group_that_is_code(bundle: Path, canary: Path) -> Path:
    return with_dtensor(bundle, [REPLICATE], group=code_in_c(canary))


@attack
def mesh_with_names_that_are_code(bundle: Path, canary: Path) -> Path:
    return with_dtensor(bundle, [REPLICATE], names=[code_in_c(canary)])


@attack
def groups_without_end(bundle: Path, canary: Path) -> Path:
    return with_groups(bundle, {str(number): [0] for number in range(50_000)}, size=1 << 20)


@attack
def group_with_a_rank_twice(bundle: Path, canary: Path) -> Path:
    return with_groups(bundle, {"0": [0, 0, 1]})


@attack
def subclass_in_a_tool_of_torch(bundle: Path, canary: Path) -> Path:
    return with_subclass(bundle, "torch.distributed.run.Tensor")


@attack
def subclass_of_code(bundle: Path, canary: Path) -> Path:
    return with_subclass(bundle, "antigravity:fly")


@attack
def subclass_of_text(bundle: Path, canary: Path) -> Path:
    text = {"kind": "str", "value": "x"}
    return with_subclass(bundle, TWO_TENSORS, inner={"a": text, "b": text})


@attack
def subclass_with_another_class(bundle: Path, canary: Path) -> Path:
    number = {"kind": "int", "value": 3}
    return with_value(
        bundle,
        lambda tensor: {
            "kind": "as_subclass",
            "type": TWO_TENSORS,
            "plain": tensor,
            "attributes": {"__class__": number, "x;y": number},
        },
    )


@attack
def collective_of_text(bundle: Path, canary: Path) -> Path:
    def change(manifest: dict[str, Any]) -> None:
        manifest["collectives"] = [{"op": "all_reduce", "arguments": ["sum"]}]
        for name in ("given", "returned"):
            manifest["values"][f"collective.0.{name}"] = {"kind": "str", "value": "x"}

    with_lines(bundle, 'y = torch.ops._c10d_functional.all_reduce.default(x, "sum", "0")', "return (y,)")
    return with_groups(with_manifest(bundle, change), {"0": [0, 1]})


@attack
def collective_of_an_unknown_group(bundle: Path, canary: Path) -> Path:
    line = 'y = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 1099511627776, "7")'
    return with_groups(with_lines(bundle, line, "return (y,)"), {"0": [0, 1]})


# Settings that are code, and what is said about them.


@attack
def setting_of_the_standard_library(bundle: Path, canary: Path) -> Path:
    return with_setting(bundle, reference="os:system")


@attack
def setting_in_the_source(bundle: Path, canary: Path) -> Path:
    (healthy(bundle) / "source.py").write_text(planted_script(canary))
    return with_setting(bundle, source="os")


@attack
def setting_that_is_code(bundle: Path, canary: Path) -> Path:
    code = f"x\nimport os; os.system('touch {canary}')"
    return with_setting(bundle, table="backend", name=code, reference=f"{code}:y", source=code)


@attack
def setting_with_arguments_that_are_code(bundle: Path, canary: Path) -> Path:
    return with_setting(
        bundle,
        table="lowerings",
        name="aten.relu.default",
        reference="os:system",
        arguments={"type_promotion_kind": code_in_c(canary)},
    )


@attack
def module_that_is_a_command(bundle: Path, canary: Path) -> Path:
    line = f'y = user("x; touch {canary} #:y")(x)'
    return with_lines(bundle.with_name("a; touch b"), line, "return (y,)")


@attack
def compiler_that_is_a_command(bundle: Path, canary: Path) -> Path:
    return with_compiler(bundle, f"x; touch {canary} #")


# Files and numbers of the newer kinds.


@attack
def link_without_an_end(bundle: Path, canary: Path) -> Path:
    (healthy(bundle) / "more").symlink_to("/proc/kmsg")
    return bundle


@attack
def time_that_is_text(bundle: Path, canary: Path) -> Path:
    def change(manifest: dict[str, Any]) -> None:
        manifest.update(expected={"kind": "hang", "stage": "backend"})
        manifest["verdict"].update(seconds="for ever")

    return with_manifest(bundle, change)


_FLOATS: dict[str, Any] = {
    "kind": "random_floats",
    "dtype": "float32",
    "resembles": "other",
    "mean": 0.0,
    "std": 0.0,
    "minimum": 0.0,
    "maximum": 0.0,
    "zeros": 0.0,
    "nans": 0,
    "infinities": 0,
    "negative_infinities": 0,
    "seed": 1,
    "levels": [0.0],
    "quantiles": [],
    "planted": [],
}
RECIPES: dict[str, dict[str, Any]] = {
    "progression": {"kind": "progression", "itemsize": 4, "start": 1 << 62, "step": -(1 << 62)},
    "integers": {"kind": "random_integers", "itemsize": 4, "low": 0, "high": (1 << 63) - 1, "seed": -1},
    "floats": {**_FLOATS, "dtype": "os"},
    "floats_planted_elsewhere": {**_FLOATS, "planted": [[1 << 60, "AAAAAA=="], [-1 << 40, "AA=="]]},
    "floats_without_number": {**_FLOATS, "nans": 1 << 62, "infinities": -(1 << 62), "zeros": 1e308},
}


def _of_recipe(recipe: dict[str, Any]) -> Attack:
    def make(bundle: Path, canary: Path) -> Path:
        return with_value(
            bundle, lambda tensor: {**tensor, "storage": {**tensor["storage"], "recipe": recipe}}
        )

    return make


CORPUS |= {f"recipe_of_{name}": _of_recipe(recipe) for name, recipe in RECIPES.items()}


# Numbers and sizes.


@attack
def sizes_beyond_the_storage(bundle: Path, canary: Path) -> Path:
    def change(manifest: dict[str, Any]) -> None:
        manifest["values"]["input.0"].update(size=[1 << 40], stride=[1 << 20], offset=1 << 50)

    return with_manifest(bundle, change)


@attack
def negative_strides(bundle: Path, canary: Path) -> Path:
    def change(manifest: dict[str, Any]) -> None:
        manifest["values"]["input.0"].update(size=[64, -1], stride=[-8, 1], offset=-4096)

    return with_manifest(bundle, change)


@attack
def ranks_that_differ(bundle: Path, canary: Path) -> Path:
    return with_manifest(
        bundle, lambda manifest: manifest["values"]["input.0"].update(size=[8, 8], stride=[1])
    )


@attack
def counts_beyond_reason(bundle: Path, canary: Path) -> Path:
    return with_manifest(bundle, lambda manifest: manifest.update(inputs=1 << 62, earlier=1 << 62, ops=-1))


@attack
def recipe_of_a_petabyte(bundle: Path, canary: Path) -> Path:
    def change(manifest: dict[str, Any]) -> None:
        recipe = {"kind": "constant", "element": "AA=="}
        manifest["values"]["input.0"]["storage"].update(nbytes=1 << 50, recipe=recipe)
        manifest["values"]["input.0"].update(size=[1 << 48])

    return with_manifest(bundle, change)


@attack
def header_of_a_petabyte(bundle: Path, canary: Path) -> Path:
    tensors = healthy(bundle) / "tensors.safetensors"
    tensors.write_bytes((1 << 50).to_bytes(8, "little") + tensors.read_bytes()[8:])
    return bundle


@attack
def deep_manifest(bundle: Path, canary: Path) -> Path:
    nested = '{"kind":"sequence","type":"list","items":[' * 4000 + "]}" * 4000
    text = (healthy(bundle) / "manifest.json").read_text()
    manifest = json.loads(text)
    manifest["values"]["input.1"] = "HERE"
    (bundle / "manifest.json").write_text(json.dumps(manifest).replace('"HERE"', nested))
    return bundle


@attack
def deep_graph(bundle: Path, canary: Path) -> Path:
    return with_lines(bundle, "y = x.relu()", "return " + "(" * 2000 + "y" + ",)" * 2000)


@attack
def many_nested_graphs(bundle: Path, canary: Path) -> Path:
    text = "".join("    " * depth + f"class {'Graph' if not depth else 'g'}:\n" for depth in range(90))
    (healthy(bundle) / "graph.py").write_text(text + "    " * 90 + "pass\n")
    return bundle
