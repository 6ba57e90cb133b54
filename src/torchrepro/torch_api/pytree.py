"""Nested values as leaves and structure.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree

tree_flatten = torch.utils._pytree.tree_flatten
"""Leaves and structure of nested values."""

tree_leaves = torch.utils._pytree.tree_leaves
"""Leaves of nested values."""

tree_map = torch.utils._pytree.tree_map
"""Nested values with a function applied to each leaf."""

tree_unflatten = torch.utils._pytree.tree_unflatten
"""Nested values from leaves and structure."""

tree_map_only = torch.utils._pytree.tree_map_only
"""Nested values with a function applied to the leaves of a type."""

tree_structure = torch.utils._pytree.tree_structure
"""Structure of nested values."""


def leaves_by_path(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the leaves of nested values by their paths, which begin with `path`: `out[0]['name']`."""
    found = torch.utils._pytree.tree_leaves_with_path(value)
    return [(path + torch.utils._pytree.keystr(keys), leaf) for keys, leaf in found]
