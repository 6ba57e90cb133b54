"""Write a bundle, a directory or a zip of it: it is complete under its name, or not there at all.

Everything is written under a hidden name next to the target, synced to the disk, then renamed in one step
that refuses to replace anything. A process killed in the middle leaves only the hidden name, which no reader
takes for a bundle.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from torchrepro.bundle.provenance import sealed
from torchrepro.bundle.read import (
    LOCAL_HEADER,
    MEMBERS,
    PARTIAL_SUFFIX,
    PROVENANCE,
    check_member_name,
    file_digest,
)
from torchrepro.nouns.errors import BundleError, TorchReproError, advice_on, in_a_line

_lock = threading.Lock()
_last_microsecond = 0


def new_run_id() -> str:
    """Return an id that sorts by time, in one process even within a microsecond; unique on all hosts.

    >>> new_run_id()  # doctest: +SKIP
    '20260131-094502-118034-p4711-5f0c9a1e'
    """
    global _last_microsecond
    with _lock:
        microsecond = max(time.time_ns() // 1000, _last_microsecond + 1)
        _last_microsecond = microsecond
    moment = datetime.fromtimestamp(microsecond // 1_000_000, UTC)
    # Randomness from the system: a forked child inherits the state of Python's own generator.
    return f"{moment:%Y%m%d-%H%M%S}-{microsecond % 1_000_000:06d}-p{os.getpid()}-{secrets.token_hex(4)}"


STORED_SUFFIXES = (".safetensors",)
"""Not compressed in a zip, and aligned there, so that they can be mapped in place."""
_ZIP_ALIGNMENT = 64
_PADDING_FIELD = 0xD935  # the extra field that Android's zipalign uses for the same purpose

Content = bytes | Callable[[Path], None]


def write_bundle_files(
    target: Path,
    files: Mapping[str, Content],
    *,
    optional: Mapping[str, Content] | None = None,
    amended: Callable[[Mapping[str, str]], Mapping[str, Content]] = lambda missing: {},
    seal: bool = True,
    sign: bool = True,
) -> Path:
    """Write a bundle: `files` by name, as bytes or as a function that writes the file at a given path.

    `optional` files come after all others, and the bundle goes without those that cannot be written, for
    whatever reason. `amended` takes these, by name and reason, and returns files to write once more: the
    manifest, which says so. `seal` adds the digests of the files, with the user's signature unless not `sign`
    (`bundle/provenance.py`). A target that ends in .zip becomes a zip. Nothing is ever overwritten.
    """
    files = {name: content for name, content in files.items() if name != PROVENANCE}
    target = Path(os.path.abspath(target))
    optional = optional or {}
    for name in (*files, *optional):
        check_member_name(name)
    if os.path.lexists(target):
        raise _exists(target)
    partial = target.with_name(f".{target.name[:100]}.{new_run_id()}{PARTIAL_SUFFIX}")
    staged = partial / "members"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.mkdir(parents=True)
        _write_members(staged, files)
        missing = _write_optional(staged, optional)
        if missing:
            _write_members(staged, amended(missing))
        names = [name for name in (*files, *optional) if name not in missing]
        if seal:
            digests = {name: file_digest(staged / name) for name in names}

            def write_seal(path: Path) -> None:
                path.write_bytes(sealed(digests, sign=sign))

            # A bundle that cannot be sealed is worth more than none.
            if not _write_optional(staged, {PROVENANCE: write_seal}):
                names.append(PROVENANCE)
        finished = staged
        if target.suffix == ".zip":
            finished = partial / "bundle.zip"
            _write_zip(finished, staged, names)
            _sync(finished)
        try:
            move_without_replacing(finished, target)
        except FileExistsError as error:
            raise _exists(target) from error
        _sync(target.parent)
    except OSError as error:
        raise BundleError(
            f"cannot write {target}: {error.strerror or error}",
            next_step=advice_on(error.errno) or "choose another directory",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def seal_again(bundle: Path, *, sign: bool = True) -> None:
    """Replace the digests of a bundle, a directory, after its script was written once more."""
    digests = {name: file_digest(bundle / name) for name in MEMBERS if (bundle / name).is_file()}
    partial = bundle / f".{PROVENANCE}.{new_run_id()}{PARTIAL_SUFFIX}"
    try:
        partial.write_bytes(sealed(digests, sign=sign))
        os.replace(partial, bundle / PROVENANCE)
    finally:
        partial.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Raise now if a file of this name could not be written later; make its directory."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as exc:
        raise TorchReproError(
            f"cannot write {path}: {exc.strerror}", next_step="choose another file"
        ) from exc


@contextmanager
def written_in_one_step(path: Path, next_step: str = "choose another file") -> Iterator[TextIO]:
    """Yield a text file that gets its name when it is complete; a file or link of that name is replaced."""
    partial = path.with_name(f".{path.name[:100]}.{new_run_id()}{PARTIAL_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("x", encoding="utf-8", errors="replace") as file:
            yield file
        partial.replace(path)
    except OSError as exc:
        raise TorchReproError(f"cannot write {path}: {exc.strerror or exc}", next_step=next_step) from exc
    finally:
        with suppress(OSError):
            partial.unlink()


def write_in_one_step(path: Path, text: str, next_step: str = "choose another file") -> None:
    """Write a text file, so that no reader sees half of it, and no link of its name is followed."""
    with written_in_one_step(path, next_step) as file:
        file.write(text)


def _exists(target: Path) -> BundleError:
    other = target.with_name(f"{target.stem}-2{target.suffix}").name
    return BundleError(f"{target} exists already", next_step=f"choose another name, for example {other}")


def _write_members(directory: Path, files: Mapping[str, Content]) -> None:
    directories = {directory}
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        directories.update(path.parents[: len(Path(name).parts)])
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
        _sync(path)
    for each in directories:
        _sync(each)


def _write_optional(directory: Path, files: Mapping[str, Content]) -> dict[str, str]:
    """Write what can be written; return the reasons of the others by name."""
    missing = {}
    for name, content in files.items():
        try:
            _write_members(directory, {name: content})
        except Exception as exc:
            (directory / name).unlink(missing_ok=True)
            missing[name] = in_a_line(exc)
    return missing


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _write_zip(path: Path, staged: Path, names: list[str]) -> None:
    """Write a zip whose bytes depend on the content alone: no times, no owners."""
    with zipfile.ZipFile(path, "x", allowZip64=True) as archive:
        for name in names:
            member = zipfile.ZipInfo(name)  # the date is 1980, the first that a zip can hold
            member.external_attr = 0o644 << 16
            member.file_size = (staged / name).stat().st_size
            if name.endswith(STORED_SUFFIXES):
                member.compress_type = zipfile.ZIP_STORED
                member.extra = _padding(archive.fp.tell() if archive.fp else 0, member)
            else:
                member.compress_type = zipfile.ZIP_DEFLATED
            with (
                open(staged / name, "rb") as source,
                # Sizes in the 64-bit form always: then the length of the header, and the padding, is known.
                archive.open(member, "w", force_zip64=True) as sink,
            ):
                shutil.copyfileobj(source, sink, 1 << 20)


def _padding(header_start: int, member: zipfile.ZipInfo) -> bytes:
    """Return an extra field that moves the member's data to an aligned position."""
    zip64_field, own_header = 20, 4
    fixed = header_start + LOCAL_HEADER + len(member.filename.encode()) + zip64_field + own_header
    length = -fixed % _ZIP_ALIGNMENT
    return _PADDING_FIELD.to_bytes(2, "little") + length.to_bytes(2, "little") + bytes(length)


def move_without_replacing(source: Path, target: Path) -> None:
    """Rename a file or directory; FileExistsError if there is anything under the new name."""
    if source.is_file():
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # a file system without links
                raise
        else:
            os.unlink(source)
            return
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(source, target)  # onto a directory that is not empty this fails by itself
