"""Whose bundle is it? One written by this user on this machine is theirs; any other is a stranger's.

Every finished bundle has a member `provenance.json`: the SHA-256 of each other member, which finds flipped
bits, and a signature, an HMAC of that table under a key that only this user can read. Somebody who changes or
forges a bundle cannot make the signature. The key says nothing about the machine beyond its own secrecy: who
copies it to another machine owns the bundles of both.

What is derived from a stranger's bundle (a minimal bundle, a recorded graph) is a stranger's too: processes
that work on one have `TORCHREPRO_STRANGER` set, and sign nothing. Needs no torch.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.read import DEFAULT_LIMIT, MEMBERS, PROVENANCE, BundleFiles, open_bundle_files
from torchrepro.nouns.errors import BundleError, damaged
from torchrepro.nouns.repro import SOURCE_TRUST

STRANGER = "TORCHREPRO_STRANGER"
"""Set to 1 in the environment of processes that work on a stranger's bundle."""
CONFIG_DIR = "TORCHREPRO_CONFIG_DIR"
"""Replaces the user's configuration directory, in which the key is."""
_KEY_BYTES = 32
_BUNDLE = b"torchrepro bundle 1\0"
_NO_LIMIT = 1 << 62


class Provenance(msgspec.Struct, frozen=True):
    """The content of `provenance.json`."""

    members: dict[str, str]
    """The SHA-256 of each member, by name."""
    signature: str = ""
    """The HMAC of the table above under the user's key; empty: written without one."""


def is_own(bundle: Path) -> bool:
    """Return whether this user wrote the bundle on this machine and nothing in it was changed.

    Raise BundleError, which names the member, where the digest of a member is not the one that was written.
    A gigabyte takes about a second.
    """
    with open_bundle_files(bundle) as files:
        return verify(files)


@dataclass(frozen=True, slots=True)
class Standing:
    """Whose bundle it is, and what it may therefore run."""

    own: bool
    trusted: tuple[str, ...]

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables for every process that works on the bundle."""
        return {} if self.own else {STRANGER: "1"}


def standing_of(bundle: Path, manifest: Manifest, trusted: Collection[str] = ()) -> Standing:
    """Verify a bundle (see `is_own`). One's own may run all that it names, a stranger's what is `trusted`."""
    own = is_own(bundle)
    return Standing(own, (*trusted, *(names_it_runs(manifest) if own else ())))


def works_for_stranger() -> bool:
    """Return whether this process was started to work on a stranger's bundle."""
    return os.environ.get(STRANGER) == "1"


def verify(files: BundleFiles) -> bool:
    """As `is_own`, for an open bundle."""
    if PROVENANCE not in files:
        return False  # written by torchrepro 0.1, or ahead of a call that is under way
    found = _decoded(files)
    for name, digest in found.members.items():
        if name not in files:
            raise damaged(f"{name} of {files.location} is missing")
        if _digest_in(files, name) != digest:
            raise BundleError(
                f"{name} of {files.location} is damaged: its content is not what was written",
                next_step="get a fresh copy, or capture the failure again; if you changed it on purpose, "
                f"remove {PROVENANCE}, which makes it a stranger's bundle",
            )
    # A member that was added later, such as the source of operators, may come from anyone.
    complete = all(name in found.members for name in MEMBERS if name in files)
    key = user_key(create=False)
    if key is None or not complete or not found.signature:
        return False
    return _same(_signature(_BUNDLE, _table(found.members), key), found.signature)


def sealed(digests: Mapping[str, str], *, sign: bool = True) -> bytes:
    """Return the content of `provenance.json` for members with these digests.

    It is signed unless this process works on a stranger's bundle, or there can be no key.
    """
    key = user_key() if sign and not works_for_stranger() else None
    signature = _signature(_BUNDLE, _table(digests), key) if key is not None else ""
    return msgspec.json.format(msgspec.json.encode(Provenance(dict(digests), signature)), indent=1)


