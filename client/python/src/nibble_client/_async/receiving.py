"""Downloads: they begin again after a lost connection."""
from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from nibble_client._async.caller import AsyncCaller
from nibble_client._async.operations import OnProgress
from nibble_client._async.transport import in_thread, sleep
from nibble_client.errors import NibbleError
from nibble_client.methods import Request, Response, ServerStream
from nibble_client.retry import Backoff

Taken = TypeVar("Taken", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Receiver(Protocol[Taken, Result]):
    """Writes one attempt of a download."""

    bytes: int

    def take(self, message: Taken) -> None: ...
    def finish(self) -> Result: ...
    def drop(self) -> None: ...


async def receive(caller: AsyncCaller, method: ServerStream[Request, Response], request: Request,
                  begin: Callable[[], Receiver[Response, Result]], on_progress: OnProgress | None) -> Result:
    """Gives the messages of the call to a receiver, and returns its result. Each attempt has a receiver of its own."""
    backoff = Backoff(caller.connection.retry)
    while True:
        receiver = await in_thread(begin)
        try:
            async with caller.transport.stream(method, request, caller.connection.long_timeout) as messages:
                async for message in messages:
                    await in_thread(receiver.take, message)
                    if on_progress is not None:
                        on_progress("download", receiver.bytes, 0)
            return await in_thread(receiver.finish)
        except NibbleError as error:
            pause = backoff.pause(error)
        finally:
            receiver.drop()
        await sleep(pause)
