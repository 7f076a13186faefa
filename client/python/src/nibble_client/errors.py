"""Errors as exceptions. docs/errors.md of the repository lists every reason.

Each gRPC code has a class, and so has each reason that a program may want to handle: `except QueueFull` and
`except ResourceExhausted` both catch a full queue. A reason without a class raises the class of its code.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from nibble_client.v1 import inference_service_pb2, model_service_pb2

# Trailing metadata with a google.rpc.Status.
_DETAILS = "grpc-status-details-bin"
# Types of details that an error can carry.
_DETAIL_TYPES: tuple[type[Message], ...] = (
    error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo,
    error_details_pb2.ResourceInfo, error_details_pb2.PreconditionFailure, error_details_pb2.QuotaFailure,
    error_details_pb2.RequestInfo, inference_service_pb2.Usage, model_service_pb2.ConversionReport)


@dataclass(frozen=True)
class Violation:
    """One wrong field of a request, or one bad line of a dataset."""

    field: str
    description: str


class NibbleError(Exception):
    """An error of the server, of the connection, or of arguments that this client refuses before it sends them."""

    # The code of a class of a code or a reason, and the reason of a class of a reason.
    _code: ClassVar[grpc.StatusCode | None] = None
    _reason: ClassVar[str] = ""

    def __init__(self, message: str, *, code: grpc.StatusCode | None = None, reason: str = "",
                 metadata: Mapping[str, str] | None = None, details: Sequence[Message] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.code: grpc.StatusCode = code or self._code or grpc.StatusCode.UNKNOWN
        # The reason for programs, such as "QUEUE_FULL"; "" if the server, or gRPC itself, gave none.
        self.reason = reason or self._reason
        # Details of the reason from the server, such as "max" or "field".
        self.metadata = dict(metadata or {})
        # The details of the error that this client knows: messages of google.rpc, Usage and ConversionReport.
        self.details = tuple(details)

    def __str__(self) -> str:
        named = self.code.name if self.reason in ("", self.code.name) else f"{self.code.name} {self.reason}"
        return f"{named}: {self.message}"

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The wrong fields, or the first bad lines of a dataset."""
        return tuple(Violation(found.field, found.description) for detail in self.details
                     if isinstance(detail, error_details_pb2.BadRequest) for found in detail.field_violations)

    @property
    def field(self) -> str | None:
        """The first wrong field; None if the error is not about a field."""
        if "field" in self.metadata:
            return self.metadata["field"]
        return self.violations[0].field if self.violations else None

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server expects a retry to succeed; None if waiting does not help."""
        for detail in self.details:
            if isinstance(detail, error_details_pb2.RetryInfo):
                return float(detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9)
        return None

    @property
    def usage(self) -> inference_service_pb2.Usage | None:
        """Tokens and time that a generation or a score used before it failed; None before its first step."""
        return next((detail for detail in self.details if isinstance(detail, inference_service_pb2.Usage)), None)

    @property
    def request_id(self) -> str | None:
        """The id under which the server logged an internal error."""
        return next((detail.request_id for detail in self.details
                     if isinstance(detail, error_details_pb2.RequestInfo)), None)


# Classes of codes.


class Cancelled(NibbleError):
    _code = grpc.StatusCode.CANCELLED


class UnknownError(NibbleError):
    _code = grpc.StatusCode.UNKNOWN


class InvalidArgument(NibbleError):
    _code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(NibbleError):
    _code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFound(NibbleError):
    _code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(NibbleError):
    _code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDenied(NibbleError):
    _code = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhausted(NibbleError):
    _code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(NibbleError):
    _code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(NibbleError):
    _code = grpc.StatusCode.ABORTED


class OutOfRange(NibbleError):
    _code = grpc.StatusCode.OUT_OF_RANGE


class Unimplemented(NibbleError):
    _code = grpc.StatusCode.UNIMPLEMENTED


class InternalError(NibbleError):
    _code = grpc.StatusCode.INTERNAL


class Unavailable(NibbleError):
    _code = grpc.StatusCode.UNAVAILABLE


class DataLoss(NibbleError):
    _code = grpc.StatusCode.DATA_LOSS


class Unauthenticated(NibbleError):
    _code = grpc.StatusCode.UNAUTHENTICATED


# Classes of reasons.


class FieldError(InvalidArgument):
    """A field of a request is missing, out of range or contradicts another (`field`)."""

    _reason = "FIELD_VIOLATION"


class DatasetFormatError(InvalidArgument):
    """Lines of a dataset are not rows of its format (`violations` names them)."""

    _reason = "DATASET_FORMAT"


class DatasetEmpty(InvalidArgument):
    """The dataset has no rows."""

    _reason = "DATASET_EMPTY"


class NoTrainableTokens(InvalidArgument):
    """The dataset has no token to train."""

    _reason = "NO_TRAINABLE_TOKENS"


class TemplateError(InvalidArgument):
    """The chat template rejects the conversation, or the model has no template."""

    _reason = "TEMPLATE_ERROR"


class PromptTooLong(InvalidArgument):
    """The prompt has more tokens than the model takes (metadata `tokens`, `max`)."""

    _reason = "PROMPT_TOO_LONG"


class ModelFormatError(InvalidArgument):
    """A file of an import is inconsistent or not supported."""

    _reason = "MODEL_FORMAT"


class NanLoss(InvalidArgument):
    """A job failed because its loss is not a number."""

    _reason = "NAN_LOSS"


class ModelNotFound(NotFound):
    """No model has this name."""

    _reason = "MODEL"


class DatasetNotFound(NotFound):
    """No dataset has this name."""

    _reason = "DATASET"


class JobNotFound(NotFound):
    """No job has this name."""

    _reason = "JOB"


class CheckpointNotFound(NotFound):
    """No checkpoint has this name."""

    _reason = "CHECKPOINT"


class OperationNotFound(NotFound):
    """No operation has this name."""

    _reason = "OPERATION"


class UploadNotFound(NotFound):
    """The upload never began, was dropped, or has been used."""

    _reason = "UPLOAD"


class ArtifactNotFound(NotFound):
    """The files of the export are gone."""

    _reason = "ARTIFACT"


class NameTaken(AlreadyExists):
    """The name is in use, or an unfinished job will publish under it."""

    _reason = "NAME_TAKEN"


class IdempotencyConflict(AlreadyExists):
    """The request id was used for another request."""

    _reason = "IDEMPOTENCY_CONFLICT"


class EtagMismatch(Aborted):
    """The resource has changed since (metadata `etag`)."""

    _reason = "ETAG_MISMATCH"


class ServerRestarted(Aborted):
    """The operation was lost with its server; start it again."""

    _reason = "SERVER_RESTARTED"


class IllegalState(FailedPrecondition):
    """The state of the job or of the operation does not allow this."""

    _reason = "ILLEGAL_STATE"


class ModelInUse(FailedPrecondition):
    """A job, a conversion or serving uses the model (metadata `user`)."""

    _reason = "MODEL_IN_USE"


class DatasetInUse(FailedPrecondition):
    """A job uses the dataset (metadata `user`)."""

    _reason = "DATASET_IN_USE"


class ModelNotLoaded(FailedPrecondition):
    """The model to unload is not loaded."""

    _reason = "MODEL_NOT_LOADED"


class BaseMismatch(FailedPrecondition):
    """The adapter or the checkpoint was trained on other weights (metadata `got`, `wanted`)."""

    _reason = "BASE_MISMATCH"


class NoRecord(FailedPrecondition):
    """The model has no record to verify against."""

    _reason = "NO_RECORD"


class ConversionTolerance(FailedPrecondition):
    """The conversion lost more than allowed (`details` has the ConversionReport)."""

    _reason = "CONVERSION_TOLERANCE"


class QueueFull(ResourceExhausted):
    """Too many requests, calls, jobs or operations wait (`retry_after`)."""

    _reason = "QUEUE_FULL"


class KvFull(ResourceExhausted):
    """The request alone needs more of the KV cache than there is; waiting does not help."""

    _reason = "KV_FULL"


class TenantQuota(ResourceExhausted):
    """The principal has the maximum number of jobs (`retry_after`)."""

    _reason = "TENANT_QUOTA"


class OutOfDeviceMemory(ResourceExhausted):
    """A model, a job or a piece of work does not fit the memory (metadata `need`, `have`, `plan`)."""

    _reason = "OUT_OF_DEVICE_MEMORY"


class DiskFull(ResourceExhausted):
    """The server has too little disk space for new data."""

    _reason = "DISK_FULL"


class MessageTooLarge(ResourceExhausted):
    """An answer exceeds the limit of a message; use the stream, or ask for less."""

    _reason = "MESSAGE_TOO_LARGE"


class UploadQuota(ResourceExhausted):
    """The uploads of the principal hold the maximum number of bytes."""

    _reason = "UPLOAD_QUOTA"


class UploadTooLarge(ResourceExhausted):
    """An upload exceeds a limit of the server."""

    _reason = "UPLOAD_TOO_LARGE"


class SlowConsumer(ResourceExhausted):
    """This client read an answer or a download too slowly."""

    _reason = "SLOW_CONSUMER"


class StreamsFull(ResourceExhausted):
    """The maximum number of watches or downloads is open."""

    _reason = "STREAMS_FULL"


class Draining(Unavailable):
    """The server is shutting down, or the model is being unloaded."""

    _reason = "DRAINING"


class ArtifactCorrupt(DataLoss):
    """Bytes on the server's disk differ from those that were written."""

    _reason = "ARTIFACT_CORRUPT"


