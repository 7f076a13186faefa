"""The API over gRPC without generated code: messages come from protoc's descriptor set of the protos."""
import functools
import pathlib
import subprocess
import tempfile
import threading
import time

import google.rpc
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FILES = ["fine_tune_service", "server_service", "inference_service", "dataset_service", "upload_service", "model_service"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
POOL_LOCK = threading.Lock()


@functools.lru_cache(maxsize=None)
def make_pool():
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "set"
        googleapis = pathlib.Path(list(google.rpc.__path__)[0]).parents[1]  # googleapis-common-protos
        # The wheel has this file under a name that differs from the import in protos.
        longrunning = pathlib.Path(folder) / "google/longrunning/operations.proto"
        longrunning.parent.mkdir(parents=True)
        longrunning.symlink_to(googleapis / "google/longrunning/operations_proto.proto")
        include = ["-I", ROOT / "proto", "-I", folder, "-I", googleapis]
        subprocess.run(["protoc", *include, "--include_imports", f"--descriptor_set_out={out}",
                        *(ROOT / "proto/nibble/v1" / f"{name}.proto" for name in FILES)], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    made = descriptor_pool.DescriptorPool()
    for file in files.file:
        made.Add(file)
    return made


def pool():
    """One pool for all threads: messages of different pools never compare equal, and lru_cache may run a function twice
    at once."""
    with POOL_LOCK:
        return make_pool()


def message(kind, /, **fields):
    """Makes a message: message("CreateJobRequest", request_id="x")"""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"nibble.v1.{kind}"))(**fields)


class Api:
    """Api(address).call("FineTuneService", "GetJob", name=id); `token` is sent with its calls."""

    def __init__(self, address, token=None):
        self.metadata = [("authorization", "Bearer " + token)] if token else None
        # A separate connection, because a shared one may be backing off from a server that is gone.
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])

    @staticmethod
    def bind(kind, service, method):
        """Returns the method as a callable, and the class of its requests. A service of another package needs its full
        name."""
        service = service if "." in service else f"nibble.v1.{service}"
        described = pool().FindServiceByName(service).FindMethodByName(method)
        inputs = message_factory.GetMessageClass(described.input_type)
        outputs = message_factory.GetMessageClass(described.output_type)
        return kind(f"/{service}/{method}", inputs.SerializeToString, outputs.FromString), inputs

    def call(self, service, method, request=None, /, timeout=30, **fields):
        invoke, inputs = self.bind(self.channel.unary_unary, service, method)
        return invoke(request if request is not None else inputs(**fields), timeout=timeout, metadata=self.metadata)

    def stream(self, service, method, /, timeout=30, **fields):
        """Iterates over the answers as they arrive."""
        invoke, inputs = self.bind(self.channel.unary_stream, service, method)
        return invoke(inputs(**fields), timeout=timeout, metadata=self.metadata)

    def close(self):
        self.channel.close()


def wait_for(api, operation, timeout=7200):
    """Waits until an operation of google.longrunning is done; fails if it ended with an error."""
    until = time.monotonic() + timeout
    while not operation.done:
        assert time.monotonic() < until, f"{operation.name} took more than {timeout} s"
        operation = api.call("google.longrunning.Operations", "WaitOperation", name=operation.name, timeout=60)
    assert not operation.HasField("error"), operation.error
    return operation


def unpacked(operation, kind):
    """The response of an operation that has ended: unpacked(done, "VerifyModelResponse")"""
    response = message(kind)
    assert operation.response.Unpack(response), operation.response.type_url
    return response
