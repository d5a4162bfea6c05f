"""Threads share a budget: together they never hold more than there is, and none waits for ever."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mchindex.budget import Budget


def test_threads_together_never_hold_more_than_the_total() -> None:
    budget, lock = Budget(10), threading.Lock()
    held = most = 0

    def work(amount: int) -> None:
        nonlocal held, most
        with budget.held(amount):
            with lock:
                held += min(amount, 10)
                most = max(most, held)
            threading.Event().wait(0.001)
            with lock:
                held -= min(amount, 10)

    amounts = np.random.default_rng(0).integers(0, 25, 200).tolist()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, amounts))
    assert held == 0
    assert most == 10


def test_more_than_the_total_is_held_alone() -> None:
    budget = Budget(10)
    entered = threading.Event()

    def small() -> None:
        with budget.held(1):
            entered.set()

    with budget.held(1000):
        thread = threading.Thread(target=small)
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(30)
    thread.join()


def test_small_amounts_do_not_keep_a_large_one_waiting() -> None:
    budget, stop = Budget(10), threading.Event()

    def small() -> None:
        while not stop.is_set():
            with budget.held(6):
                pass

    threads = [threading.Thread(target=small) for _ in range(4)]
    for thread in threads:
        thread.start()
    done = threading.Event()

    def large() -> None:
        with budget.held(10):
            done.set()

    last = threading.Thread(target=large)
    last.start()
    try:
        assert done.wait(30)
    finally:
        stop.set()
        for thread in (*threads, last):
            thread.join()


def test_an_exception_returns_what_was_held() -> None:
    budget = Budget(3)
    for _ in range(5):
        try:
            with budget.held(3):
                raise ValueError
        except ValueError:
            continue
    with budget.held(3):
        pass
