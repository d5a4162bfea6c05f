"""The programs in examples/ run, and do what they say."""

import asyncio
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from fastapi import FastAPI

from helpers.script import run_script
from helpers.service import draw

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert names == {"shop.py", "replace_faiss.py", "search.ipynb"}


def test_the_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_INDEX", str(tmp_path / "shop.mch"))
    asyncio.run(use_shop(load("shop").app, draw(tmp_path / "pictures", 0, 3)))


async def use_shop(app: FastAPI, files: list[Path]) -> None:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        for number, file in enumerate(files, 17):
            sent = {"file": file.read_bytes()}
            added = await client.post(f"/products/{number}", files=sent, data={"price": number})
            assert added.status_code == 201
        assert added.json() == {"products": 3}
        picture = {"file": files[1].read_bytes()}
        found = (await client.post("/similar", files=picture)).json()
        assert found[0] == {"product": 18, "score": 1.0, "price": 18.0}
        cheap = (await client.post("/similar?most=17", files=picture)).json()
        assert [hit["product"] for hit in cheap] == [17]
        refused = await client.post("/similar", files={"file": b"no picture"})
        assert refused.status_code == 422
        assert (await client.delete("/products/18")).json() == {"products": 2}
        assert (await client.delete("/products/18")).status_code == 404


def test_the_change_from_faiss(tmp_path: Path) -> None:
    run_script((EXAMPLES / "replace_faiss.py").read_text("utf-8"), folder=tmp_path)
    assert (tmp_path / "codes.table").exists()


def test_the_notebook(tmp_path: Path) -> None:
    """Its cells run in order, and the last expression of each can be shown."""
    cells = json.loads((EXAMPLES / "search.ipynb").read_text("utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells)
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    show = (
        "import ast, json, sys\n"
        "names = {}\n"
        "for source in json.loads(sys.argv[1]):\n"
        "    tree = ast.parse(source)\n"
        "    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None\n"
        "    exec(compile(tree, 'cell', 'exec'), names)\n"
        "    if last is not None:\n"
        "        value = eval(compile(ast.Expression(last.value), 'cell', 'eval'), names)\n"
        "        shown = getattr(value, '_repr_html_', value.__repr__)()\n"
        "        assert shown\n"
        "        if type(value).__name__ == 'Hits':\n"
        "            assert shown.count('<img') == len(value) > 0\n"
    )
    run_script(show, json.dumps(sources), folder=tmp_path)
