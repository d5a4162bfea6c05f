"""The callers of bench/serve.py: what they send is answered, and what they add is counted."""

import asyncio
from pathlib import Path

import serve
from helpers.service import PICTURES, draw, make_library, running


def test_callers_search_while_another_adds(tmp_path: Path) -> None:
    index = make_library(tmp_path)
    new = [str(file) for file in draw(tmp_path / "new", PICTURES, 3)]
    with running(index, uploads=tmp_path / "kept") as service:
        files = service.ids()
        latencies, added, errors = asyncio.run(serve.load(service.url, files, new, 2.0))
        assert errors == []
        assert len(latencies) >= serve.CALLERS
        assert len(added) == len(new)
        assert len(service.index) == PICTURES + 1 + len(new)


def test_the_encoder_is_measured_by_itself(tmp_path: Path) -> None:
    index = make_library(tmp_path)
    files = [str(file) for file in (tmp_path / "pictures").iterdir()]
    assert min(serve.encoder(index, files)) > 0
