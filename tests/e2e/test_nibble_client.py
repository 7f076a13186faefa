"""The Python client (client/python) and a real server: each test runs with the synchronous and the asynchronous
client."""
import hashlib
import json
import shutil

import pytest

import client_package
import small_model
from soon import soon

nibble_client = client_package.load()
errors, v1 = nibble_client.errors, nibble_client.v1
PROMPT = "The keeper of the light"
SMALL_JOB = {"method": "qlora", "base_model": "small", "train_dataset": "page", "micro_batch": 2, "max_seq_len": 96, "lr": 5e-3,
             "r": 4, "alpha": 8, "seed": 3, "max_steps": 6}


@pytest.fixture(params=["sync", "async"])
def client(request, shared):
    with client_package.connect(request.param, shared.grpc) as client:
        client.kind = request.param
        yield client


def test_answer_is_that_of_the_command_line(client, shared):
    wanted = shared.json("generate", "small-int8", "--prompt", PROMPT)
    answer = client.generate("small-int8", PROMPT)
    assert answer.text == str(answer) == wanted["text"] and answer.finish_reason in ("length", "eos")
    assert answer.usage.completion_tokens == len(answer.token_ids) == wanted["usage"]["completion_tokens"]
    ids = client.tokenize("small-int8", PROMPT).token_ids
    assert client.generate("small-int8", list(ids)).text == wanted["text"]
    assert client.detokenize("small-int8", list(ids)) == PROMPT


def test_stream_joins_to_the_whole_answer(client):
    options = {"temperature": 0.7, "seed": 5, "max_tokens": 12, "n": 2, "logprobs": 1, "prompt_logprobs": 0, "stop": ["\x00"]}
    whole = client.generate("small-int8", PROMPT, **options)
    stream = client.generate_stream("small-int8", PROMPT, **options)
    with pytest.raises(RuntimeError, match="complete only after the last message"):
        stream.answer
    deltas = list(stream)
    assert len(deltas) > 4 and {delta.index for delta in deltas} == {0, 1}
    joined = stream.answer
    assert joined.texts == whole.texts == ["".join(delta.text for delta in deltas if delta.index == i) for i in (0, 1)]
    assert joined.token_ids == whole.token_ids and joined.seed == 5 and joined.finish_reason == whole.finish_reason
    assert [list(output.logprobs) for output in joined.response.outputs] == [list(output.logprobs) for output in whole.response.outputs]
    assert list(joined.response.prompt_logprobs) == list(whole.response.prompt_logprobs) != []


def test_chat_takes_a_text_or_messages(client):
    wanted = client.chat("small", [{"role": "user", "content": "Hello"}], max_tokens=5)
    assert client.chat("small", "Hello", max_tokens=5).text == wanted.text
    assert client.chat("small", [v1.ChatMessage(role="user", content="Hello")], max_tokens=5).text == wanted.text
    assert "".join(delta.text for delta in client.chat_stream("small", "Hello", max_tokens=5)) == wanted.text
    rendered = client.render_template("small", "Hello")
    assert rendered.text == "<|start|>user\nHello<|end|>\n<|start|>assistant\n"
    assert client.tokenize("small", messages="Hello").token_ids == rendered.token_ids
    config = client.tokenizer_config("small")
    assert json.loads(config.config_json) == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert config.chat_template == small_model.CHAT_TEMPLATE and config.num_tokens == 259  # bytes and special tokens
    assert wanted.response.start.prompt_tokens == len(rendered.token_ids)


def test_embed_takes_texts_or_token_ids(client):
    ids = list(client.tokenize("small-int8", PROMPT).token_ids)
    [vector] = client.embed("small-int8", PROMPT)
    assert abs(sum(value * value for value in vector) - 1) < 1e-5
    assert client.embed("small-int8", [ids[:3], ids])[1] == client.embed("small-int8", [PROMPT])[0] == vector
    last = client.embed("small-int8", PROMPT, pooling="POOLING_LAST", normalize=False)[0]
    assert len(last) == len(vector) and last != vector
    with pytest.raises(errors.FieldError, match="texts: got texts and token ids"):
        client.embed("small-int8", ["a", [1]])


