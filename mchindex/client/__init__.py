"""A client of a service that `mch serve` runs, with the methods of an index. It needs httpx."""

from importlib.util import find_spec

from mchindex.errors import MissingExtraError

if find_spec("httpx") is None:
    raise MissingExtraError("a client of a service needs httpx", "client")

from mchindex.client.remote import AsyncRemoteIndex, RemoteIndex, connect, connect_async

__all__ = ["AsyncRemoteIndex", "RemoteIndex", "connect", "connect_async"]
