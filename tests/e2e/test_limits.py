"""Gives low values to the flags that limit connections, calls, streams and jobs, then reaches these limits (more limits
of jobs: tests/server/jobs/admission_test.cc)."""
import contextlib
import json
import os
import pathlib
import signal
import struct
import threading
import time

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import small_model
from conftest import PAGE, TRAIN, Server, trainers
from http2 import GOAWAY, HEADERS, MAX_CONCURRENT_STREAMS, PING, SETTINGS, Connection, call_headers, frame
from test_message_limits import code_of, field
from test_kill import create, wait_for_step
from test_reliability import prepare
from test_security import new_token
from wire import Api, message, wait_for
from soon import soon

CREATE = ["jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", *TRAIN]


def test_silent_and_idle_connections_are_closed(make_server):
    server = make_server("--handshake_timeout_s", 1, "--max_connection_idle_s", 1)
    silent, idle = Connection(server.grpc, hello=False), Connection(server.grpc)
    assert silent.closed_within(10) is not None, "handshake_timeout_s"
    assert idle.closed_within(10) is not None, "max_connection_idle_s"


def test_old_connection_is_closed(make_server):
    server = make_server("--max_connection_age_s", 1, "--max_connection_age_grace_s", 1)
    connection = Connection(server.grpc)
    open_call = frame(HEADERS, 4, 1, call_headers(b"/nibble.v1.FineTuneService/WatchJob"))
    connection.send(open_call)
    assert connection.closed_within(10) is not None


def test_client_that_does_not_answer_pings_is_cut_off(make_server):
    server = make_server("--keepalive_time_s", 1, "--keepalive_timeout_s", 1)
    connection = Connection(server.grpc)
    connection.send(frame(HEADERS, 4, 1, call_headers(b"/nibble.v1.DatasetService/UploadDataset")))  # and nothing more
    kinds = [kind for kind, flags, _, _ in connection.frames(10) if not (kind == PING and flags & 1)]
    assert PING in kinds and kinds[-1] in (GOAWAY, "closed"), kinds


def test_client_that_pings_too_often_gets_goaway(make_server):
    server = make_server("--min_ping_interval_s", 60, "--max_ping_strikes", 1)
    connection = Connection(server.grpc)
    # All in one write: the server may close the connection before a later ping could be sent.
    connection.send(b"".join(frame(PING, 0, 0, struct.pack(">Q", i)) for i in range(5)))
    goaway = [payload for kind, _, _, payload in connection.frames(5) if kind == GOAWAY]
    assert goaway and b"too_many_pings" in goaway[0]


def test_stream_limit_of_a_connection_is_announced(make_server):
    server = make_server("--max_concurrent_streams", 7)
    for kind, _, _, payload in Connection(server.grpc).frames(5):
        if kind == SETTINGS and payload:
            settings = {struct.unpack(">HI", payload[i:i + 6]) for i in range(0, len(payload), 6)}
            assert (MAX_CONCURRENT_STREAMS, 7) in settings
            return
    raise AssertionError("no SETTINGS")


def test_large_messages_and_headers_are_refused(make_server, text_file):
    server = make_server("--max_receive_bytes", 5000, "--max_metadata_bytes", 1024, "--max_stream_messages", 5,
                         "--max_dataset_bytes", 100, "--max_stream_age_s", 3600)
    # gRPC may close a connection after headers that are too large: a call that shared it could then end UNAVAILABLE.
    separate = grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)])
    models = separate.unary_unary("/nibble.v1.ModelService/ListModels")
    assert models(b"") == b""
    assert code_of(lambda: models(b"", metadata=[("x-big", "y" * 4000)])) == grpc.StatusCode.RESOURCE_EXHAUSTED
    channel = grpc.insecure_channel(server.grpc)
    create = channel.unary_unary("/nibble.v1.FineTuneService/CreateJob")
    assert code_of(lambda: create(field(2, b"x" * 6000))) == grpc.StatusCode.RESOURCE_EXHAUSTED
    upload = channel.stream_unary("/nibble.v1.DatasetService/UploadDataset")
    header = field(1, field(1, b"name"))
    assert code_of(lambda: upload(iter([header] + [field(2, b"x")] * 6))) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert code_of(lambda: upload(iter([header, field(2, b"x" * 101)]))) in (grpc.StatusCode.RESOURCE_EXHAUSTED,
                                                                             grpc.StatusCode.INVALID_ARGUMENT)
    assert server.run("datasets", "upload", text_file, "--name", "page", check=False).returncode != 0