def test_leaving_a_stream_cancels_its_request(client):
    before = client.server_load().generated_tokens_total
    with client.generate_stream("small", PROMPT, n=16, max_tokens=900, temperature=1.0, ignore_eos=True) as stream:
        next(iter(stream))
    soon(lambda: client.server_load().requests_running == 0, seconds=20)
    assert client.server_load().generated_tokens_total - before < 16 * 900, "the server generated the whole answer"


def test_score_is_that_of_the_command_line(client, shared):
    wanted = shared.json("score", "small-int8", "--text", PROMPT)
    score = client.score("small-int8", PROMPT, top_n=2)
    assert [token.logprob for token in score.tokens[1:]] == wanted["logprobs"][1:]
    assert score.mean_loss == pytest.approx(wanted["mean_loss"]) and len(score.tokens[1].top) == 2
    assert len(client.score("small", messages=[{"role": "user", "content": "Hello"}]).tokens) > 5
    with pytest.raises(errors.FieldError, match="neither a prompt nor messages"):
        client.score("small")


def test_errors_have_the_class_of_their_reason(client):
    with pytest.raises(errors.ModelNotFound) as caught:
        client.generate("absent", PROMPT)
    assert isinstance(caught.value, errors.NotFound) and caught.value.reason == "MODEL" and caught.value.retry_after is None
    with pytest.raises(errors.FieldError) as caught:
        client.generate("small", PROMPT, temperature=1e6)
    assert caught.value.field == "sampling.temperature" and caught.value.violations[0].field == "sampling.temperature"
    assert str(caught.value).startswith("INVALID_ARGUMENT FIELD_VIOLATION: ")
    with pytest.raises(errors.PromptTooLong) as caught:
        client.generate("small", "word " * 3000)
    assert int(caught.value.metadata["max"]) < int(caught.value.metadata["tokens"])
    with pytest.raises(errors.InvalidArgument, match="wanted 'temperature'"):
        client.generate("small", PROMPT, temprature=1.0)
    with pytest.raises(errors.ModelNotFound):  # of a stream, at its first message
        next(iter(client.chat_stream("absent", "Hello")))


def test_dataset_of_rows_is_uploaded_previewed_and_deleted(client):
    name = f"rows-{client.kind}"
    rows = [{"messages": [{"role": "user", "content": f"Number {i}?"}, {"role": "assistant", "content": f"It is {i}."}]} for i in range(5)]
    stages = []
    dataset = client.datasets.upload((row for row in rows), name, on_progress=lambda *stage: stages.append(stage))
    assert dataset.rows == 5 and nibble_client.enum_name(dataset, "format") == "chat"
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    assert dataset.sha256 == hashlib.sha256(text).hexdigest() and stages[-1] == ("upload", len(text), len(text))
    preview = client.datasets.preview(name, "small", rows=2, data={"max_seq_len": 64})
    assert len(preview.rows) == 2 and 0 < preview.trainable_tokens < preview.tokens
    trained = "".join(text for text, mask in zip(preview.rows[0].token_texts, preview.rows[0].trained) if mask)
    assert trained.startswith("It is 0.")
    assert name in [each.name for each in client.datasets.list(page_size=1)]
    with pytest.raises(errors.EtagMismatch):
        client.datasets.delete(name, etag="another")
    client.datasets.delete(name, etag=client.datasets.get(name).etag)
    with pytest.raises(errors.DatasetNotFound):
        client.datasets.get(name)


def test_downloaded_dataset_has_the_bytes_of_the_upload(client, tmp_path):
    name, path = f"down-{client.kind}", tmp_path / "rows.jsonl"
    rows, stages = [{"text": f"row {i}, with an ä"} for i in range(40_000)], []
    dataset = client.datasets.upload(rows, name, file_name="mine.jsonl")
    assert dataset.file_name == "mine.jsonl"
    assert client.datasets.download(name, path, on_progress=lambda *stage: stages.append(stage)) == dataset.bytes > 1 << 20
    assert hashlib.sha256(path.read_bytes()).hexdigest() == dataset.sha256
    assert len(stages) > 2 and stages[-1] == ("download", dataset.bytes, 0)
    (tmp_path / "plain.txt").write_text('One "line"\n')
    client.datasets.upload(tmp_path / "plain.txt", name + "-plain", format="text")
    assert client.datasets.download(name + "-plain", path) > 0 and json.loads(path.read_text()) == {"text": 'One "line"\n'}
    with pytest.raises(errors.DatasetNotFound):
        client.datasets.download("absent", tmp_path / "absent.jsonl")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plain.txt", "rows.jsonl"]
    for wrong in (tmp_path, tmp_path / "no/file"):
        with pytest.raises(errors.FieldError, match="path: got .*, wanted the path of a file"):
            client.datasets.download(name, wrong)


