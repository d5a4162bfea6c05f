"""Adds and removes images. One thread writes; what several callers send is committed together."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from mchindex.files import read_file, replacing, sync_folder
from mchindex.index.duplicates import Decision
from mchindex.index.facade import MCHIndex
from mchindex.index.inputs import metadata_json
from mchindex.server.batching import Batcher, Pool
from mchindex.server.metrics import Metrics
from mchindex.server.problems import ProblemError, no_image
from mchindex.server.settings import Limits
from mchindex.storage.records import Id

TOGETHER = 64  # requests, at most, whose pictures are committed together
DEEPEST = 16  # folders in the name of a picture
LONGEST = 200  # bytes of a file's or a folder's name
TRIES = 1000  # names tried for a file whose name is taken
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\:*?\"<>|]")  # on some system or other


@dataclass
class Upload:
    """A picture that was sent, and where it is kept."""

    name: str
    file: IO[bytes]
    metadata: Mapping[str, Any] | None = None
    path: Path | None = None  # None: it was not kept
    made: bool = False  # whether the file was not there before
    failure: str | None = None


@dataclass
class _Result:
    """What `POST /v1/images` answers."""

    added: list[Id] = field(default_factory=list)
    replaced: list[Id] = field(default_factory=list)
    unchanged: list[Id] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)


class Writing:
    """Everything that changes the index."""

    def __init__(
        self, index: MCHIndex, folder: Path | None, limits: Limits, metrics: Metrics
    ) -> None:
        """`folder` is where pictures are kept; None: this index takes none."""
        self._index, self._folder, self._limits = index, folder, limits
        self._adding: Batcher[Sequence[Upload], _Result] = Batcher(
            "additions", self._add, TOGETHER, limits.queue, 0.0, metrics.batch("add")
        )
        self._others = Pool("changes", 1, limits.queue)

    def close(self) -> None:
        self._adding.close()
        self._others.close()

    async def add(self, uploads: Sequence[Upload]) -> dict[str, Any]:
        """Keeps pictures and adds them. When this returns, they are on disk."""
        if self._folder is None:
            raise ProblemError(
                422, "no-model", "pictures cannot be added: this index has no model, or no folder"
            )
        return vars(await self._adding(uploads))

    async def remove(self, ids: Sequence[Id], files: bool) -> dict[str, Any]:
        return await self._others(partial(self._remove, ids, files))

    async def decide(self, decisions: Mapping[Id, Decision | None]) -> None:
        def work() -> None:
            try:
                self._index.decide(decisions)
            except KeyError as error:
                raise no_image(error.args[0]) from None

        await self._others(work)

    def _add(self, requests: Sequence[Sequence[Upload]]) -> list[_Result | Exception]:
        """Adds what several callers sent, in one run."""
        for uploads in requests:
            for upload in uploads:
                self._keep(upload)
        kept: dict[str, Upload] = {}
        for uploads in requests:
            for upload in uploads:
                if upload.path is not None:
                    kept.setdefault(str(upload.path), upload)
        outcome: dict[str, str] = {}
        reasons: dict[str, str] = {}
        try:
            if kept:
                added = self._index.add(
                    list(kept),
                    metadata=[upload.metadata for upload in kept.values()],
                    ids=list(kept),
                    progress=False,
                )
                for name in ("added", "replaced"):
                    outcome |= dict.fromkeys(map(str, getattr(added, name)), name)
                outcome |= dict.fromkeys(map(str, added.skipped), "unchanged")
                reasons = {failure.name: failure.reason for failure in added.failed}
        finally:  # what is not in the index is not kept
            for path, upload in kept.items():
                if upload.made and path not in outcome and path not in self._index:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
        return [_result(uploads, outcome, reasons) for uploads in requests]

    def _keep(self, upload: Upload) -> None:
        """Writes a picture to the folder, durably, under a name that is not taken."""
        assert self._folder is not None
        try:
            if upload.metadata is not None:
                metadata_json(upload.metadata)
            upload.path, upload.made = keep(self._folder, upload.name, upload.file)
        except ValueError as error:
            upload.failure = str(error)
        except OSError as error:
            upload.failure = error.strerror or "it cannot be written"

    def _remove(self, ids: Sequence[Id], files: bool) -> dict[str, Any]:
        queries = self._index.queries
        rows = [row for id in dict.fromkeys(ids) if (row := queries.row(id)) is not None]
        removed, failed, deleted = [], [], 0
        for row in rows:
            if files and row.path is not None:
                try:
                    delete_indexed(row.path, row.size, row.hash)
                    deleted += 1
                except FileNotFoundError:
                    pass
                except (OSError, ValueError) as error:
                    reason = getattr(error, "strerror", None) or str(error)
                    failed.append({"name": str(row.id), "reason": reason})
                    continue
            removed.append(row.id)
        count = self._index.remove(removed) if removed else 0
        return {"removed": count, "files": deleted, "failed": failed}


def _result(
    uploads: Sequence[Upload], outcome: Mapping[str, str], reasons: Mapping[str, str]
) -> _Result:
    result = _Result()
    for upload in uploads:
        path = None if upload.path is None else str(upload.path)
        if path is None or path not in outcome:
            reason = upload.failure or reasons.get(path or "", "it cannot be read")
            result.failed.append({"name": upload.name, "reason": reason})
        else:
            getattr(result, outcome[path]).append(path)
    return result


def safe_path(name: str) -> Path:
    """The relative path under which a picture is kept. Raises ValueError for a name that leads
    elsewhere or that some system cannot store."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or not all(parts) or len(parts) > DEEPEST:
        raise ValueError(
            f"the name of a file must be a relative path with at most {DEEPEST} parts, none of "
            "them empty"
        )
    for part in parts:
        if part.startswith(".") or part != part.strip() or _UNSAFE.search(part):
            raise ValueError(
                "no part of a file's name may start with a dot, start or end with a space, or have "
                'a control character or one of \\ : * ? " < > |'
            )
        try:
            size = len(part.encode())
        except UnicodeEncodeError:
            raise ValueError("the name of a file must be valid Unicode") from None
        if size > LONGEST:
            raise ValueError(f"a part of a file's name may have at most {LONGEST} bytes")
    return Path(*parts)


