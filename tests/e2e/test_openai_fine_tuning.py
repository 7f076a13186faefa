"""Fine-tunes with OpenAI's own package: files, jobs, events and checkpoints. Every answer is checked against its types."""
import hashlib
import http.client
import json
import socket

import openai
import pytest

import small_model
from conftest import Server
from soon import soon
from test_security import new_token

CHATS = [{"messages": [{"role": "user", "content": f"Count to {n}."}, {"role": "assistant", "content": "One, two, three."}]}
         for n in range(24)]
JSONL = "".join(json.dumps(chat) + "\n" for chat in CHATS).encode()
# A short run on rows of a few dozen tokens.
SMALL_RUN = {"run": {"max_steps": 4, "save_every": 2}, "data": {"max_seq_len": 128}}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("openai")
    server = Server(directory / "state", "--openai_address", "127.0.0.1:0").start()
    server.run("models", "import", small_model.write(directory / "small"), "--name", "small", "--dtype", "f32")
    rows = directory / "chats.jsonl"
    rows.write_bytes(JSONL)
    server.run("datasets", "upload", rows, "--name", "chats")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"http://{served.openai}/v1", api_key="x", max_retries=0,
                       _strict_response_validation=True) as made:
        yield made


def ended(client, job, seconds=120):
    def look():
        now = client.fine_tuning.jobs.retrieve(job.id)
        return now if now.status in ("succeeded", "failed", "cancelled") else None
    return soon(look, f"{job.id} has ended", seconds)


@pytest.fixture(scope="module")
def trained(client):
    """A job that has succeeded, from the upload of its rows on."""
    file = client.files.create(file=("chats.jsonl", JSONL), purpose="fine-tune")
    validation = client.files.create(file=("held-out.jsonl", JSONL[:JSONL.index(b"\n") + 1]), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model="small", training_file=file.id, validation_file=validation.id, suffix="counting", seed=7,
        metadata={"team": "blue"}, method={"type": "supervised", "supervised": {"hyperparameters": {
            "batch_size": 2, "learning_rate_multiplier": 2, "n_epochs": "auto"}}}, extra_body={"nibble": SMALL_RUN})
    assert job.status in ("validating_files", "queued", "running")
    return ended(client, job)


def test_a_model_is_trained_from_upload_to_chat(client, trained):
    assert trained.status == "succeeded", trained.error
    assert trained.error is None and trained.organization_id and trained.result_files == []
    assert trained.seed == 7 and trained.metadata == {"team": "blue"} and trained.trained_tokens > 0
    assert trained.finished_at >= trained.created_at
    assert trained.fine_tuned_model.startswith("small-counting-")
    given = trained.method.supervised.hyperparameters
    assert (given.batch_size, given.learning_rate_multiplier, given.n_epochs) == (2, 2, None)
    assert trained.nibble["state"] == "SUCCEEDED"
    assert trained.nibble["spec"]["optim"]["lr"] == pytest.approx(4e-4)
    assert trained.nibble["spec"]["run"]["max_steps"] == 4 and "qlora" in trained.nibble["spec"]
    assert client.files.retrieve(trained.training_file).filename == "chats.jsonl"
    answer = client.chat.completions.create(model=trained.fine_tuned_model, max_tokens=4,
                                            messages=[{"role": "user", "content": "Count to 3."}])
    assert answer.model == trained.fine_tuned_model and answer.usage.completion_tokens > 0


def test_events_are_paged_newest_first(client, trained):
    events = client.fine_tuning.jobs.list_events(trained.id, limit=1000).data
    numbers = [int(event.id.rsplit("-", 1)[1]) for event in events]
    assert numbers == sorted(numbers, reverse=True) and numbers[-1] == 1
    paged = list(client.fine_tuning.jobs.list_events(trained.id, limit=2))  # turns the pages itself
    assert [event.id for event in paged] == [event.id for event in events]
    steps = [event for event in events if event.type == "metrics" and "train_loss" in event.data]
    assert [event.data["step"] for event in steps] == [4, 3, 2, 1]
    assert all(event.data["train_loss"] > 0 and event.level == "info" for event in steps)
    assert any("SUCCEEDED" in event.message for event in events)


def test_checkpoints_are_paged(client, trained):
    checkpoints = client.fine_tuning.jobs.checkpoints.list(trained.id).data
    assert [one.step_number for one in checkpoints] == [4, 2]
    assert all(one.fine_tuning_job_id == trained.id and one.metrics.train_loss > 0 for one in checkpoints)
    assert [one.id for one in client.fine_tuning.jobs.checkpoints.list(trained.id, limit=1)] == [one.id for one in checkpoints]


