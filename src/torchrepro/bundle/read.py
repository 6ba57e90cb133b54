"""Read the files of a bundle, a directory or a zip, without trusting its author. Needs no torch."""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import stat
import tempfile
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import IO

from torchrepro.bundle.manifest import Manifest, decode_manifest
from torchrepro.nouns.errors import BundleError, damaged

MANIFEST = "manifest.json"
GRAPH = "graph.py"
TENSORS = "tensors.safetensors"
SCRIPT = "repro.py"
OPERATORS = "operators.py"
"""Only where the graph calls operators or Triton kernels of the user: their source."""
SOURCE = "source.py"
"""Only where the graph calls code of the user that no import finds."""
CAPTURED = "captured_graph.py"
"""Only in a bundle of a whole call whose graph could not be kept: the graph's text, for people."""
GENERATED = "generated_code.py"
"""Only where a graph could not be kept: what the compiler made of it, for people."""
VALUES = "values.pt"
"""Only next to a script that needs it: values that plain torch code cannot make in a line."""
PROVENANCE = "provenance.json"
"""Digests of the other members, signed by who wrote them (`bundle/provenance.py`)."""
MEMBERS = (MANIFEST, GRAPH, TENSORS, SCRIPT, OPERATORS, SOURCE, VALUES)

LOCATED = "located"
"""Not of the bundle itself: a folder in it with what `torchrepro locate` has found out."""
DEFAULT_LIMIT = 256 << 20
"""Bytes that a compressed member may unpack to."""
TEXT_LIMIT = 64 << 20
"""Bytes that the text of a member may have: that of a graph with 3,400 nodes has one million."""
PARTIAL_SUFFIX = ".partial"
"""Of the hidden name under which a bundle is written."""
LOCAL_HEADER = 30
_PIECE = 1 << 20
_NOT_TRUSTED = "do not trust this bundle; ask for one written by torchrepro"


class BundleFiles(AbstractContextManager["BundleFiles"]):
    """The files of an open bundle. Use it as a context manager; what was mapped stays valid after closing."""

    names: tuple[str, ...]
    location: Path

    def read_bytes(self, name: str, limit: int = TEXT_LIMIT) -> bytes:
        """Return the content of a file, which may have at most `limit` bytes."""
        return b"".join(self.pieces(name, limit))

    @abstractmethod
    def span(self, name: str, limit: int = DEFAULT_LIMIT) -> tuple[Path, int, int]:
        """Return file, start and length of the bytes of a file: what `open_storages` takes.

        `limit` is for what has to be unpacked first; that lives until the bundle is closed.
        """

    @abstractmethod
    def _open(self, name: str) -> IO[bytes]: ...

    def pieces(self, name: str, limit: int) -> Iterator[bytes]:
        """Yield the content piece by piece, so that a file larger than it claims is stopped."""
        if self._claimed(name) > limit:
            raise self._too_large(name)
        try:
            with self._open(name) as file:
                while piece := file.read(_PIECE):
                    limit -= len(piece)
                    if limit < 0:
                        raise self._too_large(name)
                    yield piece
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise damaged(f"{name} of {self.location} is damaged") from error
        except OSError as error:
            raise BundleError(
                f"cannot read {name} of {self.location}: {error.strerror or error}",
                next_step="check its permissions",
            ) from error

    def _claimed(self, name: str) -> int:
        """Return the size that a file says it has; 0 where that is not known before it is opened."""
        return 0

    def is_packed(self, name: str) -> bool:
        """Return whether a file is compressed: then it may be far larger than what was sent."""
        return False

    def _too_large(self, name: str) -> BundleError:
        return BundleError(
            f"{name} of {self.location} is larger than the limit for such a file",
            next_step="do not open this bundle unless you know why it is that large",
        )

    def _missing(self, name: str) -> BundleError:
        return damaged(f"{self.location} has no {name}")

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Close what was opened, and remove what was unpacked."""


def check_member_name(name: str) -> None:
    """Refuse a name that could lead out of the bundle, on any operating system."""
    parts = name.split("/")
    if "\\" in name or ":" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BundleError(
            f"{name!r} is not a name that a file of a bundle may have",
            next_step=_NOT_TRUSTED,
        )


def open_bundle_files(path: str | os.PathLike[str]) -> BundleFiles:
    """Open a bundle, a directory or a zip."""
    location = Path(os.path.abspath(path))
    if location.name.startswith(".") and location.name.endswith(PARTIAL_SUFFIX):
        raise BundleError(
            f"{location} is what an interrupted write left behind", next_step="remove it and capture again"
        )
    try:
        if location.is_dir():
            return _Directory(location)
        if location.exists() and not location.is_file():
            raise BundleError(f"{location} is neither a directory nor a file", next_step="check the path")
        return _Zip(location)
    except FileNotFoundError as error:
        raise BundleError(f"{location} does not exist", next_step="check the path") from error
    except OSError as error:
        raise BundleError(
            f"cannot read {location}: {error.strerror or error}", next_step="check its permissions"
        ) from error


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a bundle, which has all the files it should."""
    with open_bundle_files(path) as files:
        manifest = manifest_of(files)
        missing = [name for name in (GRAPH, TENSORS) if name not in files]
        if missing:
            raise damaged(f"{path} has no {' and no '.join(missing)}")
        return manifest


def require_complete(path: Path, manifest: Manifest) -> None:
    """Raise if a part of the graph or a value could not be kept, without which the bundle cannot be run."""
    if manifest.missing:
        more = f" and {len(manifest.missing) - 1} more" if len(manifest.missing) > 1 else ""
        raise BundleError(
            f"{path} is incomplete and cannot be run: it lacks {manifest.missing[0]}{more}",
            next_step=f"look at what was kept (torchrepro show --graph {shlex.quote(str(path))}), or save "
            "the whole call with torchrepro.save_repro",
        )


