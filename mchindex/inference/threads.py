"""How many threads encode images."""

from __future__ import annotations

import os
import sys

_most: int | None = None  # that `set_threads` allowed


def set_threads(threads: int) -> None:
    """Sets how many threads encode images in this process, with torch too if it is loaded."""
    global _most
    _most = threads
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)


def most_threads() -> int | None:
    """What `set_threads` set; None if it has not been called."""
    return _most


def cores() -> int:
    """Threads to use: as many as this process has cores, or as `set_threads` allowed."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(available or 1, _most or available or 1)
