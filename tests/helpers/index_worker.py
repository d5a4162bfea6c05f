"""Forks a process for each line of stdin, which is a task: a list of operations on an index.

The process carries out the task until it is done or killed, and searches in another thread. It
writes what it has done to a log, one unbuffered line at a time, so that a kill loses none of it. If
an operation fails, as on a full disk, it writes what the index then holds.
"""

import json
import os
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np
import torch

import mchindex.index.adding
import mchindex.index.facade
import mchindex.index.table
import mchindex.storage.schema
import mchindex.storage.store
from helpers.indexes import codes_for, drawn, tiny_fine_model
from mchindex import Commit, MCHIndex
from mchindex.errors import MCHError


def perform(index: MCHIndex, op: dict[str, Any], record: Any) -> None:
    kind, ids, version = op["op"], op["ids"], op.get("version", 0)
    if kind in ("add", "update"):

        def progress(step: Commit) -> None:
            record({"stored": step.ids})

        function = index.add if kind == "add" else index.update
        function(
            (drawn(i, version) for i in ids), ids, metadata={"version": version},
            batch=op["batch"], progress=progress,
        )  # fmt: skip
    elif kind == "codes":
        rows = [codes_for(i, version) for i in ids]
        index.add_codes(
            np.repeat(ids, [len(r) for r in rows]),
            np.concatenate(rows),
            np.concatenate([np.arange(len(r)) for r in rows]),
            metadata=[{"version": version}] * len(ids),
        )
    else:
        index.remove(ids)


def work(task: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def record(event: Any) -> None:
        os.write(log, json.dumps(event).encode() + b"\n")

    small: list[tuple[ModuleType, str, float]] = [
        (mchindex.index.table, "SNAPSHOT_AFTER", task["snapshot_after"]),
        (mchindex.storage.schema, "CHECKPOINT", task["checkpoint"]),
        (mchindex.storage.store, "RESERVE", 0),  # so that the disk fills up in the midst of a write
        (mchindex.index.adding, "PATIENCE", 1e9),
    ]
    for module, name, value in small:
        setattr(module, name, value)
    try:
        index = MCHIndex.open(task["index"], tiny_fine_model(), wait=10)
    except MCHError as error:  # there may be no room to create it or its log
        record({"error": str(error)})
        return
    with index:
        record("open")
        over = threading.Event()
        searching = threading.Thread(target=search, args=(index, over, record))
        searching.start()
        for number, op in enumerate(task["operations"]):
            record({"begin": number})
            try:
                perform(index, op, record)
            except MCHError as error:
                record({"failed": str(error), "left": state(index)})
            else:
                record({"done": number})
        over.set()
        searching.join()
    record("closed")


def search(index: MCHIndex, over: threading.Event, record: Any) -> None:
    while not over.wait(0.005):
        try:
            distances = index.search_codes(codes_for(1)[0], 5).distances
            assert distances == sorted(distances)
        except Exception as error:
            record({"error": repr(error)})


def state(index: MCHIndex) -> list[tuple[Any, ...]]:
    return [
        (image.id, "codes" if image.size is None else "image", image.metadata["version"])
        for image in index.images()
    ]


def main() -> None:
    with MCHIndex(tiny_fine_model()) as index:
        index.add([drawn(0)], progress=False)  # imports and loads everything before the forks
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                work(json.loads(line))
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