def test_bad_rows_are_named(client):
    with pytest.raises(errors.DatasetFormatError) as caught:
        client.datasets.upload([{"text": "good"}, {"txt": "bad"}], "bad")
    assert "2" in caught.value.violations[0].field, caught.value.violations
    with pytest.raises(errors.FieldError, match=r"rows\[1\]: got 'text', wanted a dict"):
        client.datasets.upload([{"text": "good"}, "text"], "bad")
    with pytest.raises(errors.FieldError, match=r"rows\[0\]: .* wanted values that JSON can represent"):
        client.datasets.upload([{"text": float("nan")}], "bad")
    with pytest.raises(errors.FieldError, match="wanted 'chat'"):
        client.datasets.upload([{"text": "good"}], "bad", format="chatt")


def test_model_is_imported_converted_verified_exported_and_deleted(client, shared, model_directory, tmp_path):
    name = f"mine-{client.kind}"
    stages = []
    model = client.models.import_files(model_directory, name, dtype="f32", on_progress=lambda *stage: stages.append(stage))
    assert model.digest == client.models.get("small").digest
    size = sum(path.stat().st_size for path in model_directory.iterdir())
    assert ("upload", size, size) in stages and len({stage for stage, _, _ in stages}) > 1
    converted = client.models.convert(name, to="int8", name=name + "-int8", act_outliers=4)
    assert converted.model.act_outliers == 4 and nibble_client.enum_name(converted.model, "format") == "int8"
    checked = client.models.verify(name + "-int8")
    assert checked.equal and checked.rows > 0
    files = client.models.export(name, tmp_path / "out", format="hf")
    assert {file.path for file in files} == {path.name for path in (tmp_path / "out").iterdir()} >= {"config.json", "model.safetensors"}
    for file in files:
        assert hashlib.sha256((tmp_path / "out" / file.path).read_bytes()).hexdigest() == file.sha256
    assert client.models.load(name).loaded and not client.models.unload(name).loaded
    assert {name, name + "-int8"} <= {model.name for model in client.models.list(page_size=2)}
    for each in (name, name + "-int8"):
        soon(lambda: not client.models.get(each).loaded)
        client.models.delete(each)
    with pytest.raises(errors.NameTaken):
        client.models.convert("small", to="int8", name="small-int8")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_files_of_the_server_are_imported(kind, make_server, model_directory, text_file, tmp_path):
    (tmp_path / "root").mkdir()
    shutil.copytree(model_directory, tmp_path / "root/model")
    shutil.copy(text_file, tmp_path / "root/rows.jsonl")
    server = make_server("--import_root", tmp_path / "root")
    with client_package.connect(kind, server.grpc) as client:
        assert client.models.import_server_path("model", "small", dtype="f32").name == "small"
        assert client.datasets.copy_server_file("rows.jsonl", "page", format="text").rows == 40
        with pytest.raises(errors.InvalidArgument) as caught:
            client.datasets.copy_server_file("../rows.jsonl", "outside")
        assert caught.value.reason == "IMPORT_ROOT"


def test_job_is_planned_created_once_watched_and_measured(client):
    spec = {**SMALL_JOB, "output_model": f"tuned-{client.kind}", "eval_dataset": "page"}
    plan = client.jobs.plan(**spec)
    assert plan.max_steps == 6 and plan.memory_total_bytes > 0 and plan.spec.qlora.r == 4
    job = client.jobs.create(**spec, request_id=f"job-{client.kind}")
    assert client.jobs.create(**spec, request_id=f"job-{client.kind}").name == job.name
    with pytest.raises(errors.IdempotencyConflict):
        client.jobs.create(**{**spec, "max_steps": 7}, request_id=f"job-{client.kind}")
    seen = []
    final = client.jobs.wait(job.name, on_event=seen.append)
    assert final.state == v1.JOB_STATE_SUCCEEDED and final.output_model == f"tuned-{client.kind}"
    assert [event.sequence for event in seen] == list(range(1, len(seen) + 1))
    assert [event.step.step for event in seen if event.WhichOneof("event") == "step"] == [1, 2, 3, 4, 5, 6]
    assert list(client.jobs.watch(job.name, after_sequence=seen[-3].sequence)) == seen[-2:]
    assert list(client.jobs.events(job.name, page_size=4)) == seen
    assert job.name in [each.name for each in client.jobs.list(states=["succeeded"], base_model="small", page_size=1)]
    assert job.name not in [each.name for each in client.jobs.list(states=["running"])]
    published = client.models.publish_checkpoint(next(iter(client.jobs.checkpoints(job.name))).name, f"early-{client.kind}")
    assert nibble_client.enum_name(published, "format") == "lora"
    with pytest.raises(errors.IllegalState):
        client.jobs.cancel(job.name)
    client.jobs.delete(job.name, etag=final.etag)