def test_answer_above_max_send_bytes_is_refused(make_server, model_directory):
    server = make_server("--max_send_bytes", 64 << 10)
    server.run("models", "import", model_directory, "--name", "small")
    api = Api(server.grpc)
    assert len(api.call("InferenceService", "Tokenize", model="small", text="x" * 4000).token_ids) == 4000
    # Each token takes 4 bytes of the answer, for its id and its text.
    code = code_of(lambda: api.call("InferenceService", "Tokenize", model="small", text="x" * 40_000))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.json("models", "list")["models"], "the server still answers"


def info_of(error):
    details = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in details.details)
    return info


def stage_of(error):
    """The stage at which the deadline ended the call: metadata `stage` of its ErrorInfo."""
    return info_of(error).metadata["stage"]


def test_generate_without_a_client_deadline_has_the_deadline_of_the_server(make_server, model_directory):
    server = make_server("--generate_deadline_s", "0.05")
    server.run("models", "import", model_directory, "--name", "small")
    server.run("models", "load", "small")
    api = Api(server.grpc)
    limits = server.json("server", "info")["limits"]
    assert limits["generate_deadline"] == "0.050s" and "operation_deadline" not in limits
    request = message("GenerateRequest", model="small", text="The boat")
    request.stopping.max_tokens, request.stopping.ignore_eos, request.sampling.n = 900, True, 16
    stages = set()
    for _ in range(10):
        with pytest.raises(grpc.RpcError) as late:
            api.call("InferenceService", "Generate", request, timeout=None)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        stages.add(stage_of(late.value))
    assert stages & {"PREFILL", "DECODE"}, f"the deadline ends running requests too: {stages}"
    assert len(api.call("InferenceService", "Generate", request, timeout=120).outputs) == 16, "the client's deadline"


@contextlib.contextmanager
def silent_upload(server):
    """An upload whose client sends a name and then nothing."""
    silence = threading.Event()

    def messages():
        yield field(1, field(1, b"silent"))
        silence.wait(120)

    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.stream_unary("/nibble.v1.DatasetService/UploadDataset").future(messages())
        try:
            soon(lambda: os.listdir(server.state / "uploads"))
            yield call
        finally:
            silence.set()


def test_silent_upload_ends_at_max_stream_age(make_server):
    server = make_server("--max_stream_age_s", 2)
    with silent_upload(server) as upload:
        assert upload.exception(timeout=60).code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert os.listdir(server.state / "uploads") == [] and server.json("datasets", "list")["datasets"] == []


def test_drain_waits_for_calls_no_longer_than_drain_s(make_server):
    server = make_server("--drain_s", 2)
    with silent_upload(server) as upload:
        began = time.monotonic()
        assert server.stop() == 0
        took = time.monotonic() - began
        assert upload.exception(timeout=60).code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    assert 2 <= took < 15, "the default of 20 s does not apply"


@pytest.mark.parametrize("command, state", [(["pause"], "PAUSED"), (["cancel", "--keep-checkpoint"], "CANCELLED")])
def test_trainer_that_writes_no_checkpoint_is_killed_after_its_grace(make_server, model_directory, text_file, command, state):
    server = prepare(make_server("--pause_grace_s", 1, "--cancel_grace_s", 100), model_directory, text_file)
    job = create(server, "frozen")
    wait_for_step(server, job, 2)
    (pid,) = trainers(server)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    server.run("jobs", *command, job)
    soon(lambda: not pathlib.Path(f"/proc/{pid}").exists(), seconds=30)
    assert time.monotonic() - began >= 1
    soon(lambda: server.json("jobs", "get", job)["state"] == state)


