"""What int8 costs, as `precision.py` reports it."""

from typing import Any

import pytest

from precision import changes


def test_changes_are_shares_of_the_figures_of_floats() -> None:
    def row(precision: str, copies: int, rank: str, share: float) -> dict[str, Any]:
        figures = {"quadrant": share}
        return {"precision": precision, "copies": copies, "rank": rank, "figures": figures}

    shares = {("float", 4): 0.5, ("float", 9): 0.8, ("int8", 4): 0.45, ("int8", 9): 0.88}
    rows = [row(*key, rank, share) for key, share in shares.items() for rank in ("best", "fine")]
    found = changes(rows)
    assert list(found) == ["4", "9"]
    for rank in ("best", "fine"):
        assert found["4"][rank]["quadrant"] == pytest.approx(-0.1)
        assert found["9"][rank]["quadrant"] == pytest.approx(0.1)
