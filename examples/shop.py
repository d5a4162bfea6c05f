"""A shop that finds products by a picture: an application of FastAPI around an index.

    pip install 'mchindex[serve]'
    uvicorn shop:app

    curl -F file=@shoe.jpg -F price=59 localhost:8000/products/17
    curl -F file=@street.jpg 'localhost:8000/similar?most=100'

Routes are plain functions, not coroutines: FastAPI runs them in threads, and a search is CPU work.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Form, HTTPException, Request, UploadFile
from fastapi.responses import JSONResponse

from mchindex import ImageError, MCHIndex


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One index for all requests. What it returned for is on disk, so stopping needs no care."""
    with MCHIndex.open(os.environ.get("SHOP_INDEX", "shop.mch"), wait=10) as index:
        app.state.index = index
        yield


app = FastAPI(title="Shop", lifespan=lifespan)


@app.exception_handler(ImageError)
def unreadable(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 422)


@app.post("/products/{number}", status_code=201)
def add(number: int, file: UploadFile, price: Annotated[float, Form()]) -> dict[str, int]:
    """Stores the picture of a product, or replaces it. The picture itself is not kept."""
    app.state.index.add(file.file, ids=number, metadata={"price": price}, progress=False)
    return {"products": len(app.state.index)}


@app.delete("/products/{number}")
def remove(number: int) -> dict[str, int]:
    if not app.state.index.remove(number):
        raise HTTPException(404, f"there is no product {number}")
    return {"products": len(app.state.index)}


@app.post("/similar")
def similar(file: UploadFile, k: int = 5, most: float | None = None) -> list[dict[str, Any]]:
    """The products that look most like a picture, with a price of at most `most`."""
    limits = {} if most is None else {"filter": {"price": {"<=": most}}}
    hits = app.state.index.search(file.file, k=min(k, 100), **limits)
    return [
        {"product": hit.id, "score": round(hit.score, 3), "price": hit.metadata["price"]}
        for hit in hits
    ]