def test_trainer_is_killed_at_shutdown_after_its_grace(make_server, model_directory, text_file):
    server = prepare(make_server("--job_grace_s", 1), model_directory, text_file)
    job = create(server, "frozen")
    wait_for_step(server, job, 2)
    (pid,) = trainers(server)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert server.stop() == 0
    assert 1 <= time.monotonic() - began < 15, "the default of 25 s does not apply"
    assert not trainers(server)
    server.start()
    server.run("jobs", "watch", job)
    got = server.json("jobs", "get", job)
    assert got["state"] == "SUCCEEDED" and got["retries"] == 0


def test_full_queue_refuses_the_next_job(make_server, model_directory, text_file):
    server = prepare(make_server("--max_queued_jobs", 2, "--max_running_jobs", 2), model_directory, text_file)
    first = server.json(*CREATE, "--max-steps", 1000)["id"]
    second = server.json(*CREATE, "--max-steps", 1000)["id"]
    soon(lambda: all(server.json("jobs", "get", job)["state"] == "RUNNING" for job in (first, second)))
    third = server.json(*CREATE, "--max-steps", 2)["id"]
    server.json(*CREATE, "--max-steps", 2)
    assert server.json("jobs", "get", third)["state"] == "QUEUED"
    refused = server.run(*CREATE, "--max-steps", 2, check=False)
    assert refused.returncode != 0 and "QUEUE_FULL" in refused.stderr
    for job in (first, second):
        server.run("jobs", "cancel", job)
    soon(lambda: server.json("jobs", "get", third)["state"] == "SUCCEEDED", seconds=120)


def test_job_fails_after_max_retries(make_server, model_directory, text_file):
    server = prepare(make_server("--max_retries", 1, "--retry_backoff_scale", "0.01"), model_directory, text_file)
    server.stop()
    server.environment = {"NIBBLE_FAILPOINT": "checkpoints/step-00000001:1:before"}  # of every attempt
    server.start()
    job = server.json(*CREATE, "--max-steps", 4, "--save-every", 1)["id"]
    assert server.run("jobs", "watch", job, check=False).returncode != 0
    got = server.json("jobs", "get", job)
    assert got["state"] == "FAILED" and got["attempt"] == 2 and got["retries"] == 2
    # The state is reported first, then counted.
    soon(lambda: server.metrics()['nibble_jobs_finished_total{method="qlora",result="FAILED"}'] == 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to see the descriptors of another process")
def test_connections_are_closed_when_their_clients_are_gone(make_server):
    server = make_server()
    before = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    for connection in [Connection(server.grpc) for _ in range(100)]:
        connection.close()
    soon(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) <= before + 2)


DOWNLOAD = "/nibble.v1.ModelService/DownloadArtifact"


def reason_of(error):
    return info_of(error).reason


def exported(server, tmp_path):
    """The request of a download of about 4 MB: more than the connection buffers for a client that does not read."""
    model = small_model.write(tmp_path / "model", hidden_size=128, intermediate_size=704, num_attention_heads=8)
    server.run("models", "import", model, "--name", "small", "--dtype", "f32")
    server.run("models", "export", "small", "--format", "hf", "--out", tmp_path / "out")
    (export,) = [name for name in os.listdir(server.state / "uploads") if name.startswith("export-")]
    return field(1, export.encode())


