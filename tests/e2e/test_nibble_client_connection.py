"""The Python client over connections that are lost, cut or refused, and over TLS with tokens."""
import hashlib
import threading

import grpc
import pytest

import client_package
from test_job_logs import write
from test_remote import Proxy
from test_security import Secure
from soon import soon

nibble_client = client_package.load()
from nibble_client.v1 import model_service_pb2_grpc  # noqa: E402

errors, v1 = nibble_client.errors, nibble_client.v1
QUICK = nibble_client.Retry(attempts=20, first_wait=0.05, longest_wait=0.2, reconnect_for=60)
JOB = dict(method="qlora", base_model="small", train_dataset="page", micro_batch=2, max_seq_len=96, lr=5e-3, r=4, alpha=8, seed=3)


class CountingProxy(Proxy):
    """Also counts the bytes that go to the server, and can cut all connections after some of them."""

    def __init__(self, target, cut_after=None):
        self.bytes_sent, self.cut_after = 0, cut_after
        super().__init__("127.0.0.1", target)

    def copy(self, source, sink, back):
        if back:
            return super().copy(source, sink, back)

        def send(data):
            sink.sendall(data)
            self.bytes_sent += len(data)
            if self.cut_after is not None and self.bytes_sent > self.cut_after:
                self.cut_after = None
                self.cut()
        return super().copy(source, Sink(send, sink.shutdown), back)


class DownloadProxy(Proxy):
    """Cuts all connections once, after some bytes for the client."""

    def __init__(self, target, cut_after):
        self.cut_after = cut_after
        super().__init__("127.0.0.1", target)

    def copy(self, source, sink, back):
        def send(data):
            sink.sendall(data)
            if back and self.cut_after is not None and self.bytes_back > self.cut_after:
                self.cut_after = None
                self.cut()
        return super().copy(source, Sink(send, sink.shutdown), back)


class Sink:
    def __init__(self, sendall, shutdown):
        self.sendall, self.shutdown = sendall, shutdown


@pytest.fixture(params=["sync", "async"])
def connect(request):
    """connect(address, options of the client)"""
    clients = []

    def make(address, **options):
        clients.append(client_package.connect(request.param, address, **{"retry": QUICK, **options}))
        return clients[-1]

    make.kind = request.param
    yield make
    for client in clients:
        client.__exit__(None, None, None)


def test_watch_continues_after_cut_connections(connect, shared):
    proxy = CountingProxy(shared.grpc)
    client = connect(proxy.address)
    job = client.jobs.create(**JOB, max_steps=40)
    seen = []
    for event in client.jobs.watch(job.name):
        seen.append(event)
        if event.WhichOneof("event") == "step" and event.step.step in (5, 20):
            proxy.cut()
    assert proxy.accepted >= 3
    assert [event.sequence for event in seen] == list(range(1, len(seen) + 1)) and seen == list(client.jobs.events(job.name))


def test_watch_continues_after_a_kill_of_the_server(connect, make_server, model_directory, text_file):
    server = make_server()
    client = connect(server.grpc)
    client.models.import_files(model_directory, "small", dtype="f32")
    client.datasets.upload(text_file, "page")
    job = client.jobs.create(**JOB, max_steps=80, save_every=10)
    seen = []
    for event in client.jobs.watch(job.name):
        seen.append(event)
        if event.WhichOneof("event") == "checkpoint" and event.checkpoint.checkpoint.step == 20:
            server.kill()
            server.start()
    assert [event.sequence for event in seen] == list(range(1, len(seen) + 1)) and seen == list(client.jobs.events(job.name))
    assert client.jobs.get(job.name).state == v1.JOB_STATE_SUCCEEDED


def test_followed_log_continues_after_a_cut_connection(connect, shared):
    proxy = CountingProxy(shared.grpc)
    client = connect(proxy.address)
    job = client.jobs.create(**JOB, max_steps=5000)
    soon(lambda: client.jobs.get(job.name).state == v1.JOB_STATE_RUNNING)
    write(shared, job.name, 1, b"first\n")
    log = b""
    for chunk in client.jobs.logs(job.name, follow=True):
        assert chunk.attempt == 1 and chunk.offset == len(log)
        log += chunk.data
        if log.endswith(b"first\n"):
            proxy.cut()
            write(shared, job.name, 1, b"second\n")
        if log.endswith(b"second\n"):
            client.jobs.cancel(job.name)
    assert proxy.accepted >= 2 and b"first\nsecond\n" in log
    assert log == b"".join(chunk.data for chunk in client.jobs.logs(job.name))
    assert log.splitlines(True)[-1] == b"".join(chunk.data for chunk in client.jobs.logs(job.name, attempt=1, tail_lines=1))
    assert log[3:] == b"".join(chunk.data for chunk in client.jobs.logs(job.name, offset=3))


