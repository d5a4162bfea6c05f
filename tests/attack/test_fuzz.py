"""A stranger's file crashes nothing and raises only the documented errors (fuzz.py)."""

from pathlib import Path

import pytest

from attack.faults import run_module
from attack.fuzz import TARGETS

EXAMPLES = {  # about two seconds of CPU time each
    "export": 80, "model": 80, "snapshot": 300, "store": 80, "picture": 400, "metadata": 100,
    "layout": 300, "filter": 300, "fine": 60,
}  # fmt: skip


def attack(folder: Path, target: str, seed: int, examples: int) -> None:
    refused, accepted = map(int, run_module("attack.fuzz", target, folder, seed, examples).split())
    # Otherwise the input would be too damaged, or not damaged enough, to test much.
    assert refused > examples // 20
    assert accepted > 0


@pytest.mark.parametrize("target", TARGETS)
def test_strange_input_is_read_or_refused(tmp_path: Path, target: str) -> None:
    attack(tmp_path, target, 0, EXAMPLES[target])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_much_strange_input_is_read_or_refused(tmp_path: Path, target: str) -> None:
    attack(tmp_path, target, 1, 15 * EXAMPLES[target])
