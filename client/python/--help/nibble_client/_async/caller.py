"""Calls with the client's deadlines and retries."""
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from nibble_client._async.transport import AsyncTransport, sleep
from nibble_client.connection import Connection
from nibble_client.errors import NibbleError
from nibble_client.methods import Request, Response, Unary
from nibble_client.retry import Backoff


class AsyncCaller:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.transport = AsyncTransport(connection)

    async def call(self, method: Unary[Request, Response], request: Request) -> Response:
        """A call that the server answers at once."""
        return await self._call(method, request, self.connection.timeout)

    async def long_call(self, method: Unary[Request, Response], request: Request) -> Response:
        """A call that may take long, such as a generation."""
        return await self._call(method, request, self.connection.long_timeout)

    async def _call(self, method: Unary[Request, Response], request: Request, timeout: float | None) -> Response:
        backoff = Backoff(self.connection.retry)
        while True:
            try:
                return await self.transport.unary(method, request, timeout)
            except NibbleError as error:
                pause = backoff.pause(error)
            await sleep(pause)

    async def pages(self, method: Unary[Request, Response], request: Request) -> AsyncIterator[Response]:
        """The pages of a list, each requested when it is needed."""
        place: Any = request
        while True:
            page: Any = await self.call(method, request)
            yield page
            if not page.next_page_token:
                return
            place.page_token = page.next_page_token
