"""Copies an index while it is in use."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mchindex.catalogue import shipped_name
from mchindex.errors import StoreError
from mchindex.files import sync_folder
from mchindex.index.table import Saved
from mchindex.storage.connection import is_full
from mchindex.storage.schema import FILE
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.inference.encoder import Encoder

MODEL_FOLDER = "model"  # in the index's folder, unless the model ships with mchindex


def back_up(store: Store, target: Path, model: Encoder | None = None) -> None:
    """Copies the store, its model and its snapshot to a new folder, which appears when complete.

    `model` is the model of an index in memory, or of one that was moved, which has no model folder
    to copy.
    """
    folder = store.folder if store.is_in_place() else None
    if target.exists():
        raise FileExistsError(f"{target} already exists: choose a new folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as parent:
            new = Path(parent) / "index"
            new.mkdir()
            store.copy_to(new / FILE)
            if folder is not None and (folder / MODEL_FOLDER).is_dir():
                shutil.copytree(folder / MODEL_FOLDER, new / MODEL_FOLDER)
            elif model is not None and shipped_name(model.fingerprint) is None:
                model.save(new / MODEL_FOLDER)
            _copy_snapshot(folder, new)
            for file in new.rglob("*"):
                _sync(file)
            sync_folder(new)
            os.rename(new, target)
        sync_folder(target.parent)
    except (OSError, StoreError) as error:
        # Only the copy is written to; SQLite's errors name the source.
        if not is_full(error) and getattr(error, "errno", None) != errno.ENOSPC:
            raise
        raise StoreError(f"{target}: the disk is full: free some space") from error


def _copy_snapshot(folder: Path | None, new: Path) -> None:
    """Copies the snapshot that the copied store refers to. If a writer has replaced it in the
    meantime, the copy has no snapshot and takes longer to open."""
    with contextlib.closing(Store(new)) as copy:
        saved = Saved.of_store(copy)
        if saved is None:
            return
        try:
            if folder is None:
                raise FileNotFoundError
            shutil.copyfile(folder / saved.file, new / saved.file)
            if saved.fine is not None:
                shutil.copyfile(folder / saved.fine_file, new / saved.fine_file)
        except (FileNotFoundError, shutil.SpecialFileError):
            (new / saved.file).unlink(missing_ok=True)
            with copy.writer():
                copy.set(snapshot=None)


def _sync(path: Path) -> None:
    if path.is_file():
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
    else:
        sync_folder(path)
