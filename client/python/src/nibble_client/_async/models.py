"""Models: import, convert, verify, export, load and delete them."""
from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence

from nibble_client import methods, v1
from nibble_client._async.caller import AsyncCaller
from nibble_client._async.operations import AsyncOperations, OnProgress, run_operation
from nibble_client._async.receiving import receive
from nibble_client._async.sending import AsyncSender
from nibble_client._async.transport import in_thread
from nibble_client.files import Receiver, files_to_import
from nibble_client.messages import fill
from nibble_client.requests import new_id, with_request_id


class AsyncModels:
    """Methods that take long wait for the end of their operation. `on_progress` is called with its stage, and with the
    finished part and the size of the stage. The operation continues if this program ends; the same `request_id` then
    finds it again."""

    def __init__(self, caller: AsyncCaller, operations: AsyncOperations, sender: AsyncSender) -> None:
        self._caller = caller
        self._operations = operations
        self._sender = sender

    async def import_files(self, path: str | os.PathLike[str], name: str, *, upload_id: str | None = None,
                           resume: bool = False, request_id: str | None = None, on_progress: OnProgress | None = None,
                           **options: object) -> v1.Model:
        """Uploads a Hugging Face directory, a PEFT adapter or a .gguf file, and makes a model of it. `options` are
        fields of ImportModelRequest: dtype ("f32" or "bf16"), base_model (of an adapter), source_name, random_init.

        A lost upload continues where it stopped. To continue after the end of this program, give an `upload_id`, and
        later the same files with the same id and resume=True."""
        request = fill(v1.ImportModelRequest(), {"name": name, **options})
        files = await in_thread(files_to_import, path)
        header = v1.UploadModelHeader(name=str(path), size_bytes=sum(file.size for file in files),
                                      upload_id=upload_id or new_id())
        uploaded = await self._sender.model(header, files, resume, on_progress)
        request.upload_id = uploaded.upload_id
        return await run_operation(self._operations, with_request_id(request, request_id), v1.Model, on_progress)

    async def import_server_path(self, server_path: str, name: str, *, request_id: str | None = None,
                                 on_progress: OnProgress | None = None, **options: object) -> v1.Model:
        """Same as import_files for files on the server, relative to nibbled's --import_root."""
        request = fill(v1.ImportModelRequest(), {"server_path": server_path, "name": name, **options})
        return await run_operation(self._operations, with_request_id(request, request_id), v1.Model, on_progress)

    async def convert(self, model: str, *, to: str, name: str, request_id: str | None = None,
                      on_progress: OnProgress | None = None, **options: object) -> v1.ConvertModelResponse:
        """Makes a model in another format ("int8", "ternary", "nf4", "bf16"). `options` are fields of
        ConvertModelRequest, such as act_outliers, eval_dataset and tolerance."""
        request = fill(v1.ConvertModelRequest(), {"model": model, "target": to, "name": name, **options})
        return await run_operation(
            self._operations, with_request_id(request, request_id), v1.ConvertModelResponse, on_progress)

    async def verify(self, model: str, *, request_id: str | None = None,
                     on_progress: OnProgress | None = None) -> v1.VerifyModelResponse:
        """Replays the model's record and compares every bit of the logits. A difference is a result, not an error."""
        request = with_request_id(v1.VerifyModelRequest(name=model), request_id)
        return await run_operation(self._operations, request, v1.VerifyModelResponse, on_progress)

    async def export(self, model: str, directory: str | os.PathLike[str], *, format: str,
                     request_id: str | None = None, on_progress: OnProgress | None = None,
                     **options: object) -> Sequence[v1.FileEntry]:
        """Writes a model's files below a directory, in a format of other programs: "peft", "hf", "hf_bitnet" or
        "compressed_tensors". Each file appears complete or not at all. Returns the files with their digests."""
        request = fill(v1.ExportModelRequest(), {"model": model, "format": format, **options})
        exported = await run_operation(
            self._operations, with_request_id(request, request_id), v1.ExportModelResponse, on_progress)
        return await self.download(exported.artifact_id, directory, on_progress=on_progress)

    async def download(self, artifact_id: str, directory: str | os.PathLike[str], *, path: str | None = None,
                       on_progress: OnProgress | None = None) -> Sequence[v1.FileEntry]:
        """Writes the files of an export below a directory; with `path`, one of them."""
        request = fill(v1.DownloadArtifactRequest(), {"artifact_id": artifact_id, "path": path})
        return await receive(self._caller, methods.DOWNLOAD_ARTIFACT, request, lambda: Receiver(directory), on_progress)

    async def publish_checkpoint(self, checkpoint: str, name: str, *, request_id: str | None = None,
                                 on_progress: OnProgress | None = None) -> v1.Model:
        """Makes a model from a job's checkpoint ("JOB/STEP") while the job continues."""
        request = with_request_id(v1.PublishCheckpointRequest(checkpoint=checkpoint, name=name), request_id)
        result = await run_operation(self._operations, request, v1.PublishCheckpointResponse, on_progress)
        return result.model

    async def load(self, name: str, *, device: Mapping[str, object] | v1.Device | None = None,
                   request_id: str | None = None, on_progress: OnProgress | None = None) -> v1.Model:
        """Loads a model into memory. Without it, the first request for the model loads it."""
        request = with_request_id(fill(v1.LoadModelRequest(), {"name": name, "device": device}), request_id)
        result = await run_operation(self._operations, request, v1.LoadModelResponse, on_progress)
        return result.model

    async def unload(self, name: str) -> v1.Model:
        """Unloads a model. Requests in progress run to their end."""
        return (await self._caller.call(methods.UNLOAD_MODEL, v1.UnloadModelRequest(name=name))).model

    async def get(self, name: str) -> v1.Model:
        return await self._caller.call(methods.GET_MODEL, v1.GetModelRequest(name=name))

    async def delete(self, name: str, *, etag: str | None = None) -> None:
        """Deletes a model; with an `etag`, only if it is that of the model."""
        await self._caller.call(methods.DELETE_MODEL, fill(v1.DeleteModelRequest(), {"name": name, "etag": etag}))

    async def list(self, *, page_size: int | None = None) -> AsyncIterator[v1.Model]:
        """The models by name, including damaged ones."""
        request = fill(v1.ListModelsRequest(), {"page_size": page_size})
        async for page in self._caller.pages(methods.LIST_MODELS, request):
            for model in page.models:
                yield model
