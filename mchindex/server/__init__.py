"""The service: an HTTP API for an index, and a page for people. It needs the extra `serve`."""