def test_jobs_are_paged_and_filtered(client, trained):
    others = [client.fine_tuning.jobs.create(model="small", training_file="chats", metadata={"n": str(n)},
                                             extra_body={"nibble": SMALL_RUN}) for n in range(3)]
    for job in others:
        client.fine_tuning.jobs.cancel(job.id)
    listed = [job.id for job in client.fine_tuning.jobs.list(limit=2)]
    assert listed[:3] == [job.id for job in reversed(others)] and listed[-1] == trained.id
    assert [job.id for job in client.fine_tuning.jobs.list(metadata={"team": "blue"})] == [trained.id]
    assert not client.fine_tuning.jobs.list(limit=100).has_more
    assert client.fine_tuning.jobs.list(limit=1).has_more


def test_a_job_is_paused_resumed_and_cancelled(client):
    job = client.fine_tuning.jobs.create(
        model="small", training_file="chats",
        extra_body={"nibble": {"run": {"max_steps": 1_000_000, "save_every": 0}, "data": {"max_seq_len": 128}}})

    def state():
        return client.fine_tuning.jobs.retrieve(job.id).nibble["state"]
    soon(lambda: state() == "RUNNING", "the job runs", 60)
    assert client.fine_tuning.jobs.retrieve(job.id).status == "running"
    assert client.fine_tuning.jobs.pause(job.id).status == "running"
    soon(lambda: state() == "PAUSED", "the job is paused", 60)
    assert client.fine_tuning.jobs.retrieve(job.id).status == "queued"
    assert client.fine_tuning.jobs.resume(job.id).nibble["state"] == "QUEUED"
    client.fine_tuning.jobs.cancel(job.id)
    last = ended(client, job)
    assert last.status == "cancelled" and last.error is None and last.fine_tuned_model is None
    with pytest.raises(openai.ConflictError):
        client.fine_tuning.jobs.pause(job.id)


def test_a_repeated_idempotency_key_returns_the_same_job(client):
    def create(**fields):
        return client.fine_tuning.jobs.create(model="small", training_file="chats", suffix="twice",
                                              extra_body={"nibble": SMALL_RUN}, extra_headers={"Idempotency-Key": "once"}, **fields)
    job = create()
    again = create()
    client.fine_tuning.jobs.cancel(job.id)
    assert again.id == job.id and again.nibble["output_model"] == job.nibble["output_model"]
    with pytest.raises(openai.ConflictError) as conflict:
        create(seed=3)
    assert conflict.value.code == "idempotency_conflict"


@pytest.mark.parametrize("fields, param, part", [
    ({"training_file": "absent"}, "training_file", "absent"),
    ({"validation_file": "absent"}, "validation_file", "absent"),
    ({"model": "absent"}, "model", "absent"),
])
def test_absent_objects_of_a_job_are_not_found(client, fields, param, part):
    with pytest.raises(openai.NotFoundError) as error:
        client.fine_tuning.jobs.create(**{"model": "small", "training_file": "chats", **fields})
    assert error.value.param == param and part in error.value.message


@pytest.mark.parametrize("fields, param", [
    ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.1}}}}, "method.type"),
    ({"method": {"type": "supervised", "reinforcement": {"grader": {}}}}, "method.reinforcement"),
    ({"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]}, "integrations"),
    ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs"),
    ({"hyperparameters": {"n_epochs": 1.5}}, "hyperparameters.n_epochs"),
    ({"hyperparameters": {"batch_size": "many"}}, "hyperparameters.batch_size"),
    ({"hyperparameters": {"learning_rate_multiplier": -1}}, "hyperparameters.learning_rate_multiplier"),
    ({"hyperparameters": {"epochs": 1}}, "hyperparameters.epochs"),
    ({"hyperparameters": {}, "method": {"type": "supervised", "supervised": {"hyperparameters": {}}}}, "hyperparameters"),
    ({"suffix": "no spaces"}, "suffix"),
    ({"seed": -1}, "seed"),
    ({"metadata": {"key": 3}}, "metadata.key"),
    ({"extra_body": {"nibble": {"run": {"max_stepz": 3}}}}, "nibble.run.max_stepz"),
    ({"extra_body": {"nibble": {"optim": {"lr": -1}}}}, "nibble.optim.lr"),
    ({"extra_body": {"nibble": {"run": {"micro_batch": 1}}}, "hyperparameters": {"batch_size": 2}}, "nibble.run.micro_batch"),
    ({"extra_body": {"nibble": []}}, "nibble"),
    ({"extra_body": {"unheard_of": 1}}, "unheard_of"),
])
def test_bad_fields_of_a_job_are_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.fine_tuning.jobs.create(**{"model": "small", "training_file": "chats", **fields})
    assert error.value.param == param
    assert error.value.body["message"].startswith(f"{param}: ")


