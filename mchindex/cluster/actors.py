"""Shards as actors of Ray.

An actor has a name, outlives the process that made it, and is restarted when it dies; it then opens
its index again. Calls are repeated here and not by Ray, which would wait for the same actor: a
search can continue with a replica. Every method of `Shard` may be called again.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mchindex.cluster.encoding import Pool
from mchindex.cluster.lines import Lines
from mchindex.cluster.manifest import Manifest
from mchindex.cluster.shard import Shard, create
from mchindex.cluster.shards import Opener, Shards, model_of
from mchindex.errors import MissingExtraError, ShardUnavailableError, StaleWriteError, StoreError

NAMESPACE = "mchindex"
TOGETHER = 16  # calls that an actor answers at the same time
SHARE = 0.001  # of a resource that a shard needs: it says where to run, not how much to use
STARTING = 240.0  # seconds more that Ray may take to start the first processes
PAUSE = 0.05  # seconds before an actor that has failed is asked again
FIRST = 0.25  # seconds that a call is thought to take before there has been one
HEDGE = 0.25  # seconds, besides four times the usual ones, after which a replica is asked, too


def ray() -> Any:
    """The package ray, which the extra `cluster` installs."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(f"a cluster needs Ray ({error})", "cluster") from None


def connect(address: str) -> Any:
    """Joins a running Ray, or starts one for this process; returns the package."""
    package = ray()
    if not package.is_initialized():
        local = {"include_dashboard": False} if address == "local" else {}
        try:
            package.init(
                address, namespace=NAMESPACE, log_to_driver=False, logging_level="error", **local
            )
        except ConnectionError as error:
            raise StoreError(
                f"there is no Ray at {address!r}: run `ray start --head`, or name its address "
                f"({error})"
            ) from None
    return package