def test_failed_and_cancelled_jobs_raise(client):
    client.datasets.upload([{"prompt": "word " * 40, "completion": "never reached"}] * 3, f"untrained-{client.kind}")
    job = client.jobs.create({"qlora": {"r": 4}, "baseModel": "small"}, train_dataset=f"untrained-{client.kind}", max_seq_len=16)
    with pytest.raises(errors.NoTrainableTokens) as caught:
        client.jobs.wait(job.name)
    assert caught.value.metadata["fault"] == "user"
    job = client.jobs.create(**{**SMALL_JOB, "max_steps": 5000})
    watch = client.jobs.watch(job.name)
    for event in watch:
        if event.WhichOneof("event") == "step":
            break
    client.jobs.pause(job.name)
    soon(lambda: client.jobs.get(job.name).state == v1.JOB_STATE_PAUSED)
    client.jobs.resume(job.name)
    client.jobs.cancel(job.name)
    with pytest.raises(errors.Cancelled, match="was cancelled"):
        client.jobs.wait(job.name)


def test_wrong_spec_is_refused_with_a_suggestion(client):
    for fields, message in [({"max_step": 3}, "wanted 'max_steps'"), ({"optimizer": "adam"}, "wanted 'adamw'"),
                            ({"optim": {"lr": "fast"}}, "optim.lr: got 'fast', wanted a number"),
                            ({"method": "qlora", "full": {}}, "both|the same method"),
                            ({"epochs": 1, "max_steps": 2}, "both epochs and max_steps"), ({"micro_batch": 2**40}, "at most 32 bits")]:
        with pytest.raises(errors.FieldError, match=message):
            client.jobs.create(base_model="small", train_dataset="page", **fields)


def test_operation_is_started_found_and_deleted(client):
    request = v1.VerifyModelRequest(name="small-int8", request_id=f"verify-{client.kind}")
    started = client.operations.start(request)
    assert client.operations.start(request).name == started.name
    ended = client.operations.wait(started.name)
    result = v1.VerifyModelResponse()
    assert ended.response.Unpack(result) and result.equal
    assert started.name in [each.name for each in client.operations.list(page_size=1)]
    client.operations.delete(started.name)
    with pytest.raises(errors.OperationNotFound):
        client.operations.get(started.name)
    with pytest.raises(errors.FieldError, match="one of PlanJobRequest"):
        client.operations.start(v1.GetModelRequest())


def test_request_is_aborted_by_its_id(client):
    name = f"aborted-{client.kind}"
    with client.generate_stream("small", PROMPT, n=16, max_tokens=900, temperature=1.0, ignore_eos=True, request_id=name) as stream:
        next(iter(stream))
        assert client.abort([name, "absent"]) == [name]
        with pytest.raises(errors.Cancelled):
            list(stream)
    with pytest.raises(errors.FieldError):
        client.abort([])


def test_load_is_watched(client):
    times = []
    for load in client.watch_load(interval=0.2):
        times.append(load.time.ToNanoseconds() / 1e9)
        if len(times) == 4:
            break
    assert load.ready and 0.5 < times[-1] - times[0] < 10
    with pytest.raises(errors.FieldError, match="interval"):
        next(iter(client.watch_load(interval=0.01)))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_draining_server_refuses_work(kind, make_server):
    server = make_server()
    with client_package.connect(kind, server.grpc, retry=nibble_client.Retry(attempts=1)) as client:
        client.drain(deadline=1)
        with pytest.raises(errors.Draining):
            client.models.get("any")
        assert not client.server_load().ready


def test_server_describes_itself(client):
    info = client.server_info()
    assert info.version == "0.1.0" and "qlora" in info.job_methods and client.server_load().ready
