"""What a user vouches for when a bundle is opened, and what the bundle asks them to vouch for."""

from __future__ import annotations

import msgspec

SOURCE_TRUST = "source"
"""The word that trusts the source in a bundle (`--trust source`)."""


class CustomOpEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator that does not come with torch, and what registers it."""

    op: str
    schema: str
    module: str = ""
    file: str = ""
    library: str = ""
    """A shared object that `torch.ops.load_library` loads."""
    in_source: bool = False
    """Whether `operators.py` of the bundle can register it."""