class CheckpointCorrupt(DataLoss):
    """Bytes of a checkpoint differ from those that were written (metadata `checkpoint`, `file`)."""

    _reason = "CHECKPOINT_CORRUPT"


class TokenMissing(Unauthenticated):
    """The server requires a token."""

    _reason = "TOKEN_MISSING"


class TokenInvalid(Unauthenticated):
    """The token is unknown or has expired."""

    _reason = "TOKEN_INVALID"


class RoleMissing(PermissionDenied):
    """The role of the token does not allow this (metadata `needed`)."""

    _reason = "ROLE"


def _subclasses(base: type[NibbleError]) -> list[type[NibbleError]]:
    return [found for direct in base.__subclasses__() for found in (direct, *_subclasses(direct))]


# By (code, reason); the reason of a code's own class is "".
_CLASSES = {(found._code, found._reason): found for found in _subclasses(NibbleError)}


def make_error(code: grpc.StatusCode, message: str, reason: str = "", metadata: Mapping[str, str] | None = None,
               details: Sequence[Message] = ()) -> NibbleError:
    """The error as the class of its code and reason."""
    made = _CLASSES.get((code, reason)) or _CLASSES.get((code, "")) or NibbleError
    return made(message, code=code, reason=reason, metadata=metadata, details=details)


