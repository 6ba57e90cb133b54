"""Which names a file inside a bundle may have."""

from __future__ import annotations

from torchrepro.errors import BundleError


def check_member_name(name: str) -> None:
    """Refuse a name that could lead out of the bundle, on any operating system."""
    parts = name.split("/")
    if "\\" in name or ":" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BundleError(
            f"{name!r} is not a name that a file of a bundle may have",
            next_step="do not trust this bundle; ask for one written by torchrepro",
        )
