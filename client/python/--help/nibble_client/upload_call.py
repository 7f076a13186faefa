"""A call that streams messages to the server, for both clients.

The asynchronous client uploads over a blocking channel too: grpc.aio may replace the server's status by INTERNAL when a
write fails, so the reason of a refused upload, or the loss of its connection, would be unknown."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic

import grpc

from nibble_client.errors import error_of_call
from nibble_client.methods import ClientStream, Request, Response


class UploadCall(Generic[Response]):
    """gRPC reads `messages` in a thread of its own, one at a time, as fast as the server takes them."""

    def __init__(self, channel: grpc.Channel, method: ClientStream[Request, Response], messages: Iterator[Request],
                 timeout: float | None, metadata: tuple[tuple[str, str], ...]) -> None:
        self._failed: list[Exception] = []
        start: Any = channel.stream_unary(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)
        self._call = start.future(self._watched(messages), timeout=timeout, metadata=metadata)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` in another thread when the call has ended."""
        self._call.add_done_callback(lambda _: callback())

    def result(self) -> Response:
        """Waits for the answer. An error of the messages ends the call, and is raised. If the server ends the call
        early, its error has the cause."""
        try:
            response: Response = self._call.result()
        except grpc.RpcError as error:
            if not self._failed:
                raise error_of_call(error) from None
        if self._failed:
            raise self._failed[0]
        return response

    def cancel(self) -> None:
        self._call.cancel()

    def _watched(self, messages: Iterator[Request]) -> Iterator[Request]:
        try:
            yield from messages
        except Exception as error:  # gRPC would report it as UNKNOWN
            self._failed.append(error)
