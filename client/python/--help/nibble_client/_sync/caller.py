# Generated from _async/caller.py by generate.py.
"""Calls with the client's deadlines and retries."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nibble_client._sync.transport import Transport, sleep
from nibble_client.connection import Connection
from nibble_client.errors import NibbleError
from nibble_client.methods import Request, Response, Unary
from nibble_client.retry import Backoff


class Caller:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.transport = Transport(connection)

    def call(self, method: Unary[Request, Response], request: Request) -> Response:
        """A call that the server answers at once."""
        return self._call(method, request, self.connection.timeout)

    def long_call(self, method: Unary[Request, Response], request: Request) -> Response:
        """A call that may take long, such as a generation."""
        return self._call(method, request, self.connection.long_timeout)

    def _call(self, method: Unary[Request, Response], request: Request, timeout: float | None) -> Response:
        backoff = Backoff(self.connection.retry)
        while True:
            try:
                return self.transport.unary(method, request, timeout)
            except NibbleError as error:
                pause = backoff.pause(error)
            sleep(pause)

    def pages(self, method: Unary[Request, Response], request: Request) -> Iterator[Response]:
        """The pages of a list, each requested when it is needed."""
        place: Any = request
        while True:
            page: Any = self.call(method, request)
            yield page
            if not page.next_page_token:
                return
            place.page_token = page.next_page_token
