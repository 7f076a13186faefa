"""Datasets: upload, preview, download and delete them."""
from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping

from nibble_client import methods, v1
from nibble_client._async.caller import AsyncCaller
from nibble_client._async.operations import OnProgress
from nibble_client._async.receiving import receive
from nibble_client._async.sending import AsyncSender
from nibble_client._async.transport import in_thread
from nibble_client.files import Rows, RowsReceiver, dataset_file
from nibble_client.messages import fill
from nibble_client.requests import new_id


class AsyncDatasets:
    def __init__(self, caller: AsyncCaller, sender: AsyncSender) -> None:
        self._caller = caller
        self._sender = sender

    async def upload(self, rows: Rows, name: str, *, format: str | None = None, file_name: str | None = None,
                     upload_id: str | None = None, resume: bool = False,
                     on_progress: OnProgress | None = None) -> v1.Dataset:
        """Uploads rows as a new dataset: dicts with the fields of one format ({"text"}, {"prompt", "completion"} or
        {"messages"}), a pandas.DataFrame with such columns, a datasets.Dataset, or the path of a JSONL or text file.

        The dataset keeps `file_name`, the name of the user's file, for people. A lost stream continues where it
        stopped. To continue after the end of this program, give an `upload_id`, and later the same rows with the same
        id and resume=True. `on_progress` may be called in another thread."""
        header = fill(v1.UploadDatasetHeader(), {
            "name": name, "format": format, "file_name": file_name, "upload_id": upload_id or new_id()})
        with contextlib.ExitStack() as stack:
            file = await in_thread(stack.enter_context, dataset_file(rows))
            header.size_bytes = file.size
            return await self._sender.dataset(header, file, resume, on_progress)

    async def copy_server_file(self, server_path: str, name: str, *, format: str | None = None) -> v1.Dataset:
        """Makes a dataset of a file on the server, relative to nibbled's --import_root."""
        header = fill(v1.UploadDatasetHeader(), {"name": name, "format": format, "server_path": server_path})

        return await self._sender.server_file(header)

    async def get(self, name: str) -> v1.Dataset:
        return await self._caller.call(methods.GET_DATASET, v1.GetDatasetRequest(name=name))

    async def delete(self, name: str, *, etag: str | None = None) -> None:
        """Deletes a dataset; with an `etag`, only if it is that of the dataset."""
        await self._caller.call(methods.DELETE_DATASET, fill(v1.DeleteDatasetRequest(), {"name": name, "etag": etag}))

    async def preview(self, dataset: str, model: str, *, rows: int | None = None,
                      data: Mapping[str, object] | v1.DataConfig | None = None) -> v1.PreviewDatasetResponse:
        """The first rows as training would see them: tokens, and which of them count in the loss. `data` is the part
        `data` of a job's spec. nibble_client.notebook.Mask shows the answer in colour."""
        request = fill(v1.PreviewDatasetRequest(), {"dataset": dataset, "model": model, "n": rows, "data": data})
        return await self._caller.long_call(methods.PREVIEW_DATASET, request)

    async def download(self, name: str, path: str | os.PathLike[str], *, on_progress: OnProgress | None = None) -> int:
        """Writes the rows of a dataset to a file, which appears complete or not at all. Returns its size. These are the
        bytes of the upload; a plain text is one row {"text": ...}."""
        request = v1.DownloadDatasetRequest(name=name)
        return await receive(self._caller, methods.DOWNLOAD_DATASET, request, lambda: RowsReceiver(path), on_progress)

    async def list(self, *, page_size: int | None = None) -> AsyncIterator[v1.Dataset]:
        """The datasets by name, including damaged ones."""
        request = fill(v1.ListDatasetsRequest(), {"page_size": page_size})
        async for page in self._caller.pages(methods.LIST_DATASETS, request):
            for dataset in page.datasets:
                yield dataset