def test_unknown_jobs_and_cursors_are_refused(client, trained):
    jobs = client.fine_tuning.jobs
    for call in (jobs.retrieve, jobs.cancel, jobs.pause, jobs.resume, jobs.list_events, jobs.checkpoints.list):
        with pytest.raises(openai.NotFoundError) as error:
            call("job-absent")
        assert error.value.code == "fine_tune_not_found"
    with pytest.raises(openai.NotFoundError):
        jobs.list(after="job-absent")
    for call in (jobs.list_events, jobs.checkpoints.list):
        with pytest.raises(openai.BadRequestError) as error:
            call(trained.id, after="absent")
        assert error.value.param == "after"
    for limit in (0, 1001):
        with pytest.raises(openai.BadRequestError) as error:
            jobs.list(limit=limit)
        assert error.value.param == "limit"


def test_a_job_that_fails_says_why(client):
    job = client.fine_tuning.jobs.create(model="small", training_file="chats",
                                         extra_body={"nibble": {"data": {"max_seq_len": 4, "overlong": "error"}}})
    failed = ended(client, job)
    assert failed.status == "failed" and failed.error.code and failed.error.message


def test_a_file_is_created_listed_read_and_deleted(client):
    name = "Zähler 1 \"neu\".jsonl"
    file = client.files.create(file=(name, JSONL), purpose="fine-tune")
    assert (file.filename, file.bytes, file.purpose, file.status) == (name, len(JSONL), "fine-tune", "processed")
    assert client.files.wait_for_processing(file.id, poll_interval=0.1) == file
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == JSONL
    assert file in client.files.list().data
    deleted = client.files.delete(file.id)
    assert deleted.deleted and deleted.id == file.id
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as error:
            call(file.id)
        assert error.value.code == "file_not_found"


def test_files_are_paged_by_age(client):
    made = [client.files.create(file=(f"{n}.jsonl", JSONL), purpose="fine-tune").id for n in range(3)]
    newest = [file.id for file in client.files.list()]
    assert newest[:3] == made[::-1]
    assert [file.id for file in client.files.list(limit=2)] == newest
    assert [file.id for file in client.files.list(limit=2, order="asc")] == newest[::-1]
    assert list(client.files.list(purpose="batch")) == []
    with pytest.raises(openai.NotFoundError):
        client.files.list(after="file-absent")


def test_a_large_file_is_streamed_both_ways(served, client):
    row = json.dumps({"text": "x" * 900_000}).encode() + b"\n"
    rows = row * 80  # 72 MB: more than the server keeps of all request bodies
    before = served.metrics()["process_resident_memory_bytes"]
    file = client.files.create(file=("large.jsonl", rows), purpose="fine-tune")
    digest = hashlib.sha256()
    with client.files.with_streaming_response.content(file.id) as content:
        for piece in content.iter_bytes(1 << 20):
            digest.update(piece)
    assert digest.digest() == hashlib.sha256(rows).digest()
    assert served.metrics()["process_resident_memory_bytes"] < before + len(rows) / 2
    client.files.delete(file.id)


@pytest.mark.parametrize("content, part", [
    (b"", "no rows"),
    (JSONL + b'{"messages": 3}\n', str(len(CHATS) + 1)),
])
def test_bad_rows_are_refused_with_their_lines(client, content, part):
    files = [file.id for file in client.files.list()]
    with pytest.raises(openai.BadRequestError) as error:
        client.files.create(file=("bad.jsonl", content), purpose="fine-tune")
    assert part in error.value.message and error.value.param in ("file", None)
    assert [file.id for file in client.files.list()] == files


def test_fields_of_an_upload_are_checked(client):
    for fields, param in [({"purpose": "assistants"}, "purpose"),
                          ({"purpose": "fine-tune", "expires_after": {"anchor": "created_at", "seconds": 3600}}, "expires_after"),
                          ({"purpose": "fine-tune", "extra_body": {"unheard_of": "1"}}, "unheard_of")]:
        with pytest.raises(openai.BadRequestError) as error:
            client.files.create(file=("rows.jsonl", JSONL), **fields)
        assert error.value.param == param


def test_a_file_in_use_is_not_deleted(client):
    file = client.files.create(file=("used.jsonl", JSONL), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="small", training_file=file.id, extra_body={"nibble": {
        "run": {"max_steps": 1_000_000, "save_every": 0}, "data": {"max_seq_len": 128}}})
    with pytest.raises(openai.ConflictError):
        client.files.delete(file.id)
    client.fine_tuning.jobs.cancel(job.id)
    ended(client, job)
    assert client.files.delete(file.id).deleted


