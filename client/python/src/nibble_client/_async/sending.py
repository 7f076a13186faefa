"""Sends the bytes of datasets and models. A new stream resumes a lost one."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nibble_client import methods, v1
from nibble_client._async.caller import AsyncCaller
from nibble_client._async.operations import OnProgress
from nibble_client._async.transport import sleep
from nibble_client.errors import NibbleError, NotFound
from nibble_client.files import FileReader, FileToSend, Sha256
from nibble_client.methods import ClientStream, Request, Response
from nibble_client.retry import Backoff, can_resume_upload


class AsyncSender:
    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def dataset(self, header: v1.UploadDatasetHeader, file: FileToSend, resume: bool,
                      on_progress: OnProgress | None) -> v1.Dataset:
        def messages(arrived: v1.Upload) -> Iterator[v1.UploadDatasetRequest]:
            opening = v1.UploadDatasetRequest(header=header)
            opening.header.resume_offset = arrived.committed_bytes
            yield opening
            digest = Sha256()
            reader = FileReader(file, arrived.committed_bytes, digest)
            try:
                while chunk := reader.next_chunk():
                    yield v1.UploadDatasetRequest(chunk=chunk)
                    if on_progress is not None:
                        on_progress("upload", reader.done, file.size)
            finally:
                reader.close()
            yield v1.UploadDatasetRequest(finish=v1.UploadFinish(sha256=digest.hex()))

        return await self._send(methods.UPLOAD_DATASET, messages, header.upload_id, resume)

    async def server_file(self, header: v1.UploadDatasetHeader) -> v1.Dataset:
        """The upload of a file that the server reads itself. Repeatable: the same file gives the same answer."""
        backoff = Backoff(self._caller.connection.retry)
        while True:
            messages = (v1.UploadDatasetRequest(header=header), v1.UploadDatasetRequest(finish=v1.UploadFinish()))
            try:
                return await self._caller.transport.upload(
                    methods.UPLOAD_DATASET, iter(messages), self._caller.connection.long_timeout)
            except NibbleError as error:
                pause = backoff.pause(error)
            await sleep(pause)

    async def model(self, header: v1.UploadModelHeader, files: Sequence[FileToSend], resume: bool,
                    on_progress: OnProgress | None) -> v1.UploadModelResponse:
        total = sum(file.size for file in files)

        def messages(arrived: v1.Upload) -> Iterator[v1.UploadModelRequest]:
            opening = v1.UploadModelRequest(header=header)
            opening.header.resume_offset = arrived.committed_bytes
            yield opening
            digest = Sha256()
            skip = arrived.committed_bytes
            done = 0
            for number, file in enumerate(files):
                if number >= arrived.num_files:  # a partly sent file continues with its missing chunks
                    yield v1.UploadModelRequest(file=v1.FileEntry(path=file.name, size_bytes=file.size))
                reader = FileReader(file, min(skip, file.size), digest)
                try:
                    while chunk := reader.next_chunk():
                        yield v1.UploadModelRequest(chunk=chunk)
                        if on_progress is not None:
                            on_progress("upload", done + reader.done, total)
                finally:
                    reader.close()
                skip -= min(skip, file.size)
                done += file.size
            yield v1.UploadModelRequest(finish=v1.UploadFinish(sha256=digest.hex()))

        return await self._send(methods.UPLOAD_MODEL, messages, header.upload_id, resume)

    async def _send(self, method: ClientStream[Request, Response],
                    messages: Callable[[v1.Upload], Iterator[Request]], upload_id: str, resume: bool) -> Response:
        """Sends the upload, and what is missing again after each error that another stream can mend. `resume`: the
        server already has the upload."""
        arrived = _resumable(await self._get(upload_id)) if resume else v1.Upload()
        connection = self._caller.connection
        backoff = Backoff(connection.retry)
        unknown: NibbleError | None = None  # why it is not known which bytes have arrived
        while True:
            try:
                if unknown is not None:
                    raise unknown
                return await self._caller.transport.upload(method, messages(arrived), connection.long_timeout)
            except NibbleError as error:
                if not can_resume_upload(error, connection.long_timeout is not None):
                    raise
                pause = backoff.pause_after_any(error)
            await sleep(pause)
            unknown = None
            try:
                found = await self._written(upload_id)
                if found.committed_bytes > arrived.committed_bytes:
                    backoff.progressed()  # only attempts without progress count
                arrived = _resumable(found)
            except NotFound:
                arrived = v1.Upload()  # the server has no such upload: begin again
            except NibbleError as error:
                unknown = error

    async def _written(self, upload_id: str) -> v1.Upload:
        """The upload, once the server no longer writes it: the result is known only afterwards."""
        found = await self._get(upload_id)
        while found.state == v1.UPLOAD_STATE_FINISHING:
            await sleep(self._caller.connection.retry.longest_wait)
            found = await self._get(upload_id)
        return found

    async def _get(self, upload_id: str) -> v1.Upload:
        return await self._caller.call(methods.GET_UPLOAD, v1.GetUploadRequest(upload_id=upload_id))


def _resumable(upload: v1.Upload) -> v1.Upload:
    """The upload as a new stream continues it: an offset of 0 begins a new upload, without the opened file."""
    return upload if upload.committed_bytes > 0 else v1.Upload()