def manifest_of(files: BundleFiles) -> Manifest:
    return decode_manifest(files.read_bytes(MANIFEST), str(files.location))


def read_graph_text(path: Path) -> str:
    with open_bundle_files(path) as files:
        return text_of(files, GRAPH)


def read_source_text(path: Path) -> str:
    """Return the user's code in a bundle; empty where there is none."""
    with open_bundle_files(path) as files:
        return "\n\n".join(text_of(files, name) for name in (SOURCE, OPERATORS) if name in files)


def file_digest(path: Path) -> str:
    """Return the digest of a file's content. A gigabyte takes about a second."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_small_file(path: Path, limit: int = 64 << 20) -> bytes:
    """Return the content of a plain file; OSError for a link, a pipe, a device and for more than `limit`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
            raise OSError(errno.EINVAL, "not a plain file, or too large", str(path))
        return file.read(limit)


def text_of(files: BundleFiles, name: str) -> str:
    try:
        return files.read_bytes(name).decode()
    except UnicodeDecodeError as exc:
        raise damaged(f"{name} of {files.location} is damaged (no text)") from exc


def _require_manifest(names: Collection[str], location: Path) -> None:
    if MANIFEST not in names:
        raise BundleError(
            f"{location} is not a bundle: it has no {MANIFEST}",
            next_step="give the directory or zip that torchrepro wrote",
        )


class _Directory(BundleFiles):
    def __init__(self, location: Path) -> None:
        self.location = location
        # Before the walk: the path may by mistake be a home directory.
        if not os.listdir(location):
            raise BundleError(f"{location} is an empty directory", next_step="give the path of a bundle")
        _require_manifest(os.listdir(location), location)
        found = (
            (Path(folder) / name).relative_to(location).as_posix()
            for folder, _, names in os.walk(location)
            for name in names
        )
        self.names = tuple(sorted(found))

    def _open(self, name: str) -> IO[bytes]:
        check_member_name(name)
        if name not in self.names:
            raise self._missing(name)
        path = self.location / name
        links = [part for part in (path, *path.parents[: name.count("/")]) if part.is_symlink()]
        # O_NONBLOCK: opening a named pipe would otherwise block forever.
        descriptor = -1 if links else os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        if links or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            if descriptor >= 0:
                os.close(descriptor)
            fact = f"{name} of {self.location} is a link or device, not a file"
            raise BundleError(fact, next_step=_NOT_TRUSTED)
        return os.fdopen(descriptor, "rb")

    def span(self, name: str, limit: int = DEFAULT_LIMIT) -> tuple[Path, int, int]:
        with self._open(name) as file:
            return self.location / name, 0, os.fstat(file.fileno()).st_size

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing was unpacked."""


class _Zip(BundleFiles):
    def __init__(self, location: Path) -> None:
        self.location = location
        self._unpacked = ExitStack()
        try:
            self._archive = zipfile.ZipFile(location)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            what = "is empty" if location.stat().st_size == 0 else "is neither a directory nor a whole zip"
            raise damaged(f"{location} {what}: it is no bundle") from error
        try:
            self._members = self._check_members()
        except BundleError:
            self._archive.close()
            raise
        self.names = tuple(sorted(self._members))

    def _check_members(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            # Not `info.is_dir`, which fails on a name that begins with a NUL.
            name, is_directory = info.orig_filename, info.orig_filename.endswith("/")
            check_member_name(name.rstrip("/") if is_directory else name)
            if stat.S_ISLNK(info.external_attr >> 16):
                raise self._refused(f"{name!r} is a symbolic link")
            if is_directory:
                continue
            if name in members:
                raise self._refused(f"{name!r} is there twice")
            if info.flag_bits & 1:
                raise self._refused(f"{name!r} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise self._refused(f"{name!r} is compressed in a way that bundles do not use")
            members[name] = info
        # `zip -r bundle.zip bundle` puts everything one level deeper.
        tops = {name.partition("/")[0] for name in members}
        if MANIFEST not in members and len(tops) == 1:
            prefix = f"{tops.pop()}/"
            members = {name.removeprefix(prefix): info for name, info in members.items()}
        _require_manifest(members, self.location)
        return members

    def _refused(self, what: str) -> BundleError:
        return BundleError(f"{self.location} is refused: {what}", next_step=_NOT_TRUSTED)

    def _member(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            raise self._missing(name)
        return self._members[name]

    def _open(self, name: str) -> IO[bytes]:
        return self._archive.open(self._member(name))

    def _claimed(self, name: str) -> int:
        return self._member(name).file_size

    def is_packed(self, name: str) -> bool:
        return self._member(name).compress_type != zipfile.ZIP_STORED

    def span(self, name: str, limit: int = DEFAULT_LIMIT) -> tuple[Path, int, int]:
        member = self._member(name)
        if self.is_packed(name):
            folder = self._unpacked.enter_context(tempfile.TemporaryDirectory(prefix="torchrepro-"))
            path = Path(folder, "unpacked")
            with open(path, "wb") as file:
                file.writelines(self.pieces(name, limit))
            return path, 0, path.stat().st_size
        with open(self.location, "rb") as file:
            # The local header repeats the name, and its extra field has a length of its own.
            file.seek(member.header_offset)
            header = file.read(LOCAL_HEADER)
        if len(header) < LOCAL_HEADER or header[:4] != b"PK\x03\x04":
            raise damaged(f"{name} of {self.location} is damaged")
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return self.location, member.header_offset + LOCAL_HEADER + lengths, member.file_size

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._unpacked.close()
