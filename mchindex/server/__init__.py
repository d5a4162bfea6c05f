"""The service: an HTTP API for an index, and a page for people. It needs the extra `serve`."""

from importlib.util import find_spec

from mchindex.errors import MissingExtraError

_NEEDED = ("fastapi", "httptools", "prometheus_client", "python_multipart", "uvicorn", "uvloop")

if missing := [name for name in _NEEDED if find_spec(name) is None]:
    raise MissingExtraError(f"the service needs {', '.join(missing)}", "serve")
