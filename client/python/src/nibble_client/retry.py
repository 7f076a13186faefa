"""When a call is repeated and how long the client waits before it; without I/O."""
from __future__ import annotations

import logging
import time
from collections.abc import Callable

import grpc

from nibble_client.connection import Retry
from nibble_client.errors import NibbleError, UploadNotFound

_LOG = logging.getLogger("nibble_client")

# Maximum pause between two attempts of a watch, so that it continues soon after a restart of the server.
_LONGEST_PAUSE_S = 1.0


class Backoff:
    """The pauses between the attempts of one call."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._wait = retry.first_wait
        self._attempt = 1

    def pause(self, error: NibbleError) -> float:
        """Seconds to wait before the next attempt. Raises `error` if no attempt is left."""
        if error.code != grpc.StatusCode.UNAVAILABLE:
            raise error
        return self.pause_after_any(error)

    def pause_after_any(self, error: NibbleError) -> float:
        """Same as `pause`, for an error that the caller already knows to be worth another attempt."""
        if self._attempt >= self._retry.attempts:
            raise error
        self._attempt += 1
        after = error.retry_after
        seconds = min(self._wait if after is None else after, self._retry.longest_wait)
        self._wait = min(self._wait * 2, self._retry.longest_wait)
        _LOG.info("attempt %d in %.1f s: %s", self._attempt, seconds, error)
        return seconds

    def progressed(self) -> None:
        """Only attempts without progress count."""
        self._attempt = 1
        self._wait = self._retry.first_wait


def is_lost(error: NibbleError) -> bool:
    """Whether the connection was lost. A stream that loses its transport may also end with UNKNOWN, and a call that a
    draining server cuts off with CANCELLED, both without a reason."""
    if error.code == grpc.StatusCode.UNAVAILABLE:
        return True
    return error.code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED) and not error.reason


def can_resume_upload(error: NibbleError, has_deadline: bool) -> bool:
    """Whether another stream may complete the upload: the connection was lost, another stream took over the upload or
    is finishing it (ABORTED), the server ended the stream because of its age (if the client set no deadline), it no
    longer has the upload, or it has a different number of bytes than this client expected."""
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED):
        return True
    if error.code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return not has_deadline
    return isinstance(error, UploadNotFound) or error.field == "header.resume_offset"


class Reconnect:
    """The pauses of one watch, and when it gives up."""

    def __init__(self, retry: Retry, now: Callable[[], float] = time.monotonic) -> None:
        self._retry = retry
        self._now = now
        self._wait = retry.first_wait
        self._lost_since: float | None = None
        self._attempts = 0  # before the first message

    def works(self) -> None:
        """The connection works, or works again."""
        self._lost_since = None
        self._wait = self._retry.first_wait

    def pause(self, lost: NibbleError | None, reached: bool) -> float:
        """Seconds before the next try. `lost`: why the connection was lost; None if it was not. `reached`: whether any
        message has ever arrived. Raises `lost` once the watch must give up."""
        if lost is not None:
            if not reached:
                self._attempts += 1
                if self._attempts >= self._retry.attempts:
                    raise lost
            if self._lost_since is None:
                self._lost_since = self._now()
                _LOG.warning("connection lost, reconnecting: %s", lost)
            if self._now() - self._lost_since > self._retry.reconnect_for:
                raise lost
        longest = min(self._retry.longest_wait, _LONGEST_PAUSE_S)
        after = None if lost is None else lost.retry_after
        seconds = min(self._wait if after is None else after, longest)
        self._wait = min(self._wait * 2, longest)
        return seconds