def test_a_repeated_upload_with_its_key_returns_the_same_file(client):
    def upload(rows):
        return client.files.create(file=("once.jsonl", rows), purpose="fine-tune", extra_headers={"Idempotency-Key": "file"})
    assert upload(JSONL) == upload(JSONL)
    with pytest.raises(openai.ConflictError):
        upload(JSONL + JSONL)


def form(*parts, boundary=b"b"):
    """The body of a form of (name, file name or None, bytes)."""
    body = b""
    for name, file_name, value in parts:
        body += b"--" + boundary + f'\r\nContent-Disposition: form-data; name="{name}"'.encode()
        body += (f'; filename="{file_name}"'.encode() if file_name else b"") + b"\r\n\r\n" + value + b"\r\n"
    return body + b"--" + boundary + b"--\r\n"


FORM = {"Content-Type": 'multipart/form-data; boundary="b"'}


def post(server, body, headers):
    connection = http.client.HTTPConnection(server.openai, timeout=30)
    connection.request("POST", "/v1/files", body, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_the_purpose_may_follow_the_file(served):
    file = ("file", "rows.jsonl", JSONL)
    status, answer = post(served, form(file, ("purpose", None, b"fine-tune")), FORM)
    assert status == 200 and answer["filename"] == "rows.jsonl" and answer["bytes"] == len(JSONL)
    status, answer = post(served, iter([form(file, ("purpose", None, b"fine-tune"))]), FORM)  # chunked
    assert status == 200, answer
    for body, param in [(form(file), "purpose"), (form(("purpose", None, b"fine-tune")), "file"),
                        (form(file, ("purpose", None, b"vision")), "purpose"), (form(file, file), "file"), (b"", "body")]:
        status, answer = post(served, body, FORM)
        assert status == 400 and answer["error"]["param"] == param, answer
    status, answer = post(served, JSONL, {"Content-Type": "application/json"})
    assert status == 400 and answer["error"]["param"] == "Content-Type"
    status, answer = post(served, form(file), {**FORM, "Origin": "http://elsewhere.example"})
    assert status == 403, answer


def test_a_client_that_goes_leaves_no_file(served, client):
    files = [file.id for file in client.files.list()]
    body = form(("purpose", None, b"fine-tune"), ("file", "rows.jsonl", JSONL * 2000))
    host, port = served.openai.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nContent-Type: {FORM['Content-Type']}\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:len(body) // 2])
        soon(lambda: served.json("uploads", "list")["uploads"], "the upload has begun", 20)
    soon(lambda: not served.json("uploads", "list")["uploads"], "the upload is gone", 20)
    assert [file.id for file in client.files.list()] == files


def test_a_file_above_the_limit_is_refused(make_server):
    server = make_server("--openai_address", "127.0.0.1:0", "--max_dataset_bytes", "1000")
    parts = (("purpose", None, b"fine-tune"), ("file", "rows.jsonl", JSONL))
    status, answer = post(server, form(*parts), FORM)
    assert status == 413 and answer["error"]["code"] == "upload_too_large", answer
    status, answer = post(server, form(("purpose", None, b"fine-tune"), ("file", "rows.jsonl", JSONL * 100)), FORM)
    assert status == 413 and "bytes" in answer["error"]["message"]


def test_files_outlive_the_server(make_server):
    server = make_server("--openai_address", "127.0.0.1:0")
    _, file = post(server, form(("purpose", None, b"fine-tune"), ("file", "rows.jsonl", JSONL)), FORM)
    server.stop()
    server.start()
    with openai.OpenAI(base_url=f"http://{server.openai}/v1", api_key="x") as client:
        assert client.files.retrieve(file["id"]).to_dict() == file


def test_roles_hold_for_files_and_jobs(make_server, tmp_path):
    tokens = {role: new_token(tmp_path, role, role).read_text().strip() for role in ("viewer", "train")}
    server = make_server("--openai_address", "127.0.0.1:0", "--token_file", tmp_path / "tokens", "--insecure")
    url = f"http://{server.openai}/v1"
    train = openai.OpenAI(base_url=url, api_key=tokens["train"], max_retries=0)
    viewer = openai.OpenAI(base_url=url, api_key=tokens["viewer"], max_retries=0)
    file = train.files.create(file=("rows.jsonl", JSONL), purpose="fine-tune")
    assert viewer.files.list().data == [file]
    for call in (lambda: viewer.files.content(file.id), lambda: viewer.files.delete(file.id),
                 lambda: viewer.files.create(file=("rows.jsonl", JSONL), purpose="fine-tune"),
                 lambda: viewer.fine_tuning.jobs.create(model="small", training_file=file.id)):
        with pytest.raises(openai.PermissionDeniedError):
            call()
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="none", max_retries=0).files.create(file=("rows.jsonl", JSONL), purpose="fine-tune")