def test_cut_upload_continues_where_it_stopped(connect, shared):
    rows = [{"text": "The keeper counted the boats. " * 30 + str(i)} for i in range(20_000)]
    size = sum(len(str(row["text"])) + 13 for row in rows)
    proxy = CountingProxy(shared.grpc, cut_after=12 << 20)
    dataset = connect(proxy.address).datasets.upload(rows, f"cut-{connect.kind}")
    assert dataset.rows == 20_000 and dataset.bytes == size > 16 << 20 and proxy.accepted >= 2
    assert proxy.bytes_sent < size + (8 << 20), "the client sent the first bytes again"


def test_cut_download_begins_again(connect, shared, tmp_path):
    name, path = f"down-cut-{connect.kind}", tmp_path / "rows.jsonl"
    rows = [{"text": "The keeper counted the boats. " * 30 + str(i)} for i in range(20_000)]
    dataset = connect(shared.grpc).datasets.upload(rows, name)
    proxy, seen = DownloadProxy(shared.grpc, cut_after=4 << 20), []
    client = connect(proxy.address)
    assert client.datasets.download(name, path, on_progress=lambda stage, done, total: seen.append(done)) == dataset.bytes
    assert proxy.accepted >= 2 and seen[-1] == dataset.bytes, "the bytes of the first attempt are not counted"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == dataset.sha256
    with pytest.raises(errors.Unavailable):
        connect("127.0.0.1:1", retry=nibble_client.Retry(attempts=2, first_wait=0.05)).datasets.download(name, tmp_path / "none.jsonl")
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def test_cut_upload_is_resumed_by_another_program(connect, shared, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "The keeper counted the boats."}\n' * 100_000)
    proxy, name, size = CountingProxy(shared.grpc), f"again-{connect.kind}", file.stat().st_size
    with nibble_client.Client(shared.grpc) as observer:
        def cut_when_half_has_arrived(stage, done, total):
            assert (stage, total) == ("upload", size)
            if done > size // 2:
                soon(lambda: observer.uploads.get(name).committed_bytes >= 1 << 20)
                proxy.cut()

        with pytest.raises(errors.Unavailable):
            connect(proxy.address, retry=nibble_client.Retry(attempts=1)).datasets.upload(
                file, name, upload_id=name, on_progress=cut_when_half_has_arrived)
    client = connect(shared.grpc)
    soon(lambda: client.uploads.get(name).state == v1.UPLOAD_STATE_INTERRUPTED)
    assert name in [upload.upload_id for upload in client.uploads.list()]
    assert client.datasets.upload(file, name, upload_id=name, resume=True).rows == 100_000
    with pytest.raises(errors.UploadNotFound):
        client.uploads.cancel(name)


def test_cut_upload_of_a_model_continues(connect, shared, model_directory):
    proxy = CountingProxy(shared.grpc, cut_after=500_000)
    model = connect(proxy.address).models.import_files(model_directory, f"model-{connect.kind}", dtype="f32")
    assert model.digest == connect(shared.grpc).models.get("small").digest and proxy.accepted >= 2


def open_a_file_and_leave(address, upload_id):
    """Begins an upload of a model, opens its first file, and is lost before the first chunk."""
    opened, left = threading.Event(), threading.Event()

    def messages():
        yield v1.UploadModelRequest(header={"name": "lost", "upload_id": upload_id})
        yield v1.UploadModelRequest(file={"path": "config.json", "size_bytes": 10})
        opened.set()
        left.wait(60)

    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = model_service_pb2_grpc.ModelServiceStub(channel).UploadModel.future(messages())
        assert opened.wait(60)
        call.cancel()
        left.set()


def test_upload_that_was_lost_before_its_first_chunk_begins_again(connect, shared, model_directory):
    name, client = f"opened-{connect.kind}", connect(shared.grpc)

    def lost():  # tried again until the server has read both messages before the end of the stream
        open_a_file_and_leave(shared.grpc, name)
        found = [upload for upload in client.uploads.list() if upload.upload_id == name]
        return [(upload.state, upload.num_files) for upload in found] == [(v1.UPLOAD_STATE_INTERRUPTED, 1)]

    soon(lost)
    assert client.uploads.get(name).committed_bytes == 0
    model = client.models.import_files(model_directory, name, dtype="f32", upload_id=name, resume=True)
    assert model.digest == client.models.get("small").digest


