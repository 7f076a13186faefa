# Generated from _async/operations.py by generate.py.
"""Work of the server that outlives its call: imports, conversions, exports, loads, verifications and plans."""
from __future__ import annotations

import time
from collections.abc import Iterator, Callable
from typing import TypeVar

from google.longrunning import operations_pb2  # type: ignore[import-untyped]
from google.protobuf.message import Message

from nibble_client import methods, v1
from nibble_client._sync.caller import Caller
from nibble_client._sync.transport import sleep
from nibble_client.errors import DeadlineExceeded, error_of_status, field_error, malformed
from nibble_client.messages import describe, fill

# Called with the stage, and with the finished part and the size of that stage (0: unknown).
OnProgress = Callable[[str, int, int], None]

Result = TypeVar("Result", bound=Message)

# Timeout of one WaitOperation: short enough to show progress.
_WAIT_S = 1
# Pause between polls when the server answers at once.
_POLL_S = 0.2


class Operations:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def get(self, name: str) -> operations_pb2.Operation:
        return self._caller.call(methods.GET_OPERATION, operations_pb2.GetOperationRequest(name=name))

    def start(self, request: Message) -> operations_pb2.Operation:
        """Starts an operation from its request, such as ConvertModelRequest, and does not wait for it. Set its
        request_id: a repeated request with the same id returns the same operation."""
        method = methods.STARTS.get(type(request))
        if method is None:
            names = ", ".join(kind.DESCRIPTOR.name for kind in methods.STARTS)
            field_error("request", describe(request), f"one of {names}")
        return self._caller.call(method, request)

    def wait(self, operation: operations_pb2.Operation | str, *, on_progress: OnProgress | None = None,
                   timeout: float | None = None) -> operations_pb2.Operation:
        """Waits for the end of an operation and returns it. Raises the error of an operation that failed. `timeout`
        in seconds replaces the client's long_timeout; the operation continues on the server after it."""
        if isinstance(operation, str):
            operation = self.get(operation)
        limit = self._caller.connection.long_timeout if timeout is None else timeout
        end = None if limit is None else time.monotonic() + limit
        while not operation.done:
            _report(operation, on_progress)
            asked = time.monotonic()
            if end is not None and asked > end:
                raise DeadlineExceeded(f"operation {operation.name} is still running on the server; wait again with "
                                       f"operations.wait({operation.name!r})")
            request = operations_pb2.WaitOperationRequest(name=operation.name)
            request.timeout.seconds = _WAIT_S
            operation = self._caller.call(methods.WAIT_OPERATION, request)
            spent = time.monotonic() - asked
            if not operation.done and spent < _POLL_S:
                sleep(_POLL_S - spent)
        _report(operation, on_progress)
        if operation.HasField("error"):
            raise error_of_status(operation.error)
        return operation

    def list(self, *, page_size: int | None = None) -> Iterator[operations_pb2.Operation]:
        request = fill(operations_pb2.ListOperationsRequest(name="operations"), {"page_size": page_size})
        for page in self._caller.pages(methods.LIST_OPERATIONS, request):
            for operation in page.operations:
                yield operation

    def cancel(self, name: str) -> None:
        """Requests the end of an operation; `wait` then raises Cancelled."""
        self._caller.call(methods.CANCEL_OPERATION, operations_pb2.CancelOperationRequest(name=name))

    def delete(self, name: str) -> None:
        """Forgets an operation that has ended."""
        self._caller.call(methods.DELETE_OPERATION, operations_pb2.DeleteOperationRequest(name=name))


def run_operation(operations: Operations, request: Message, result: type[Result],
                        on_progress: OnProgress | None) -> Result:
    """Starts an operation, waits for it and unpacks its result."""
    operation = operations.wait(operations.start(request), on_progress=on_progress)
    unpacked = result()
    if not operation.HasField("response") or not operation.response.Unpack(unpacked):
        raise malformed(f"operation {operation.name} ended without a {result.DESCRIPTOR.full_name}")
    return unpacked


def _report(operation: operations_pb2.Operation, on_progress: OnProgress | None) -> None:
    metadata = v1.ModelOperationMetadata()
    if on_progress is not None and operation.metadata.Unpack(metadata):
        on_progress(metadata.stage, metadata.done, metadata.total)
