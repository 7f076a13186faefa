from typing import Any

import grpc
import grpc.aio

class UploadServiceStub:
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...
    GetUpload: Any
    ListUploads: Any
    CancelUpload: Any

class UploadServiceServicer:
    def GetUpload(self, request: Any, context: Any) -> Any: ...
    def ListUploads(self, request: Any, context: Any) -> Any: ...
    def CancelUpload(self, request: Any, context: Any) -> Any: ...

def add_UploadServiceServicer_to_server(servicer: UploadServiceServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