def test_file_that_changes_during_its_upload_is_an_error(connect, shared, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "The keeper counted the boats."}\n' * 100_000)
    grown = []

    def grow(*stage):
        if not grown:
            grown.append(True)
            with open(file, "a") as end:
                end.write('{"text": "more"}\n')
    with pytest.raises(errors.FieldError, match="which changed during the upload"):
        connect(shared.grpc).datasets.upload(file, f"changed-{connect.kind}", on_progress=grow)
    with pytest.raises(errors.DatasetNotFound):
        connect(shared.grpc).datasets.get(f"changed-{connect.kind}")


def test_error_of_a_callback_ends_the_upload(connect, shared, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "The keeper counted the boats."}\n' * 100_000)

    def fail(*stage):
        raise RuntimeError("stop")
    with pytest.raises(RuntimeError, match="stop"):
        connect(shared.grpc).datasets.upload(file, f"stopped-{connect.kind}", on_progress=fail)


def test_refused_upload_has_the_error_of_the_server(connect, make_server):
    server = make_server("--max_dataset_bytes", 100_000)
    with pytest.raises(errors.UploadTooLarge):
        connect(server.grpc).datasets.upload([{"text": "boat " * 1000}] * 5000, "large")


def test_absent_server_is_unavailable_after_all_attempts(connect):
    client = connect("127.0.0.1:1", retry=nibble_client.Retry(attempts=2, first_wait=0.01))
    for call in (client.server_info, lambda: list(client.jobs.watch("job-1")), lambda: list(client.chat_stream("model", "Hello")),
                 lambda: client.score("model", "Hello"), lambda: client.datasets.upload([{"text": "a"}], "rows")):
        with pytest.raises(errors.Unavailable) as caught:
            call()
        assert caught.value.reason == "" and caught.value.code == grpc.StatusCode.UNAVAILABLE


def test_deadline_of_a_wait_leaves_the_job_alone(connect, shared):
    client = connect(shared.grpc, long_timeout=0.5)
    job = client.jobs.create(**JOB, max_steps=5000)
    with pytest.raises(errors.DeadlineExceeded):
        client.jobs.wait(job.name)
    assert client.jobs.get(job.name).state not in (v1.JOB_STATE_CANCELLED, v1.JOB_STATE_FAILED)
    client.jobs.cancel(job.name)


def test_closed_client_ends_its_watch_and_refuses_calls(connect, shared):
    client = connect(shared.grpc)
    job = client.jobs.create(**JOB, max_steps=5000)
    begun, ended = threading.Event(), []

    def watch():
        try:
            for _ in client.jobs.watch(job.name):
                begun.set()
        except errors.Cancelled as error:
            ended.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    assert begun.wait(60)
    client.close()
    thread.join(30)
    assert len(ended) == 1 and not thread.is_alive()
    for call in (client.server_info, lambda: client.datasets.upload([{"text": "a"}], "rows"), lambda: list(client.models.list())):
        with pytest.raises(errors.Cancelled, match="the client is closed"):
            call()
    connect(shared.grpc).jobs.cancel(job.name)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    secure = Secure(tmp_path_factory.mktemp("secure"))
    yield secure
    secure.server.stop()


def test_mutual_tls_and_a_token_reach_the_server(connect, secure):
    certificate, key = secure.client
    tls = nibble_client.Tls(ca=secure.ca.certificate, certificate=certificate, key=str(key))
    viewer = connect(secure.server.grpc, tls=tls, token=secure.tokens["viewer"].read_text())
    assert viewer.server_info().version == "0.1.0" and list(viewer.models.list()) == []
    with pytest.raises(errors.RoleMissing) as caught:
        viewer.datasets.upload([{"text": "a"}], "rows")
    assert caught.value.code == grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(errors.TokenInvalid):
        connect(secure.server.grpc, tls=tls, token="unknown").server_info()
    with pytest.raises(errors.TokenMissing):
        connect(secure.server.grpc, tls=tls).server_info()
    with pytest.raises(errors.Unavailable):  # without a client certificate
        connect(secure.server.grpc, tls=nibble_client.Tls(ca=secure.ca.certificate), retry=nibble_client.Retry(attempts=1)).server_info()
    pem = nibble_client.Tls(secure.ca.certificate.read_bytes(), certificate.read_bytes(), key.read_bytes(), server_name="localhost")
    assert connect(secure.server.grpc, tls=pem, token=secure.tokens["viewer"].read_text()).server_info().version == "0.1.0"


def test_calls_of_many_threads_share_a_client(shared):
    with nibble_client.Client(shared.grpc) as client:
        wanted, found = client.generate("small-int8", "A boat", max_tokens=8).text, []
        threads = [threading.Thread(target=lambda: found.append(client.generate("small-int8", "A boat", max_tokens=8).text))
                   for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [wanted] * 8
