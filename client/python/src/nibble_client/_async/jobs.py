"""Fine-tuning jobs: plan, create, watch and control them."""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nibble_client import methods, v1
from nibble_client._async.caller import AsyncCaller
from nibble_client._async.operations import AsyncOperations, OnProgress, run_operation
from nibble_client._async.transport import sleep
from nibble_client.errors import Cancelled, NibbleError, error_of_status, malformed
from nibble_client.messages import fill
from nibble_client.requests import job_spec, new_id, with_request_id
from nibble_client.retry import Reconnect, is_lost
from nibble_client.watching import FINAL, JobCursor, LogPlace

if TYPE_CHECKING:
    import pandas

OnEvent = Callable[[v1.JobEvent], None]
Spec = Mapping[str, object] | v1.JobSpec


class AsyncJobs:
    """A job outlives every connection: a program that ends never cancels its jobs.

    `plan` and `create` take a spec as keyword arguments, as a dict in the form of the API's JSON, as a JobSpec, or
    both: keyword arguments are then added. A keyword is a field of JobSpec (base_model, train_dataset), or of its
    parts data, optim, run and publish, or of the method: max_steps=200 means run={"max_steps": 200}."""

    def __init__(self, caller: AsyncCaller, operations: AsyncOperations) -> None:
        self._caller = caller
        self._operations = operations

    async def plan(self, spec: Spec | None = None, *, method: str | None = None, request_id: str | None = None,
                   on_progress: OnProgress | None = None, **fields: object) -> v1.PlanJobResponse:
        """Estimates steps, time, memory and disk of a job without running it."""
        request = with_request_id(v1.PlanJobRequest(spec=job_spec(spec, method, fields)), request_id)
        return await run_operation(self._operations, request, v1.PlanJobResponse, on_progress)

    async def create(self, spec: Spec | None = None, *, method: str | None = None, request_id: str | None = None,
                     **fields: object) -> v1.Job:
        """Creates a job; it is then PLANNING. The call is repeated safely: it sends one request id every time, and the
        server creates one job for it. Give your own `request_id` to repeat it after the end of this program."""
        request = v1.CreateJobRequest(spec=job_spec(spec, method, fields), request_id=request_id or new_id())
        return await self._caller.call(methods.CREATE_JOB, request)

    async def get(self, name: str) -> v1.Job:
        return await self._caller.call(methods.GET_JOB, v1.GetJobRequest(name=name))

    async def delete(self, name: str, *, etag: str | None = None) -> None:
        """Deletes a final job with its events and checkpoints. Keeps the model that it published."""
        await self._caller.call(methods.DELETE_JOB, fill(v1.DeleteJobRequest(), {"name": name, "etag": etag}))

    async def watch(self, name: str, *, after_sequence: int = 0) -> AsyncIterator[v1.JobEvent]:
        """Every event of the job with a sequence above `after_sequence`, once and in order, until the job is over.
        Continues from the last event after a lost connection or a restart of the server."""
        async for event in self._events(JobCursor(name, after_sequence)):
            yield event

    async def wait(self, name: str, *, on_event: OnEvent | None = None, after_sequence: int = 0) -> v1.Job:
        """Waits until the job is over and returns it. Raises the error of a job that failed, and Cancelled for one
        that was cancelled. `on_event` is called with every event, as of `watch`."""
        cursor = JobCursor(name, after_sequence)
        async for event in self._events(cursor):
            if on_event is not None:
                on_event(event)
        job = cursor.job
        if job is None or job.state not in FINAL:
            raise malformed(f"the watch of job {name} ended, and the job is not over")
        if job.state == v1.JOB_STATE_FAILED:
            raise error_of_status(job.error)
        if job.state == v1.JOB_STATE_CANCELLED:
            raise Cancelled(f"job {name} was cancelled: {job.state_reason.message}", reason=job.state_reason.reason)
        return job

    async def _events(self, cursor: JobCursor) -> AsyncIterator[v1.JobEvent]:
        """The events after the cursor. Sets the cursor's final job at the end."""
        reconnect = Reconnect(self._caller.connection.retry)
        reached = False
        while True:
            lost: NibbleError | None = None
            read_any = False
            other_calls_work = True
            try:
                async with self._caller.transport.stream(
                        methods.WATCH_JOB, cursor.request(), self._caller.connection.long_timeout) as stream:
                    async for event in stream:
                        read_any = reached = True
                        while (missing := cursor.missing_before(event)) is not None:
                            other_calls_work = False
                            page = await self._caller.call(methods.LIST_JOB_EVENTS, missing)
                            other_calls_work = True
                            for missed in cursor.take_page(page, event.sequence):
                                yield missed
                        if cursor.take(event):
                            yield event
            except NibbleError as error:
                if not is_lost(error):
                    raise
                lost = error
            cursor.end_of_stream(lost is not None)
            # The connection works again if the stream brought messages, unless other calls of the watch failed or only
            # GetJob is left: those could fail forever while every new stream brings messages.
            if read_any and other_calls_work and not cursor.final:
                reconnect.works()
            if lost is None and cursor.final:
                try:
                    cursor.job = await self.get(cursor.job_name)
                    return
                except NibbleError as error:
                    if not is_lost(error):
                        raise
                    lost = error
            await sleep(reconnect.pause(lost, reached))

    async def logs(self, name: str, *, attempt: int | None = None, follow: bool = False, offset: int | None = None,
                   tail_lines: int | None = None) -> AsyncIterator[v1.JobLogChunk]:
        """The output of the job's trainer, stdout and stderr, in pieces of bytes, each byte once and in order. With
        `follow`, until the job is final or PAUSED. Continues at the next byte after a lost connection."""
        place = LogPlace(fill(v1.WatchJobLogsRequest(), {
            "name": name, "attempt": attempt, "follow": follow, "offset": offset, "tail_lines": tail_lines}))
        reconnect = Reconnect(self._caller.connection.retry)
        reached = False
        while True:
            try:
                async with self._caller.transport.stream(
                        methods.WATCH_JOB_LOGS, place.request, self._caller.connection.long_timeout) as stream:
                    async for chunk in stream:
                        reached = True
                        reconnect.works()
                        if place.take(chunk):
                            yield chunk
                return
            except NibbleError as error:
                if not is_lost(error):
                    raise
                pause = reconnect.pause(error, reached)
            await sleep(pause)

    async def events(self, name: str, *, after_sequence: int = 0,
                     page_size: int | None = None) -> AsyncIterator[v1.JobEvent]:
        """The events that the job has now, oldest first, without waiting for more."""
        request = fill(v1.ListJobEventsRequest(), {
            "name": name, "after_sequence": after_sequence, "page_size": page_size})
        async for page in self._caller.pages(methods.LIST_JOB_EVENTS, request):
            for event in page.events:
                yield event

    async def metrics(self, name: str) -> pandas.DataFrame:
        """Loss, learning rate and speed of each step, and the evaluations, as a DataFrame by step (extra `pandas`)."""
        from nibble_client import frames

        return frames.metrics([event async for event in self.events(name)])

    async def checkpoints(self, name: str, *, page_size: int | None = None) -> AsyncIterator[v1.Checkpoint]:
        """The job's checkpoints, newest first."""
        request = fill(v1.ListCheckpointsRequest(), {"name": name, "page_size": page_size})
        async for page in self._caller.pages(methods.LIST_CHECKPOINTS, request):
            for checkpoint in page.checkpoints:
                yield checkpoint

    async def cancel(self, name: str, *, keep_checkpoint: bool | None = None, etag: str | None = None) -> v1.Job:
        """Requests the end of a job and returns its current state; `wait` waits for the end."""
        return await self._caller.call(methods.CANCEL_JOB, fill(v1.CancelJobRequest(), {
            "name": name, "keep_checkpoint": keep_checkpoint, "etag": etag}))

    async def pause(self, name: str, *, etag: str | None = None) -> v1.Job:
        """Requests a checkpoint and then a stop."""
        return await self._caller.call(methods.PAUSE_JOB, fill(v1.PauseJobRequest(), {"name": name, "etag": etag}))

    async def resume(self, name: str, *, etag: str | None = None) -> v1.Job:
        """Queues a paused job again."""
        return await self._caller.call(methods.RESUME_JOB, fill(v1.ResumeJobRequest(), {"name": name, "etag": etag}))

    async def checkpoint(self, name: str, *, etag: str | None = None) -> v1.Job:
        """Requests a checkpoint after the current step; an event reports it."""
        return await self._caller.call(
            methods.CHECKPOINT_JOB, fill(v1.CheckpointJobRequest(), {"name": name, "etag": etag}))

    async def list(self, *, states: Sequence[str] | None = None, labels: Mapping[str, str] | None = None,
                   base_model: str | None = None, page_size: int | None = None) -> AsyncIterator[v1.Job]:
        """The jobs that satisfy all conditions, newest first."""
        request = fill(v1.ListJobsRequest(), {"page_size": page_size, "filter": {
            "states": states, "labels": labels, "base_model": base_model}})
        async for page in self._caller.pages(methods.LIST_JOBS, request):
            for job in page.jobs:
                yield job