def mark_of(purpose: str, *facts: str) -> str:
    """Return a keyed mark that only this user can make for these facts; empty where there is no key."""
    key = user_key()
    if key is None:
        return ""
    return _signature(f"torchrepro {purpose} 1\0".encode(), msgspec.json.encode(facts), key)


def is_mark(mark: str, purpose: str, *facts: str) -> bool:
    """Return whether `mark_of` gave this mark, in any process of this user."""
    return bool(mark) and _same(mark, mark_of(purpose, *facts))


def names_it_runs(manifest: Manifest) -> tuple[str, ...]:
    """Return everything that must be trusted to run a bundle in full: modules, operators, its own source."""
    compiler = manifest.compiler.name
    in_source = manifest.kernels or any(entry.in_source for entry in manifest.custom_ops)
    return (
        *owners(manifest.needs_trust),
        *(name for entry in manifest.custom_ops for name in (entry.module, entry.library) if name),
        *((SOURCE_TRUST,) if in_source else ()),
        *((compiler.partition(":")[0],) if ":" in compiler else ()),
        *(entry.reference.partition(":")[0] for entry in manifest.user_settings if not entry.source),
    )


def owners(callables: Iterable[str]) -> tuple[str, ...]:
    """Return the modules in which the given callables (`package.module.function`) live."""
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in callables))


def config_directory() -> Path:
    """Return `TORCHREPRO_CONFIG_DIR`, else the user's configuration directory."""
    chosen = os.environ.get(CONFIG_DIR)
    return Path(chosen) if chosen else platformdirs.user_config_path("torchrepro", appauthor=False)


def user_key(*, create: bool = True) -> bytes | None:
    """Return the secret key of this user; None, with a warning, where it cannot be kept a secret."""
    path = config_directory() / "key"
    try:
        if not path.exists():
            if not create:
                return None
            _create_key(path)
        return _read_key(path)
    except OSError as error:
        if create:
            _warn(f"{path}: {error.strerror or error}")
        return None


def _warn(reason: str) -> None:
    warnings.warn(
        f"bundles written here will count as a stranger's, because they cannot be signed ({reason}); "
        f"{CONFIG_DIR} can name another directory",
        stacklevel=4,
    )


def _create_key(path: Path) -> None:
    """Create the key, whole and unreadable to others; the first of several processes wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_uid != os.geteuid():
        raise PermissionError(0, "the directory belongs to another user")  # `sudo` with the user's HOME
    partial = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)
        except FileExistsError:
            return
        except OSError:
            if not path.exists():  # a file system without links
                os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _read_key(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise PermissionError(0, "it is not a file of this user")
        if stat.S_IMODE(about.st_mode) & 0o077:
            raise PermissionError(0, "others may read it: remove it, and a new one is made")
        key = file.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise PermissionError(0, "it is damaged: remove it, and a new one is made")
    return key


def _decoded(files: BundleFiles) -> Provenance:
    try:
        return msgspec.json.decode(files.read_bytes(PROVENANCE), type=Provenance)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise damaged(f"{PROVENANCE} of {files.location} is damaged ({exc})") from exc


def _digest_in(files: BundleFiles, name: str) -> str:
    digest = hashlib.sha256()
    for piece in files.pieces(name, DEFAULT_LIMIT if files.is_packed(name) else _NO_LIMIT):
        digest.update(piece)
    return digest.hexdigest()


def _table(digests: Mapping[str, str]) -> bytes:
    return msgspec.json.encode(sorted(digests.items()))


def _same(left: str, right: str) -> bool:
    """Compare in a time that does not tell where they differ; as bytes, because text must be ASCII there."""
    return hmac.compare_digest(left.encode(errors="replace"), right.encode())


def _signature(purpose: bytes, content: bytes, key: bytes) -> str:
    return hmac.new(key, purpose + content, hashlib.sha256).hexdigest()
