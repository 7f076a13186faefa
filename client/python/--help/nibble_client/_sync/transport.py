"""Calls over grpc's blocking API, with the names of _async/transport.py. The rest of this folder is generated."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

import grpc

from nibble_client.connection import Connection
from nibble_client.errors import closed, error_of_call
from nibble_client.methods import ClientStream, Request, Response, ServerStream, Unary
from nibble_client.upload_call import UploadCall

P = ParamSpec("P")
T = TypeVar("T")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs blocking work; only the asynchronous client needs a thread for it."""
    return function(*args, **kwargs)


class Stream(Generic[Response]):
    """The messages of one call. Leaving the context cancels what is left of the call."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __enter__(self) -> Stream[Response]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._call.cancel()

    def __iter__(self) -> Stream[Response]:
        return self

    def __next__(self) -> Response:
        try:
            message: Response = next(self._call)
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        return message


class Transport:
    """One channel. The channel connects at the first call."""

    def __init__(self, connection: Connection) -> None:
        self._metadata = connection.metadata()
        self._channel = connection.blocking_channel(connection.credentials())
        self._closed = False

    @property
    def channel(self) -> grpc.Channel:
        if self._closed:
            raise closed()
        return self._channel

    def unary(self, method: Unary[Request, Response], request: Request, timeout: float | None) -> Response:
        call: Any = self.channel.unary_unary(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)
        try:
            response: Response = call(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        return response

    def stream(self, method: ServerStream[Request, Response], request: Request,
               timeout: float | None) -> Stream[Response]:
        call: Any = self.channel.unary_stream(
            method.path, request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString)
        return Stream(call(request, timeout=timeout, metadata=self._metadata))

    def upload(self, method: ClientStream[Request, Response], messages: Iterator[Request],
               timeout: float | None) -> Response:
        """Sends the messages and returns the answer."""
        call = UploadCall(self.channel, method, messages, timeout, self._metadata)
        try:
            return call.result()
        finally:
            call.cancel()

    def close(self) -> None:
        self._closed = True
        self._channel.close()
