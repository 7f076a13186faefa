"""Uploads that are in progress or not yet used."""
from __future__ import annotations

from collections.abc import AsyncIterator

from nibble_client import methods, v1
from nibble_client._async.caller import AsyncCaller
from nibble_client.messages import fill


class AsyncUploads:
    """`upload_id` is that of datasets.upload or models.import_files."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def get(self, upload_id: str) -> v1.Upload:
        return await self._caller.call(methods.GET_UPLOAD, v1.GetUploadRequest(upload_id=upload_id))

    async def cancel(self, upload_id: str) -> None:
        """Drops the received bytes."""
        await self._caller.call(methods.CANCEL_UPLOAD, v1.CancelUploadRequest(upload_id=upload_id))

    async def list(self, *, page_size: int | None = None) -> AsyncIterator[v1.Upload]:
        request = fill(v1.ListUploadsRequest(), {"page_size": page_size})
        async for page in self._caller.pages(methods.LIST_UPLOADS, request):
            for upload in page.uploads:
                yield upload
