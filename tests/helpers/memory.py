"""The memory that a process has taken."""

import resource
import sys
from pathlib import Path


def peak() -> int:
    """The most bytes of memory that this process has had at a time.

    On Linux, `getrusage` would count what the process that started this one had, too.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
