"""Runs writers and readers at the same time, in threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event


def run(writers: list[Callable[[], None]], readers: list[Callable[[], None]]) -> None:
    """Runs each writer once, and each reader repeatedly until the writers are done.

    Raises the exception of any of them.
    """
    done = Event()

    def repeat(reader: Callable[[], None]) -> None:
        reader()
        while not done.is_set():
            reader()

    with ThreadPoolExecutor(len(writers) + len(readers)) as pool:
        reading = [pool.submit(repeat, reader) for reader in readers]
        writing = [pool.submit(writer) for writer in writers]
        try:
            for future in writing:
                future.result()
        finally:
            done.set()
        for future in reading:
            future.result()