class ActorOpener(Opener):
    """Opens shards as actors of the Ray at an address."""

    def __init__(self, address: str, timeout: float) -> None:
        self._address, self._timeout = address, timeout

    def create(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        self._each(
            manifest,
            {
                name: (
                    create,
                    folder / name,
                    manifest.facts,
                    manifest.place(name),
                    model_of(folder),
                )
                for name in names
            },
        )

    def open(
        self, folder: Path, manifest: Manifest, names: Sequence[str], *, filling: bool = False
    ) -> Shards:
        package = connect(self._address)
        return _ActorShards(package, folder, manifest, names, self._timeout, filling)

    def delete(self, folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
        for name in names:
            self._end(f"{_actor(folder, manifest, name)}:", 0)
        self._each(manifest, {name: (shutil.rmtree, folder / name, True) for name in names})

    def end_replicas(self, folder: Path, manifest: Manifest) -> None:
        for name in manifest.shards:
            self._end(f"{_actor(folder, manifest, name)}:", 1 + manifest.replicas)

    def _end(self, prefix: str, first: int) -> None:
        """Ends the actors of a shard for ever, from a copy on."""
        package = connect(self._address)
        for found in package.util.list_named_actors(all_namespaces=True):
            name = found["name"]
            ours = found["namespace"] == NAMESPACE and name.startswith(prefix)
            if ours and int(name.removeprefix(prefix)) >= first:
                with contextlib.suppress(ValueError):  # it has ended meanwhile
                    package.kill(package.get_actor(name, NAMESPACE), no_restart=True)

    def encoders(
        self, folder: Path, manifest: Manifest, number: int | None, device: str | None
    ) -> Pool:
        """Processes that encode images, each with one thread."""
        package = connect(self._address)
        gpu = device is not None and device.startswith("cuda")
        there = int(package.cluster_resources().get("GPU" if gpu else "CPU", 0))
        return Pool(package, number or max(1, there), (str(folder), manifest, device, 1), gpu)

    def _each(self, manifest: Manifest, calls: Mapping[str, tuple[Any, ...]]) -> None:
        """Calls a function for each shard, where its disk is."""
        package = connect(self._address)
        waiting = [
            package.remote(function)
            .options(num_cpus=0, resources=_resources(manifest, name))
            .remote(*given)
            for name, (function, *given) in calls.items()
        ]
        needed = set(manifest.resources.values())
        try:
            package.wait(waiting, num_returns=len(waiting), timeout=self._timeout)
            # The first process of a node may take long to start, if the node is there.
            there = needed <= package.cluster_resources().keys()
            package.get(waiting, timeout=STARTING if there else 0)
        except package.exceptions.RayTaskError as error:
            if "failed to import" in str(error.cause):
                raise StoreError(
                    "a node of Ray cannot import mchindex: install the same version on every node, "
                    "and do not start in a folder that holds the sources of mchindex, which Ray "
                    "would import instead"
                ) from error
            raise error.cause from None
        except package.exceptions.GetTimeoutError:
            raise StoreError(
                f"Ray did not start the shards in {self._timeout:g} s"
                + (f": are there nodes with {', '.join(sorted(needed))}?" if needed else "")
            ) from None


def _actor(folder: Path, manifest: Manifest, name: str) -> str:
    """What the names of a shard's actors start with: a copy of a cluster has actors of its own."""
    return f"{manifest.uuid}:{folder / name}"


def _resources(manifest: Manifest, name: str) -> dict[str, float]:
    needed = manifest.resources.get(name)
    return {} if needed is None else {needed: SHARE}


class _ActorShards(Shards):
    """Shards that are actors, each with its replicas."""

    def __init__(
        self,
        package: Any,
        folder: Path,
        manifest: Manifest,
        names: Sequence[str],
        timeout: float,
        filling: bool,
    ) -> None:
        super().__init__(folder, manifest, names)
        self._ray, self._timeout, self._filling = package, timeout, filling
        self._copies = 1 if filling else 1 + manifest.replicas
        self._turns = itertools.count()
        self._usual: dict[str, float] = {}  # seconds that calls of a method take
        self._handles: dict[tuple[int, int], Any] = {}
        self._lines = Lines(package, self._handle)
        for i in range(len(self.names)):
            for copy in range(self._copies):
                self._handle(i, copy)

    def _handle(self, shard: int, copy: int) -> Any:
        """The actor of a shard (copy 0), or of one of its replicas, which is made if needed."""
        if (shard, copy) not in self._handles:
            name = self.names[shard]
            shared = {
                "name": f"{_actor(self.folder, self.manifest, name)}:{copy}",
                "namespace": NAMESPACE,
                "lifetime": "detached",
                "get_if_exists": True,
            }
            self._handles[shard, copy] = (
                self._ray.remote(Shard)
                .options(
                    **({} if self._filling else shared),  # Ray ends others with their driver
                    max_restarts=-1,
                    max_concurrency=TOGETHER,
                    num_cpus=0,
                    resources=_resources(self.manifest, name),
                    scheduling_strategy="SPREAD",
                )
                .remote(str(self.folder / name), self.manifest.place(name))
            )
        return self._handles[shard, copy]

    def ask(
        self, name: str, arguments: Mapping[int, Sequence[Any]], *, change: bool = False
    ) -> dict[int, Any]:
        self.check_current()
        copies = 1 if change else self._copies
        began, usual = time.monotonic(), self._usual.get(name, FIRST)
        hedge, turn = HEDGE + 4 * usual, next(self._turns)
        answers: dict[int, Any] = {}
        if not change:
            places = {(i, turn % copies): given for i, given in arguments.items()}
            found = self._lines.ask(name, places, min(hedge, self._timeout))
            answers = {shard: answer for (shard, _), answer in found.items()}
        if len(answers) < len(arguments):
            left = {i: given for i, given in arguments.items() if i not in answers}
            calls = _Calls(self, self._ray, name, left, copies)
            calls.answers.update(answers)
            answers = calls.run(self._timeout, hedge, turn + 1)
        # One call that waited for the restart of an actor says little of the others.
        self._usual[name] = 0.9 * usual + 0.1 * min(time.monotonic() - began, 2 * usual)
        return answers

    def send(self, shard: int, copy: int, name: str, arguments: Sequence[Any]) -> Any:
        return self._handle(shard, copy).call.remote(name, *arguments)

    def forget(self, shard: int, copy: int) -> None:
        """Looks an actor up, or makes it, when it is needed again."""
        self._handles.pop((shard, copy), None)

    def close(self) -> None:
        self._lines.close()
        for handle in self._handles.values() if self._filling else ():
            self._ray.kill(handle, no_restart=True)
        self._handles.clear()


class _Calls:
    """One method, called of several shards until each has answered or the time is over."""

    def __init__(
        self,
        shards: _ActorShards,
        package: Any,
        name: str,
        arguments: Mapping[int, Sequence[Any]],
        copies: int,
    ) -> None:
        self._shards, self._ray, self._name, self._arguments = shards, package, name, arguments
        self._copies = copies
        self.answers: dict[int, Any] = {}
        self._pending: dict[Any, tuple[int, int]] = {}  # a call to the shard and the copy
        self._failures: dict[int, str] = {}
        self._stale: dict[int, StaleWriteError] = {}

    def run(self, timeout: float, hedge: float, turn: int) -> dict[int, Any]:
        """Asks another copy of a shard, too, if one has not answered after `hedge` seconds: a call
        of an actor that is being restarted waits for it."""
        end = time.monotonic() + timeout
        for shard in self._arguments:
            self._send(shard, turn % self._copies)
        hedged = self._copies == 1
        while self._pending and (left := end - time.monotonic()) > 0:
            ready, _ = self._ray.wait(list(self._pending), timeout=min(hedge, left))
            for call in ready:
                self._take(call)
            if not ready and not hedged:
                hedged = True
                for shard, copy in list(self._pending.values()):
                    self._send(shard, (copy + 1) % self._copies)
        if missing := sorted(self._arguments.keys() - self.answers.keys() - self._stale.keys()):
            self._shards.check_current()
            reasons = {self._failures.get(i, f"no answer in {timeout:g} s") for i in missing}
            unavailable = ShardUnavailableError(missing, "; ".join(sorted(reasons)))
            unavailable.answers = self.answers
            raise unavailable
        for stale in self._stale.values():
            stale.answers = self.answers
            raise stale
        return self.answers

    def _send(self, shard: int, copy: int) -> None:
        call = self._shards.send(shard, copy, self._name, self._arguments[shard])
        self._pending[call] = shard, copy

    def _take(self, call: Any) -> None:
        if call not in self._pending:  # another copy has answered
            return
        shard, copy = self._pending.pop(call)
        errors = self._ray.exceptions
        try:
            self.answers[shard] = self._ray.get(call)
        except errors.RayTaskError as error:
            if not isinstance(error.cause, StaleWriteError):
                raise error.cause from None
            self._stale[shard] = error.cause
        except errors.RayError as error:
            self._shards.check_current()  # a rebalance ends the shards that it has replaced
            self._failures[shard] = str(error).strip().splitlines()[-1]
            self._shards.forget(shard, copy)
            if any(other == shard for other, _ in self._pending.values()):
                return
            if not getattr(error, "actor_init_failed", False) or self._copies > 1:
                time.sleep(PAUSE)
                self._send(shard, (copy + 1) % self._copies)
            return
        self._pending = {c: to for c, to in self._pending.items() if to[0] != shard}
