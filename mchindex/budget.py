"""An amount that threads share, so that what they do at the same time stays within a limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """A total of something, such as bytes of memory, of which each thread holds a part."""

    def __init__(self, total: int) -> None:
        self.total = self._free = total
        self._turn = threading.Lock()
        self._returned = threading.Condition()

    @contextmanager
    def held(self, amount: int) -> Iterator[None]:
        """Waits until this amount is free, and holds it. More than the total means the total.

        A thread that waits while it holds a part may wait for ever.
        """
        amount = min(amount, self.total)
        # Those that come later wait for their turn, or they would take what a large amount needs.
        with self._turn, self._returned:
            self._returned.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            with self._returned:
                self._free += amount
                self._returned.notify()
