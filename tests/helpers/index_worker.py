"""A process that changes an index and is killed while it does. Forks one for each line of stdin.

A task is a list of operations on an index; what is done is told to a log, one line each, with no
buffer between that a kill could take along.
"""

import json
import os
import sys
from typing import Any

import numpy as np
import torch

import mchindex.index.adding
import mchindex.index.facade
import mchindex.index.table
import mchindex.storage.schema
import mchindex.storage.store
from helpers.indexes import codes_for, drawn, tiny_model
from mchindex import Commit, MCHIndex


def perform(index: MCHIndex, op: dict[str, Any], tell: Any) -> None:
    kind, ids, version = op["op"], op["ids"], op.get("version", 0)
    if kind in ("add", "update"):

        def progress(step: Commit) -> None:
            tell({"stored": step.ids})

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

    def tell(what: Any) -> None:
        os.write(log, json.dumps(what).encode() + b"\n")

    mchindex.index.table.SNAPSHOT_AFTER = task["snapshot_after"]
    mchindex.storage.schema.CHECKPOINT = task["checkpoint"]
    mchindex.index.adding.PATIENCE = 1e9
    with MCHIndex.open(task["index"], tiny_model()) as index:
        tell("open")
        for number, op in enumerate(task["operations"]):
            tell({"begin": number})
            perform(index, op, tell)
            tell({"done": number})
    tell("closed")


def main() -> None:
    with MCHIndex(tiny_model()) as index:
        index.add([drawn(0)], progress=False)  # all that is loaded late is loaded now
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
