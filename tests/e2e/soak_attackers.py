"""soak_attackers.py GRPC_ADDRESS: runs misbehaving clients against the gRPC port, one thread for each kind, at the
lowest priority, until the process is killed. Refusals do not stop them. Prints "ready" when each kind has succeeded
once.
  lists    asks for a page of jobs with a filter that matches no job
  claims   begins messages of 2 GiB and closes
  garbage  sends bytes that are not HTTP/2
  floods   leaves each connection for a new one, 100 a second
  deaf     opens watches that send ten messages a second, and reads only the first message of each
  cuts     begins uploads and cancels them
  cancels  begins generations and cancels them at once"""
import contextlib
import os
import random
import socket
import struct
import sys
import threading
import time

import grpc

from http2 import DATA, HEADERS, Connection, call_headers, frame
from wire import Api, message


def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=5)


def lists(address, api):
    api.call("FineTuneService", "ListJobs", message("ListJobsRequest", page_size=1, filter=message("JobFilter", base_model="none")))


def claims(address, api):
    connections = [Connection(address) for _ in range(5)]
    for connection in connections:
        connection.send(frame(HEADERS, 4, 1, call_headers(b"/nibble.v1.ModelService/ListModels"))
                        + frame(DATA, 0, 1, b"\0" + struct.pack(">I", 0x80000001) + b"x" * 1000))
    time.sleep(0.5)
    for connection in connections:
        connection.close()


def garbage(address, api):
    with connect(address) as connection:
        connection.sendall(random.randbytes(500))
        time.sleep(0.1)


def floods(address, api):
    connect(address).close()
    time.sleep(0.01)


def deaf(address, api):
    watches = [api.stream("ServerService", "WatchLoad", interval={"nanos": 100_000_000}) for _ in range(20)]
    for watch in watches:
        next(watch)
    time.sleep(5)
    for watch in watches:
        watch.cancel()


def cuts(address, api):
    invoke, request = api.bind(api.channel.stream_unary, "DatasetService", "UploadDataset")
    hang = threading.Event()

    def messages():
        yield request(header={"name": "cut"})
        yield request(chunk=b'{"text": "The keeper"}\n' * 1000)
        hang.wait(10)
    call = invoke.future(messages())
    time.sleep(0.2)
    call.cancel()
    hang.set()


def cancels(address, api):
    answer = api.stream("InferenceService", "GenerateStream", request={
        "model": "small-int8", "text": "The tide", "stopping": {"max_tokens": 500, "ignore_eos": True}})
    next(answer)
    answer.cancel()
    time.sleep(0.1)


def repeat(kind, address, begun):
    api = Api(address)
    while True:
        with contextlib.suppress(grpc.RpcError, OSError):
            kind(address, api)
            begun.set()


if __name__ == "__main__":
    os.nice(19)
    kinds = {kind: threading.Event() for kind in (lists, claims, garbage, floods, deaf, cuts, cancels)}
    for kind, begun in kinds.items():
        threading.Thread(target=repeat, args=(kind, sys.argv[1], begun), daemon=True).start()
    for kind, begun in kinds.items():
        assert begun.wait(60), f"{kind.__name__} has not succeeded within 60 s"
    print("ready", flush=True)
    threading.Event().wait()