def error_of_status(status: status_pb2.Status) -> NibbleError:
    """The error that a google.rpc.Status describes, such as Job.error or that of an operation."""
    return _make(_code_of(status.code), status.message, status)


def error_of_call(error: grpc.RpcError) -> NibbleError:
    """The error of a call that gRPC, synchronous or asynchronous, ended."""
    if not isinstance(error, (grpc.Call, grpc.aio.AioRpcError)):
        return UnknownError(str(error))
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes):
            try:
                status.MergeFromString(value)
            except DecodeError:
                status.Clear()
    return _make(error.code(), error.details() or "", status)


def field_error(field: str, got: object, wanted: str) -> NoReturn:
    """Raises FieldError for an argument that this client refuses."""
    raise FieldError(f"{field}: got {got}, wanted {wanted}", metadata={"field": field})


def closed() -> Cancelled:
    """The error of a call of a client that was closed. It has a reason, so that a watch does not reconnect."""
    return Cancelled("the client is closed", reason="CANCELLED")


def malformed(what: str) -> DataLoss:
    """The error for an answer that breaks the rules of the API."""
    return DataLoss(f"malformed response: {what}")


def _code_of(number: int) -> grpc.StatusCode:
    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)


def _make(code: grpc.StatusCode, message: str, status: status_pb2.Status) -> NibbleError:
    details: list[Message] = []
    reason = ""
    metadata: dict[str, str] = {}
    for packed in status.details:
        for kind in _DETAIL_TYPES:
            detail = kind()
            if packed.Is(kind.DESCRIPTOR) and packed.Unpack(detail):
                details.append(detail)
                if isinstance(detail, error_details_pb2.ErrorInfo):
                    reason, metadata = detail.reason, dict(detail.metadata)
    # gRPC itself refuses a token without details: the message begins with the reason ("REASON: text").
    refused = code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    leading = re.match(r"([A-Z_]+): ", message) if refused and not reason else None
    if leading is not None:
        reason, message = leading[1], message[leading.end():]
    return make_error(code, message, reason, metadata, details)
