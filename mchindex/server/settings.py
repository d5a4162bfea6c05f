"""What a service may do, for whom, and within which limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

SHORTEST_KEY = 16  # characters: a shorter one could be guessed


@dataclass(frozen=True)
class Limits:
    """Bounds on what callers may ask for. Each has an answer of its own."""

    bytes: int = 64 << 20  # of one picture: 413
    request: int = 256 << 20  # bytes of a whole request: 413
    held: int = 1 << 30  # bytes of all requests that are being received or worked on: 429
    json: int = 16 << 20  # bytes of a JSON body, apart from pictures: 413
    k: int = 1_000  # hits of one search, with those that are skipped: 422
    offset: int = 100_000  # hits that are skipped: 422
    batch: int = 64  # searches of one request, files of one request: 422
    like: int = 64  # pictures in like and unlike together: 422
    ids: int = 10_000  # ids in one request: 422
    queue: int = 512  # requests that wait for the same thing: 429
    requests: int = 1_024  # requests at the same time: 503
    seconds: float = 60.0  # for one request: 503; for receiving it: 408


@dataclass(frozen=True)
class Settings:
    """How an index is served."""

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = field(default=None, repr=False)  # may read and write
    read_key: str | None = field(default=None, repr=False)  # may only read
    allow_delete: bool = False  # whether the key may delete files
    hosts: tuple[str, ...] = ()  # further names by which the service is called
    uploads: Path | None = None  # where added pictures are kept; None: beside the index
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raises ValueError for settings that are not safe."""
        for name, key in (("the key", self.key), ("the read-only key", self.read_key)):
            if key is None:
                continue
            if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()):
                raise ValueError(
                    f"{name} must have at least {SHORTEST_KEY} characters, all of them printable "
                    "ASCII: make one with python -c 'import secrets; print(secrets.token_hex())'"
                )
        if self.key is not None and self.key == self.read_key:
            raise ValueError("the key and the read-only key must differ")
        if not self.has_key and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached by other machines, so a key is needed: set "
                "$MCH_SERVE_KEY or name a file with --key-file, or listen on 127.0.0.1"
            )
        if self.allow_delete and self.key is None:
            raise ValueError(
                "--allow-delete needs a key: set $MCH_SERVE_KEY or name a file with --key-file"
            )

    @property
    def has_key(self) -> bool:
        return self.key is not None or self.read_key is not None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
