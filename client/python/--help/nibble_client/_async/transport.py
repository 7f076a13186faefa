"""Calls over grpc.aio. _sync/transport.py has the same names for the synchronous client; both are written by hand."""
from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

import grpc
import grpc.aio

from nibble_client.connection import Connection
from nibble_client.errors import closed, error_of_call
from nibble_client.methods import ClientStream, Request, Response, ServerStream, Unary
from nibble_client.upload_call import UploadCall

P = ParamSpec("P")
T = TypeVar("T")


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs blocking work, such as reading a file, beside the event loop."""
    return await asyncio.to_thread(function, *args, **kwargs)


class AsyncStream(Generic[Response]):
    """The messages of one call. Leaving the context cancels what is left of the call."""

    def __init__(self, call: Any, transport: AsyncTransport) -> None:
        self._call = call
        self._transport = transport

    async def __aenter__(self) -> AsyncStream[Response]:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self._call.cancel()

    def __aiter__(self) -> AsyncStream[Response]:
        return self

    async def __anext__(self) -> Response:
        try:
            message: Response | Any = await self._call.read()
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        except asyncio.CancelledError:
            self._transport.raise_if_closed()
            raise
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


class AsyncTransport:
    """One channel. The channel connects at the first call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._metadata = connection.metadata()
        self._credentials = connection.credentials()
        self._closed = False
        # Calls in progress. Not every version of grpc.aio ends them when it closes their channel.
        self._calls: weakref.WeakSet[Any] = weakref.WeakSet()
        self._channel: grpc.aio.Channel | None = None
        self._for_uploads: grpc.Channel | None = None

    @property
    def channel(self) -> grpc.aio.Channel:
        """Made at the first use, because it belongs to the event loop that runs then."""
        self.raise_if_closed()
        if self._channel is None:
            target, options = self._connection.target, self._connection.options()
            self._channel = (grpc.aio.insecure_channel(target, options=options) if self._credentials is None
                             else grpc.aio.secure_channel(target, self._credentials, options=options))
        return self._channel

    def raise_if_closed(self) -> None:
        """Raises Cancelled once the client is closed. grpc.aio ends a call that `close` cancels with CancelledError, as
        if its task had been cancelled."""
        if self._closed:
            raise closed()

    async def unary(self, method: Unary[Request, Response], request: Request, timeout: float | None) -> Response:
        start: Any = self.channel.unary_unary(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)
        call = start(request, timeout=timeout, metadata=self._metadata)
        self._calls.add(call)
        try:
            response: Response = await call
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        except asyncio.CancelledError:
            self.raise_if_closed()
            raise
        return response

    def stream(self, method: ServerStream[Request, Response], request: Request,
               timeout: float | None) -> AsyncStream[Response]:
        start: Any = self.channel.unary_stream(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)
        call = start(request, timeout=timeout, metadata=self._metadata)
        self._calls.add(call)
        return AsyncStream(call, self)

    async def upload(self, method: ClientStream[Request, Response], messages: Iterator[Request],
                     timeout: float | None) -> Response:
        """Sends the messages and returns the answer."""
        self.raise_if_closed()
        if self._for_uploads is None:
            self._for_uploads = self._connection.blocking_channel(self._credentials)
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed before a cancelled call ended
                loop.call_soon_threadsafe(ended.set)

        call = UploadCall(self._for_uploads, method, messages, timeout, self._metadata)
        call.when_done(end)
        try:
            await ended.wait()
            return call.result()
        finally:
            call.cancel()

    async def close(self) -> None:
        self._closed = True
        for call in list(self._calls):
            call.cancel()
        if self._channel is not None:
            await self._channel.close()
        if self._for_uploads is not None:
            self._for_uploads.close()