def test_c12_watches_and_downloads_have_a_bound(make_server, tmp_path):
    server = make_server("--max_watches", 2, "--max_downloads", 1)
    api = Api(server.grpc)
    watches = [api.stream("ServerService", "WatchLoad") for _ in range(2)]
    for watch in watches:
        next(watch)
    for service, method in (("ServerService", "WatchLoad"), ("FineTuneService", "WatchJob"), ("FineTuneService", "WatchJobLogs")):
        with pytest.raises(grpc.RpcError) as refused:
            next(api.stream(service, method))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and reason_of(refused.value) == "STREAMS_FULL"
    assert server.metrics()['nibble_rejected_total{reason="STREAMS_FULL"}'] == 3
    watches[0].cancel()

    def another():
        try:
            return next(api.stream("ServerService", "WatchLoad"))
        except grpc.RpcError:
            return None
    soon(another)

    request = exported(server, tmp_path)
    with grpc.insecure_channel(server.grpc, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        download = channel.unary_stream(DOWNLOAD)
        first = download(request)
        next(first)
        with pytest.raises(grpc.RpcError) as refused:
            next(download(request))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and reason_of(refused.value) == "STREAMS_FULL"
        assert sum(len(message) for message in first) > 3_000_000


def test_c12_download_that_is_not_read_is_ended(make_server, tmp_path):
    server = make_server("--slow_reader_s", 1)
    request = exported(server, tmp_path)
    with grpc.insecure_channel(server.grpc, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        download = channel.unary_stream(DOWNLOAD)(request)
        next(download)
        time.sleep(3)  # longer than --slow_reader_s, shorter than the server's wait for the status to be read
        with pytest.raises(grpc.RpcError) as slow:
            for _ in download:
                pass
        assert slow.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and reason_of(slow.value) == "SLOW_CONSUMER"
        # A download that is read is complete.
        assert sum(len(message) for message in channel.unary_stream(DOWNLOAD)(request)) > 3_000_000


@pytest.fixture
def two_principals(tmp_path):
    """A server on which one principal may have one plan, one watch and one download, and the APIs of two such
    principals."""
    tokens = {name: new_token(tmp_path, name, role) for name, role in (("first", "train"), ("second", "train"), ("admin", "admin"))}
    bounds = [argument for kind in ("plans", "watches", "downloads") for argument in (f"--max_{kind}_per_principal", 1)]
    server = Server(tmp_path / "state", "--token_file", tmp_path / "tokens", *bounds)
    server.client_flags = ["--token-file", tokens["admin"]]
    server.start()
    apis = [Api(server.grpc, tokens[name].read_text().strip()) for name in ("first", "second")]
    yield server, *apis
    for api in apis:
        api.close()
    server.stop()


def check_refused(call, reason, flag):
    with pytest.raises(grpc.RpcError) as refused:
        call()
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    info = info_of(refused.value)
    assert (info.reason, info.metadata["flag"], info.metadata["max"]) == (reason, flag, "1")


def test_C4_plans_of_one_principal_have_a_bound(two_principals, model_directory, text_file, tmp_path):
    server, first, second = two_principals
    large = tmp_path / "large.jsonl"
    large.write_text((json.dumps({"text": PAGE * 16}) + "\n") * 10_000)  # some 30 MiB: seconds of planning
    prepare(server, model_directory, text_file).run("datasets", "upload", large, "--name", "large")

    def plan(api, dataset):
        request = message("PlanJobRequest")
        spec = request.spec
        spec.base_model, spec.train_dataset, spec.qlora.r, spec.data.max_seq_len, spec.run.max_steps = "small", dataset, 4, 64, 2
        return api.call("FineTuneService", "PlanJob", request)

    running = plan(first, "large")
    check_refused(lambda: plan(first, "page"), "QUEUE_FULL", "--max_plans_per_principal")
    wait_for(second, plan(second, "page"))
    # The running plan held its place all the time.
    assert not first.call("google.longrunning.Operations", "GetOperation", name=running.name).done
    first.call("google.longrunning.Operations", "CancelOperation", name=running.name)
    first.call("google.longrunning.Operations", "WaitOperation", name=running.name)
    wait_for(first, plan(first, "page"))


def test_C4_watches_and_downloads_of_one_principal_have_a_bound(two_principals, tmp_path):
    server, first, second = two_principals
    watch = first.stream("ServerService", "WatchLoad")
    next(watch)
    for service, method in (("ServerService", "WatchLoad"), ("FineTuneService", "WatchJob")):
        check_refused(lambda: next(first.stream(service, method)), "STREAMS_FULL", "--max_watches_per_principal")
    next(second.stream("ServerService", "WatchLoad"))

    request = exported(server, tmp_path)
    with grpc.insecure_channel(server.grpc, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        download = channel.unary_stream(DOWNLOAD)
        unread = download(request, metadata=first.metadata)
        next(unread)
        check_refused(lambda: next(download(request, metadata=first.metadata)), "STREAMS_FULL", "--max_downloads_per_principal")
        assert sum(len(message) for message in download(request, metadata=second.metadata)) > 3_000_000
        assert sum(len(message) for message in unread) > 3_000_000, "refusals do not end other downloads"
