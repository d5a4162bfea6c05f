"""An encoded query as text, so that a search can be repeated without its picture."""

from __future__ import annotations

import base64
import binascii

import numpy as np
from numpy.typing import NDArray

from mchindex.index.ranking import Query
from mchindex.server.problems import ProblemError

_START = "q1."
_STEPS = 15  # the engine rounds the magnitudes of a query to as many steps, so nothing is lost


class Tokens:
    """Writes and reads the tokens of one index."""

    def __init__(self, bits: int, fine_bits: int, fingerprint: str | None) -> None:
        self._bits, self._fine_bits = bits, fine_bits
        self._model = (fingerprint or "").encode()[:8].ljust(8, b"-")

    def write(self, query: Query) -> str:
        """The first row of a query as text."""
        fine = b"" if query.fine is None else _rounded(query.fine[0]).tobytes()
        return _START + _encoded(self._model + query.codes[0].tobytes() + fine)

    def read(self, text: str) -> Query:
        """A token, or a code in hexadecimal, as a query. Raises a 422 problem."""
        if not text.startswith(_START):
            return Query(self._hexadecimal(text))
        try:
            data = _decoded(text.removeprefix(_START))
        except (binascii.Error, ValueError):
            raise _invalid("it is damaged") from None
        model, rest = data[:8], data[8:]
        size = self._bits // 8
        if model != self._model or len(rest) not in (size, size + self._fine_bits):
            raise _invalid("it is of another index")
        codes = np.frombuffer(rest[:size], np.uint8)[None]
        if len(rest) == size:
            return Query(codes)
        return Query(codes, np.frombuffer(rest[size:], np.int8).astype(np.float32)[None])

    def _hexadecimal(self, text: str) -> NDArray[np.uint8]:
        try:
            code = bytes.fromhex(text)
        except ValueError:
            code = b""
        if len(code) != self._bits // 8:
            raise _invalid(f"a code in hexadecimal has {self._bits // 4} digits here")
        return np.frombuffer(code, np.uint8)[None]


def _rounded(fine: NDArray[np.float32]) -> NDArray[np.int8]:
    sizes = np.abs(fine)
    largest = sizes.max(initial=np.float32(0))
    if largest > 0:  # as the engine rounds: halves away from zero
        sizes = np.floor((sizes / largest * np.float32(_STEPS)).astype(np.float64) + 0.5)
    steps: NDArray[np.int8] = np.copysign(sizes, fine).astype(np.int8)
    return steps


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode((text + "=" * (-len(text) % 4)).encode(), altchars=b"-_", validate=True)


def _invalid(reason: str) -> ProblemError:
    return ProblemError(
        422, "invalid-codes", f"codes must be the query.codes of an answer of this index: {reason}"
    )
