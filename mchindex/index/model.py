"""Which model fills an index: settled when the index is created, and checked when it is opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from mchindex.catalogue import Precision, check_precision, find, read_config, shipped_name
from mchindex.errors import ModelMismatchError, StoreDamagedError, StoreError
from mchindex.index.backup import MODEL_FOLDER
from mchindex.index.identity import FineIdentity, Identity
from mchindex.index.ranking import Query
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.inference import Encoder

DEFAULT_MODEL = "coco-64"
AnyModel: TypeAlias = Union["Encoder", str, os.PathLike[str]]  # a model, its name or its folder


def _place_of(identity: Identity) -> str:
    """The name of the model that filled an index, by its fingerprint if it ships: this version may
    ship another model under the name that the index knows."""
    ships = None if identity.fingerprint is None else shipped_name(identity.fingerprint)
    return ships or identity.name or DEFAULT_MODEL


class IndexModel:
    """The identity of an index, and the model behind it."""

    def __init__(
        self,
        store: Store,
        model: AnyModel | None,
        bits: int | None,
        wait: float,
        device: str | None,
        precision: Precision | None,
    ) -> None:
        """Reads the identity from the store, or writes it if the index is new.

        Raises ModelMismatchError if `model`, `bits` or `precision` are not those of the index.
        """
        check_precision(precision)
        self._store, self._wait, self._device, self._precision = store, wait, device, precision
        self._lock = threading.RLock()
        self._model: Encoder | None = None
        self._saved: Encoder | None = None  # the same, with the xi that it was saved with
        self._fine_made: str | None = None  # fingerprint of the model's fine hash, once needed
        self.identity = self._identified(model, bits)
        self.fine = FineIdentity.of_store(store)  # None: the index has no fine codes

    def _identified(self, model: AnyModel | None, bits: int | None) -> Identity:
        """The identity of the index: read from it, or written to it if it is new."""
        identity = Identity.of_store(self._store)
        if identity is None:
            if self._store.get("uuid") is None or len(self._store):
                raise StoreDamagedError(
                    f"{self._store.name} is damaged: it does not say which model filled it"
                )
            with self._store.writer(max(self._wait, 10.0)):
                identity = Identity.of_store(self._store)  # another process may have been first
                if identity is None:
                    identity = self._new_identity(model, bits)
                    self._keep_model()  # first: an index that names a model must have it
                    fine = None if self._model is None else FineIdentity.of_model(self._model)
                    facts = {} if fine is None else {"fine": fine.to_json()}
                    self._store.set(model=identity.to_json(), **facts)
                    return identity
        if bits is not None and bits != identity.bits:
            raise ModelMismatchError(
                f"{self._store.name} holds codes of {identity.bits} bits, not {bits}"
            )
        if self._precision not in (None, identity.precision):
            raise ModelMismatchError(
                f"{self._store.name} was filled with precision {identity.precision}, not "
                f"{self._precision}: leave it out, or create a new index"
            )
        if model is not None:
            self._use(_place_of(identity) if model == identity.name else model, identity)
        return identity

    def _new_identity(self, model: AnyModel | None, bits: int | None) -> Identity:
        if model is None and bits is not None:
            return Identity.of_codes(bits)
        self._model = self._saved = self._loaded(
            DEFAULT_MODEL if model is None else model, self._precision
        )
        if self._precision not in (None, self._model.precision):
            raise ValueError(
                f"the model has precision {self._model.precision}, not {self._precision}"
            )
        if bits is not None and bits != self._model.bits:
            raise ValueError(f"the model's codes have {self._model.bits} bits, not {bits}")
        name = shipped_name(self._model.fingerprint)
        if name is None and isinstance(model, (str, os.PathLike)):
            name = os.path.basename(os.path.abspath(model))
        return Identity.of_model(self._model, name)

    def _loaded(self, model: AnyModel, precision: Precision | None) -> Encoder:
        from mchindex.inference import load_model

        if isinstance(model, (str, os.PathLike)):
            return load_model(model, device=self._device, precision=precision)
        return model

    def _keep_model(self) -> None:
        """Copies a model that does not ship into the index, which then needs no other files."""
        folder = self._store.folder
        if folder is None or self._model is None:
            return
        if shipped_name(self._model.fingerprint) is None:
            self._model.save(folder / MODEL_FOLDER)

    @property
    def fine_bits(self) -> int:
        """The bits of the fine codes that the model makes; 0 if it makes none or is not there.

        The model need not be loaded for this.
        """
        if self._model is not None:
            kind = self._model.fine_kind
            return 0 if kind is None else kind[0]
        own = None if self._store.folder is None else self._store.folder / MODEL_FOLDER
        place = own if own is not None and own.is_dir() else find(_place_of(self.identity))
        try:
            config = read_config(place)
            same = config["fingerprint"] == self.identity.fingerprint
            return int(config["fine"]["bits"]) if same else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def fine_agrees(self, fine: FineIdentity | None) -> bool:
        """Whether the model, which is loaded, makes fine codes of this kind."""
        if fine is None:
            return False
        if self._fine_made is None:  # hashing its weights for every query would take longer
            kind = self.model.fine_kind
            self._fine_made = "" if kind is None else kind[1]
        return self._fine_made == fine.fingerprint

    def encode_queries(
        self, images: Iterable[Any], region: Any, fine: FineIdentity | None
    ) -> Query:
        """Images as queries of an index with fine codes of this kind."""
        codes, projections = self.model.encode_queries(images, region)
        return Query(codes, projections if self.fine_agrees(fine) else None)

    def take_fine(self) -> FineIdentity | None:
        """Within the writer's lock: the fine codes that images to add get; None for none.

        Raises ModelMismatchError if the index has fine codes of another kind.
        """
        # Once an index has fine codes, it keeps them.
        kind, old = self.model.fine_kind, self.fine or FineIdentity.of_store(self._store)
        if kind is None and old is not None:
            raise ModelMismatchError(
                f"{self._store.name} has fine codes, and this copy of its model makes none: open "
                "the index without naming a model"
            )
        if kind is None:
            return None
        if old is None:
            self._keep_model()  # the one in the index may be without fine codes
            old = FineIdentity.of_model(self.model)
            assert old is not None
            self._store.set(fine=old.to_json())
        elif old.fingerprint != kind[1]:
            raise ModelMismatchError(
                f"{self._store.name} has the fine codes of another version of its model: create a "
                "new index"
            )
        self.fine = old
        return old

    def _use(self, model: AnyModel, identity: Identity) -> None:
        loaded = self._loaded(model, identity.precision)
        if loaded.fingerprint != identity.fingerprint:
            raise ModelMismatchError(
                f"{self._store.name} was filled by {identity.title}, not by this one "
                f"({loaded.fingerprint}): open it without a model, or create a new index"
            )
        if loaded.precision != identity.precision:
            raise ModelMismatchError(
                f"{self._store.name} was filled with precision {identity.precision}, and this "
                f"model has precision {loaded.precision}: open it without a model"
            )
        if loaded.int8_graph != identity.int8_graph:
            raise ModelMismatchError(
                f"{self._store.name} was filled by another version of mchindex, whose int8 codes "
                "differ: create a new index, or use that version"
            )
        self._saved = loaded
        self._model = loaded if identity.xi is None else loaded.with_xi(identity.xi)

    @property
    def saved(self) -> Encoder:
        """The model as it is copied: the xi of the index is in its identity."""
        _ = self.model
        assert self._saved is not None
        return self._saved

    @property
    def model(self) -> Encoder:
        """The model, loaded when it is first needed."""
        with self._lock:
            if self._model is None:
                identity, folder = self.identity, self._store.folder
                if not identity.has_model:
                    raise ValueError(
                        f"{self._store.name} has no model, only codes: use add_codes and "
                        "search_codes"
                    )
                if folder is not None and not self._store.is_in_place():
                    raise StoreError(
                        f"{self._store.name} has been moved, deleted or replaced since it was "
                        "opened: open it again"
                    )
                own = None if folder is None else folder / MODEL_FOLDER
                if own is not None and own.is_dir():
                    self._use(own, identity)
                else:
                    self._use(_place_of(identity), identity)
            assert self._model is not None
            return self._model
