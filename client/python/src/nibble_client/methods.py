"""The methods of the API that the client calls, with the types of their messages."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.longrunning import operations_pb2  # type: ignore[import-untyped]
from google.protobuf import empty_pb2
from google.protobuf.message import Message

from nibble_client import v1

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True)
class Method(Generic[Request, Response]):
    path: str  # "/package.Service/Method"
    request: type[Request]
    response: type[Response]


class Unary(Method[Request, Response]):
    """One request, one answer."""


class ServerStream(Method[Request, Response]):
    """One request, a stream of answers."""


class ClientStream(Method[Request, Response]):
    """A stream of requests, one answer."""


_DATASETS = "/nibble.v1.DatasetService/"
UPLOAD_DATASET = ClientStream(_DATASETS + "UploadDataset", v1.UploadDatasetRequest, v1.Dataset)
GET_DATASET = Unary(_DATASETS + "GetDataset", v1.GetDatasetRequest, v1.Dataset)
LIST_DATASETS = Unary(_DATASETS + "ListDatasets", v1.ListDatasetsRequest, v1.ListDatasetsResponse)
DELETE_DATASET = Unary(_DATASETS + "DeleteDataset", v1.DeleteDatasetRequest, v1.DeleteDatasetResponse)
PREVIEW_DATASET = Unary(_DATASETS + "PreviewDataset", v1.PreviewDatasetRequest, v1.PreviewDatasetResponse)
DOWNLOAD_DATASET = ServerStream(
    _DATASETS + "DownloadDataset", v1.DownloadDatasetRequest, v1.DownloadDatasetResponse)

_JOBS = "/nibble.v1.FineTuneService/"
PLAN_JOB = Unary(_JOBS + "PlanJob", v1.PlanJobRequest, operations_pb2.Operation)
CREATE_JOB = Unary(_JOBS + "CreateJob", v1.CreateJobRequest, v1.Job)
GET_JOB = Unary(_JOBS + "GetJob", v1.GetJobRequest, v1.Job)
LIST_JOBS = Unary(_JOBS + "ListJobs", v1.ListJobsRequest, v1.ListJobsResponse)
DELETE_JOB = Unary(_JOBS + "DeleteJob", v1.DeleteJobRequest, v1.DeleteJobResponse)
WATCH_JOB = ServerStream(_JOBS + "WatchJob", v1.WatchJobRequest, v1.JobEvent)
WATCH_JOB_LOGS = ServerStream(_JOBS + "WatchJobLogs", v1.WatchJobLogsRequest, v1.JobLogChunk)
LIST_JOB_EVENTS = Unary(_JOBS + "ListJobEvents", v1.ListJobEventsRequest, v1.ListJobEventsResponse)
LIST_CHECKPOINTS = Unary(_JOBS + "ListCheckpoints", v1.ListCheckpointsRequest, v1.ListCheckpointsResponse)
CANCEL_JOB = Unary(_JOBS + "CancelJob", v1.CancelJobRequest, v1.Job)
PAUSE_JOB = Unary(_JOBS + "PauseJob", v1.PauseJobRequest, v1.Job)
RESUME_JOB = Unary(_JOBS + "ResumeJob", v1.ResumeJobRequest, v1.Job)
CHECKPOINT_JOB = Unary(_JOBS + "CheckpointJob", v1.CheckpointJobRequest, v1.Job)

_MODELS = "/nibble.v1.ModelService/"
UPLOAD_MODEL = ClientStream(_MODELS + "UploadModel", v1.UploadModelRequest, v1.UploadModelResponse)
LIST_MODELS = Unary(_MODELS + "ListModels", v1.ListModelsRequest, v1.ListModelsResponse)
GET_MODEL = Unary(_MODELS + "GetModel", v1.GetModelRequest, v1.Model)
DELETE_MODEL = Unary(_MODELS + "DeleteModel", v1.DeleteModelRequest, v1.DeleteModelResponse)
IMPORT_MODEL = Unary(_MODELS + "ImportModel", v1.ImportModelRequest, operations_pb2.Operation)
CONVERT_MODEL = Unary(_MODELS + "ConvertModel", v1.ConvertModelRequest, operations_pb2.Operation)
EXPORT_MODEL = Unary(_MODELS + "ExportModel", v1.ExportModelRequest, operations_pb2.Operation)
DOWNLOAD_ARTIFACT = ServerStream(
    _MODELS + "DownloadArtifact", v1.DownloadArtifactRequest, v1.DownloadArtifactResponse)
LOAD_MODEL = Unary(_MODELS + "LoadModel", v1.LoadModelRequest, operations_pb2.Operation)
UNLOAD_MODEL = Unary(_MODELS + "UnloadModel", v1.UnloadModelRequest, v1.UnloadModelResponse)
PUBLISH_CHECKPOINT = Unary(_MODELS + "PublishCheckpoint", v1.PublishCheckpointRequest, operations_pb2.Operation)
VERIFY_MODEL = Unary(_MODELS + "VerifyModel", v1.VerifyModelRequest, operations_pb2.Operation)

_INFERENCE = "/nibble.v1.InferenceService/"
GENERATE = Unary(_INFERENCE + "Generate", v1.GenerateRequest, v1.GenerateResponse)
GENERATE_STREAM = ServerStream(_INFERENCE + "GenerateStream", v1.GenerateStreamRequest, v1.GenerateReply)
CHAT = Unary(_INFERENCE + "Chat", v1.ChatRequest, v1.GenerateResponse)
CHAT_STREAM = ServerStream(_INFERENCE + "ChatStream", v1.ChatStreamRequest, v1.GenerateReply)
SCORE_STREAM = ServerStream(_INFERENCE + "ScoreStream", v1.ScoreStreamRequest, v1.ScoreReply)
EMBED = Unary(_INFERENCE + "Embed", v1.EmbedRequest, v1.EmbedResponse)
TOKENIZE = Unary(_INFERENCE + "Tokenize", v1.TokenizeRequest, v1.TokenizeResponse)
DETOKENIZE = Unary(_INFERENCE + "Detokenize", v1.DetokenizeRequest, v1.DetokenizeResponse)
RENDER_TEMPLATE = Unary(_INFERENCE + "RenderTemplate", v1.RenderTemplateRequest, v1.RenderTemplateResponse)
GET_TOKENIZER_CONFIG = Unary(
    _INFERENCE + "GetTokenizerConfig", v1.GetTokenizerConfigRequest, v1.GetTokenizerConfigResponse)
ABORT = Unary(_INFERENCE + "Abort", v1.AbortRequest, v1.AbortResponse)

_SERVER = "/nibble.v1.ServerService/"
GET_SERVER_INFO = Unary(_SERVER + "GetServerInfo", v1.GetServerInfoRequest, v1.ServerInfo)
GET_LOAD = Unary(_SERVER + "GetLoad", v1.GetLoadRequest, v1.ServerLoad)
WATCH_LOAD = ServerStream(_SERVER + "WatchLoad", v1.WatchLoadRequest, v1.ServerLoad)
DRAIN = Unary(_SERVER + "Drain", v1.DrainRequest, v1.DrainResponse)

_UPLOADS = "/nibble.v1.UploadService/"
GET_UPLOAD = Unary(_UPLOADS + "GetUpload", v1.GetUploadRequest, v1.Upload)
LIST_UPLOADS = Unary(_UPLOADS + "ListUploads", v1.ListUploadsRequest, v1.ListUploadsResponse)
CANCEL_UPLOAD = Unary(_UPLOADS + "CancelUpload", v1.CancelUploadRequest, v1.CancelUploadResponse)

_OPERATIONS = "/google.longrunning.Operations/"
GET_OPERATION = Unary(_OPERATIONS + "GetOperation", operations_pb2.GetOperationRequest, operations_pb2.Operation)
WAIT_OPERATION = Unary(_OPERATIONS + "WaitOperation", operations_pb2.WaitOperationRequest, operations_pb2.Operation)
LIST_OPERATIONS = Unary(
    _OPERATIONS + "ListOperations", operations_pb2.ListOperationsRequest, operations_pb2.ListOperationsResponse)
CANCEL_OPERATION = Unary(_OPERATIONS + "CancelOperation", operations_pb2.CancelOperationRequest, empty_pb2.Empty)
DELETE_OPERATION = Unary(_OPERATIONS + "DeleteOperation", operations_pb2.DeleteOperationRequest, empty_pb2.Empty)

# The methods that start an operation, by their requests.
STARTS: dict[type[Message], Unary[Any, operations_pb2.Operation]] = {
    method.request: method for method in (
        PLAN_JOB, IMPORT_MODEL, CONVERT_MODEL, EXPORT_MODEL, LOAD_MODEL, PUBLISH_CHECKPOINT, VERIFY_MODEL)}
