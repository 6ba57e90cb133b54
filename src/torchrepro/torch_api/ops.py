"""Operators, as nodes of a graph call them.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

import torch
import torch._ops

OpOverload = torch._ops.OpOverload
"""One overload of an operator, the target of a node after AOT."""

OpOverloadPacket = torch._ops.OpOverloadPacket
"""All overloads of an operator (`torch.ops.aten.add`)."""

HigherOrderOperator = torch._ops.HigherOrderOperator
"""An operator that takes graphs (`cond`, `scan`, flex attention)."""