def keep(folder: Path, name: str, file: IO[bytes]) -> tuple[Path, bool]:
    """Writes a file into a folder; returns its path and whether it was not there before.

    Nothing is overwritten: if the name is taken by another picture, the file gets a number.
    """
    target = folder / safe_path(name)
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
    _make_folders(folder, target.parent)
    for number in range(1, TRIES):
        path = target if number == 1 else target.with_stem(f"{target.stem}-{number}")
        if os.path.lexists(path):
            if not path.is_symlink() and _same(path, digest):
                return path, False
            continue
        file.seek(0)
        with replacing(path) as stream:
            while part := file.read(1 << 20):
                stream.write(part)
        return path, True
    raise ValueError(f"there are {TRIES:,} pictures of this name: choose another")


def _make_folders(folder: Path, parent: Path) -> None:
    """Makes the folders of a picture, none of which may be a link that leads elsewhere."""
    missing = [one for one in (parent, *parent.parents) if not one.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    real = os.path.realpath(parent)
    if real != os.path.join(os.path.realpath(folder), os.path.relpath(parent, folder)).rstrip("/."):
        raise ValueError("a folder of this name leads elsewhere: choose another name")
    for one in missing:
        sync_folder(one.parent)


def _same(path: Path, digest: bytes) -> bool:
    try:
        return hashlib.sha256(read_file(path)).digest() == digest
    except OSError:
        return False


def delete_indexed(path: str, size: int | None, digest: bytes | None) -> None:
    """Deletes a file if it is what was indexed. Raises ValueError if it is not."""
    if os.path.islink(path):
        raise ValueError("it is a symbolic link")
    if os.stat(path).st_size != size or hashlib.sha256(read_file(path)).digest() != digest:
        raise ValueError("it has changed since it was indexed: add it again")
    os.unlink(path)
