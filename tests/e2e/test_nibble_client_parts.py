"""Parts of the Python client that need no server: errors, arguments, rows, files, and the order of messages."""
import ast
import inspect
import io
import json
import pathlib
import re
import subprocess
import sys

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2

import client_package
from conftest import ROOT

nibble_client = client_package.load()
from nibble_client import answers, connection, errors, files, messages, methods, notebook, requests, retry, v1, watching  # noqa: E402

# Reasons of docs/errors.md that no call returns (Job.error of an unfinished job, events, the start of nibbled, calls of
# trainers), that occur with several codes, or that a program does not handle apart from their code.
WITHOUT_CLASS = {"CHECKSUM_MISMATCH", "PAGE_TOKEN", "UNSUPPORTED_MODEL", "UNSUPPORTED_ADAPTER", "NO_TOKENIZER", "MALFORMED_FILE",
                 "IMPORT_ROOT", "ATTEMPT", "RESUMED_ELSEWHERE", "ALREADY_TERNARY", "RAW_MASTERS", "ADAPTER_BASE", "ADAPTER_SHAPE",
                 "NOT_SERVABLE", "STATE_DIR_IN_USE", "FENCED", "MODEL_TOO_LARGE", "KERNEL_FAULT", "CORRUPT_ARTIFACT", "MANIFEST_INVALID"}


def documented():
    """(reason, code) of each row of a table of docs/errors.md that has the column `code`."""
    found = set()
    for table in re.findall(r"\| reason \| code \| when \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)+)", (ROOT / "docs/errors.md").read_text()):
        for row in table.splitlines():
            reasons, codes = row.split(" | ")[:2]
            found |= {(reason, code) for reason in re.findall(r"`([A-Z_]+)`", reasons) for code in codes.split(", ")}
    return found


def classes():
    return {(kind._reason, kind._code.name): kind for kind in errors._subclasses(errors.NibbleError)}


def test_every_documented_reason_has_a_class_or_is_listed():
    rows, known = documented(), classes()
    assert len(rows) > 50
    codes = {"CANCELLED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"}  # their reason is the name of the code
    reasons = {reason for reason, _ in rows} - codes - {"the code of the same name"}
    assert reasons - {reason for reason, _ in known} == WITHOUT_CLASS
    assert {pair for pair in known if pair[0]} <= rows, "a class has a pair of reason and code that is not documented"


def test_every_code_has_a_class():
    assert {code for reason, code in classes() if not reason} == {code.name for code in grpc.StatusCode} - {"OK"}
    for code in grpc.StatusCode:
        made = errors.make_error(code, "text", reason="NEW_REASON")
        assert made.code == code and made.reason == "NEW_REASON" and isinstance(made, errors.NibbleError)


def status_with(code, *details, message="text"):
    status = status_pb2.Status(code=code, message=message)
    for detail in details:
        status.details.add().Pack(detail)
    return status


def test_error_has_the_details_of_its_status():
    error = errors.error_of_status(status_with(
        code_pb2.RESOURCE_EXHAUSTED, error_details_pb2.ErrorInfo(reason="QUEUE_FULL", metadata={"max": "3"}),
        error_details_pb2.RetryInfo(retry_delay={"seconds": 2, "nanos": 500_000_000}), v1.Usage(prompt_tokens=7)))
    assert type(error) is errors.QueueFull and error.metadata == {"max": "3"} and error.retry_after == 2.5
    assert error.usage.prompt_tokens == 7 and str(error) == "RESOURCE_EXHAUSTED QUEUE_FULL: text" and error.field is None
    unknown = errors.error_of_status(status_with(77))
    assert unknown.code == grpc.StatusCode.UNKNOWN and unknown.reason == ""


def test_reason_before_the_text_of_a_refused_token_is_found():
    error = errors.error_of_status(status_with(code_pb2.UNAUTHENTICATED, message="TOKEN_MISSING: no token"))
    assert type(error) is errors.TokenMissing and error.message == "no token"


def test_methods_have_the_types_of_the_api():
    """Every method of the API is in the table with its types, except those that the clients do not call."""
    table = {method.path: method for method in vars(methods).values() if isinstance(method, methods.Method)}
    kinds = {(False, False): methods.Unary, (False, True): methods.ServerStream, (True, False): methods.ClientStream}
    left = set()
    modules = [module for name, module in inspect.getmembers(v1, inspect.ismodule) if name.endswith("_pb2")]
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                mine = table.pop(f"/{service.full_name}/{method.name}", None)
                if mine is None:
                    left.add(method.name)
                    continue
                assert mine.request.DESCRIPTOR == method.input_type and mine.response.DESCRIPTOR == method.output_type
                assert type(mine) is kinds[method.client_streaming, method.server_streaming], method.full_name
    assert left == {"Score", "SetResourcePolicy"}, "the client scores by ScoreStream; no server has SetResourcePolicy"
    assert len(modules) == 8 and all(path.startswith("/google.longrunning.Operations/") for path in table)


def test_every_method_of_the_table_is_called():
    sources = "".join(path.read_text() for path in (ROOT / "client/python/src/nibble_client/_async").glob("*.py"))
    starts = {method.path for method in methods.STARTS.values()}  # operations.start calls these
    names = {name for name, method in vars(methods).items() if isinstance(method, methods.Method) and method.path not in starts}
    assert len(names) > 40 and {name for name in names if not re.search(rf"\bmethods\.{name}\b", sources)} == set()


def test_short_names_of_a_spec_are_unambiguous():
    spec = v1.JobSpec.DESCRIPTOR
    names = [field.name for section in ("data", "optim", "run", "publish") for field in spec.fields_by_name[section].message_type.fields]
    assert len(names) == len(set(names)) and not set(names) & {field.name for field in spec.fields}


def test_spec_takes_json_and_keywords():
    spec = requests.job_spec({"baseModel": "base", "qlora": {"rankPattern": {"q_proj": 4}}, "run": {"maxDuration": "90s", "seed": 7}},
                             "qlora", {"lr": 1, "max_steps": 5.0, "labels": {"a": "b"}, "target_modules": ("q_proj",), "schedule": "wsd",
                                       "save_every": None})
    assert spec.qlora.rank_pattern == {"q_proj": 4} and list(spec.qlora.target_modules) == ["q_proj"] and spec.run.seed == 7
    assert spec.run.max_duration.seconds == 90 and spec.run.max_steps == 5 and not spec.run.HasField("save_every")
    assert spec.optim.lr == 1.0 and spec.optim.schedule == v1.LR_SCHEDULE_WSD and spec.labels == {"a": "b"}
    assert requests.job_spec(spec, None, {"max_seq_len": 64}).data.max_seq_len == 64 and not spec.HasField("data")


WRONG = [({"run": {"max_step": 1}}, "run.max_step: got an unknown field 'max_step', wanted 'max_steps'?"),
         ({"labels": ["a"]}, "labels: got ['a'], wanted a dict"), ({"target_modules": "q_proj"}, "target_modules: got 'q_proj', wanted a list"),
         ({"r": True}, "qlora.r: got True, wanted a whole number"), ({"r": 2.5}, "wanted a whole number"),
         ({"use_dora": 1}, "qlora.use_dora: got 1, wanted True or False"), ({"run": 3}, "run: got 3, wanted a dict with fields of RunConfig"),
         ({"max_duration": "soon"}, "run.max_duration: got 'soon', wanted a number of seconds"), ({"base_model": 3}, "wanted a text"),
         ({"max_duration": float("nan")}, "wanted a number of seconds"), ({"optimizer": 99}, "optim.optimizer: got 99, wanted one of adamw"),
         ({"base_model": "\ud800"}, "a lone surrogate"), ({"epochs": 1, "max_steps": 2}, "got both epochs and max_steps, wanted only one of them"),
         ({"optim": v1.RunConfig()}, "optim: got a nibble.v1.RunConfig, wanted a nibble.v1.OptimConfig")]


@pytest.mark.parametrize("fields, message", WRONG, ids=[message for _, message in WRONG])
def test_wrong_value_is_named(fields, message):
    with pytest.raises(errors.FieldError) as caught:
        requests.job_spec(None, "qlora", fields)
    assert message in str(caught.value) and caught.value.field


def test_enum_has_a_short_name():
    assert messages.enum_name(v1.Job(state=v1.JOB_STATE_PAUSED), "state") == "paused"
    newer = v1.Job.FromString(v1.Job(name="job").SerializeToString() + b"\x20\x63")  # state 99, which this client does not know
    assert messages.enum_name(newer, "state") == "99"
    with pytest.raises(errors.FieldError, match="an enum field of Job: state"):
        messages.enum_name(v1.Job(), "name")


def test_token_does_not_cross_a_network_in_plaintext():
    for target, local in {"127.0.0.1:1": True, "localhost:1": True, "[::1]:1": True, "unix:/s": True, "10.0.0.1:1": False, "host:1": False,
                          "127.evil.example:1": False}.items():
        assert connection.is_local(target) == local
    with pytest.raises(errors.FieldError, match="in plaintext"):
        nibble_client.Client("host:1", token="secret")
    nibble_client.Client("host:1", token="secret\n", insecure=True).close()
    nibble_client.Client("host:1", token="secret", tls=True).close()
    assert "secret" not in repr(connection.Connection("localhost:1", token="secret"))


@pytest.mark.parametrize("arguments, message", [
    ({"token": "two words"}, "token: got a text"), ({"token": ""}, "token: got a text"), ({"timeout": 0}, "timeout: got 0"),
    ({"tls": nibble_client.Tls(ca="/absent.pem")}, "tls.ca: got /absent.pem"), ({"tls": nibble_client.Tls(certificate=b"x")}, "both or none")])
def test_wrong_connection_is_refused_at_once(arguments, message):
    for kind in (nibble_client.Client, nibble_client.AsyncClient):
        with pytest.raises(errors.FieldError) as caught:
            kind("127.0.0.1:1", **arguments)
        assert message in str(caught.value) and "two words" not in str(caught.value)


def test_only_unavailable_is_repeated():
    policy = retry.Backoff(nibble_client.Retry(attempts=3, first_wait=1, longest_wait=1.5))
    with pytest.raises(errors.Aborted):
        policy.pause(errors.Aborted("text"))
    assert [policy.pause(errors.Unavailable("text")), policy.pause(errors.Unavailable("text"))] == [1, 1.5]
    with pytest.raises(errors.Unavailable):
        policy.pause(errors.Unavailable("text"))
    told = errors.Draining("text", details=[error_details_pb2.RetryInfo(retry_delay={"nanos": 10_000_000})])
    assert retry.Backoff(nibble_client.Retry()).pause(told) == 0.01


def test_watch_gives_up_after_its_time_and_a_watch_that_never_connected_after_its_attempts():
    now = [0.0]
    watch = retry.Reconnect(nibble_client.Retry(attempts=3, reconnect_for=10), now=lambda: now[0])
    lost = errors.Unavailable("text")
    for _ in range(5):
        assert 0 < watch.pause(lost, True) <= 1
    now[0] = 11
    with pytest.raises(errors.Unavailable):
        watch.pause(lost, True)
    watch.works()
    assert watch.pause(lost, True) == 0.2
    never = retry.Reconnect(nibble_client.Retry(attempts=2))
    never.pause(lost, False)
    with pytest.raises(errors.Unavailable):
        never.pause(lost, False)


def step(sequence):
    return v1.JobEvent(sequence=sequence, step={"step": sequence})


def test_cursor_takes_each_event_once_and_reads_what_a_stream_left_out():
    cursor = watching.JobCursor("job-1", 2)
    assert cursor.request().after_sequence == 2
    assert [cursor.take(step(n)) for n in (2, 3, 3)] == [False, True, False]
    missing = cursor.missing_before(step(7))
    assert missing.after_sequence == 3
    page = v1.ListJobEventsResponse(events=[step(4), step(6), step(7), step(8)])  # the server has removed 5
    assert [event.sequence for event in cursor.take_page(page, 7)] == [4, 6]
    assert cursor.missing_before(step(7)) is None and cursor.take(step(7)) and cursor.missing_before(step(8)) is None
    with pytest.raises(errors.DataLoss, match="ends before event 8"):
        cursor.take_page(v1.ListJobEventsResponse(), 12)
    with pytest.raises(errors.DataLoss, match="without a sequence"):
        cursor.take(v1.JobEvent(step={"step": 1}))


def test_watch_of_a_job_that_is_not_over_fails_if_its_streams_bring_nothing():
    cursor = watching.JobCursor("job-1", 0)
    with pytest.raises(errors.DataLoss, match="which is not over"):
        for _ in range(5):
            cursor.request()
            cursor.end_of_stream(lost=False)


REPLIES = {"start": v1.GenerateReply(start={"seed": 1}), "delta": v1.GenerateReply(delta={"text": "a", "token_ids": [1]}),
           "other": v1.GenerateReply(delta={"index": 1, "text": "b"}), "finish": v1.GenerateReply(finish={"reason": "FINISH_REASON_EOS"}),
           "usage": v1.GenerateReply(usage={"prompt_tokens": 1}), "prompt": v1.GenerateReply(prompt_logprobs={"first_position": 1})}


@pytest.mark.parametrize("order", ["delta", "start start", "start other", "start usage", "start finish delta", "start prompt",
                                   "start finish usage usage", "start finish finish"])
def test_messages_of_an_answer_out_of_order_are_an_error(order):
    joiner = answers.AnswerJoiner(1)
    with pytest.raises(errors.DataLoss, match="malformed response"):
        for name in order.split():
            joiner.take(REPLIES[name])


def test_messages_of_an_answer_are_joined():
    joiner = answers.AnswerJoiner(1)
    for name in "start delta delta finish usage".split():
        joiner.take(REPLIES[name])
    joiner.end()
    assert joiner.answer.text == "aa" and joiner.answer.token_ids == [1, 1] and joiner.answer.finish_reason == "eos"
    with pytest.raises(errors.DataLoss, match="without its usage"):
        answers.AnswerJoiner(1).end()


def test_pieces_of_calls_are_joined_without_malformed_ones():
    joiner = answers.AnswerJoiner(1)
    pieces = [{"id": "a", "name": "now", "arguments": "{"}, {"arguments": "}"}, {"index": 1, "id": "b", "name": "then", "arguments": "{"},
              {"index": 1, "malformed": True}]
    joiner.take(REPLIES["start"])
    for piece in pieces:
        joiner.take(v1.GenerateReply(delta={"tool_calls": [piece]}))
    joiner.take(v1.GenerateReply(finish={"reason": "FINISH_REASON_TOOL_CALLS"}))
    joiner.take(REPLIES["usage"])
    assert joiner.answer.tool_calls == [v1.ToolCall(id="a", name="now", arguments="{}")]
    assert joiner.answer.finish_reason == "tool_calls"
    with pytest.raises(errors.DataLoss, match="a piece of a call without its beginning"):
        other = answers.AnswerJoiner(1)
        other.take(REPLIES["start"])
        other.take(v1.GenerateReply(delta={"tool_calls": [{"arguments": "}"}]}))


def test_tools_have_their_schema_as_text():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    chat = requests.chat_input("Weather?")
    tools = [{"name": "weather", "parameters": schema}, v1.Tool(name="now"), {"name": "then", "parameters": json.dumps(schema)}]
    request = requests.generate_request("m", chat, {"tools": tools, "parallel_tool_calls": False, "tool_choice": "TOOL_CHOICE_NONE"})
    assert [json.loads(tool.parameters or "null") for tool in request.chat.tools] == [schema, None, schema]
    assert request.tool_choice == v1.TOOL_CHOICE_NONE and request.HasField("parallel_tool_calls")
    calls = [{"id": "1", "name": "now", "arguments": "{}"}]
    assert requests.chat_input([{"role": "assistant", "tool_calls": calls}]).messages[0].tool_calls[0].name == "now"
    for source, wrong in (("text", tools), (chat, "weather"), (chat, [{"name": 1}])):
        with pytest.raises(errors.FieldError, match="tools"):
            requests.generate_request("m", source, {"tools": wrong})


def test_rows_are_written_one_at_a_time():
    numpy = pytest.importorskip("numpy")
    written = io.StringIO()
    files.write_rows(({"text": f"Zähler {i}", "n": numpy.int64(i), "v": numpy.ones(2)} for i in range(2)), written)
    assert written.getvalue() == '{"text": "Zähler 0", "n": 0, "v": [1.0, 1.0]}\n{"text": "Zähler 1", "n": 1, "v": [1.0, 1.0]}\n'
    for rows in ({"text": ["a"]}, 3):
        with pytest.raises(errors.FieldError, match="wanted a list of dicts"):
            files.write_rows(rows, io.StringIO())


def test_import_takes_the_files_of_a_model_only(tmp_path):
    def names(*made):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name in made:
            (folder / name).write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
        return [file.name for file in files.files_to_import(folder)]

    assert names("config.json", "a.safetensors", "tokenizer.json", "README.md", "b.gguf") == ["a.safetensors", "config.json", "tokenizer.json"]
    index = "model.safetensors.index.json"
    assert names("config.json", "a.safetensors", "b.safetensors", index) == ["a.safetensors", "config.json", index]
    assert names("a.gguf", "README.md") == ["a.gguf"]
    for made, message in [(["README.md"], "wanted a directory with config.json"), (["a.gguf", "b.gguf"], "2 .gguf files")]:
        with pytest.raises(errors.FieldError, match=message):
            names(*made)
    with pytest.raises(errors.FieldError, match="which does not exist"):
        files.files_to_import(tmp_path / "absent")


def entry(path, size=1):
    return v1.DownloadArtifactResponse(file={"path": path, "size_bytes": size})


@pytest.mark.parametrize("sent, message", [
    ([entry("../a")], "unsafe file name"), ([entry("/a")], "unsafe file name"), ([entry("a"), entry("a")], "shorter than announced"),
    ([entry("a", 0), entry("a")], "duplicate file"), ([v1.DownloadArtifactResponse(chunk=b"x")], "a chunk before any file"),
    ([entry("a"), v1.DownloadArtifactResponse(chunk=b"xy")], "longer than announced"), ([entry("a")], "without their digest"),
    ([v1.DownloadArtifactResponse(finish={"sha256": "0"})], "differs from the server's"), ([entry("a", -1)], "negative size")])
def test_malformed_download_leaves_no_file(tmp_path, sent, message):
    receiver = files.Receiver(tmp_path / "out")
    with pytest.raises(errors.DataLoss, match=message):
        try:
            for each in sent:
                receiver.take(each)
            receiver.finish()
        finally:
            receiver.drop()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_synchronous_client_is_the_asynchronous_one_without_coroutines():
    """Both clients have the same methods with the same parameters, and no `async` or `await` is left."""
    for name in ("client", "datasets", "jobs", "models", "operations", "uploads"):
        both = [__import__(f"nibble_client.{kind}.{name}", fromlist=["x"]) for kind in ("_async", "_sync")]
        source = inspect.getsource(both[1])
        assert not re.search(r"\b(async|await|asyncio)\b", source) and ast.parse(source)
        signatures = [{(kind.removeprefix("Async"), method): list(inspect.signature(function).parameters)
                       for kind, found in inspect.getmembers(module, inspect.isclass) if found.__module__ == module.__name__
                       for method, function in inspect.getmembers(found, inspect.isfunction) if not method.startswith("__")}
                      for module in both]
        assert signatures[0] == signatures[1] and signatures[0]


PREVIEW = v1.PreviewDatasetResponse(
    total_rows=9, tokens=3, trainable_tokens=2, warnings=[{"reason": "EMPTY_ANSWERS", "message": "row <1>"}],
    rows=[{"row": 1, "token_ids": [1, 2, 3], "token_texts": ["<b>", "yes", "\n"], "trained": [False, True, True]}])


def test_mask_shows_trained_tokens_and_escapes_texts():
    mask = notebook.Mask(PREVIEW)
    page = mask._repr_html_()
    spans = re.findall(r'<span style="(.*?)" title="token (\d)">(.*?)</span>', page, re.S)
    assert [(token, text) for _, token, text in spans] == [("1", "&lt;b&gt;"), ("2", "yes"), ("3", "⏎\n")]
    assert spans[0][0] != spans[1][0] == spans[2][0] and "row &lt;1&gt;" in page and "2 of 3 tokens are trained" in page
    assert str(mask) == "row 1: <b>[yes][\n]"


def test_progress_shows_a_bar_for_each_stage(monkeypatch):
    progress = notebook.Progress()
    monkeypatch.setattr(progress._shown, "is_due", lambda now: False)  # IPython may be absent
    shown = []
    for stage in (("upload", 5, 10), ("wri<te", 3, 4), ("verify", 7, 0)):
        progress(*stage)
        shown.append(re.findall(r"<td>([^<]*)</td><td><progress ([^>]*)></progress></td><td>([^<]*)</td>", progress.to_html()))
    assert shown[0] == [("upload", 'max="10" value="5"', "50 %")]
    assert shown[1] == [("upload", 'max="1" value="1"', "100 %"), ("wri&lt;te", 'max="4" value="3"', "75 %")]
    assert shown[2][2] == ("verify", "", "")


def test_stubs_do_not_collide_with_a_users_own_modules(tmp_path):
    """A program may have a package `nibble`, and stubs of the same protos that it generated itself."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    (tmp_path / "nibble").mkdir()
    (tmp_path / "nibble/__init__.py").write_text("mine = True\n")
    include = pathlib.Path(protoc.__file__).parent / "_proto"
    assert protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"-I{include}", f"--python_out={tmp_path}",
                        str(ROOT / "proto/nibble/v1/common.proto")]) == 0
    program = "import nibble, nibble_client; from nibble.v1 import common_pb2; assert nibble.mine\n" \
        "assert common_pb2.Device().SerializeToString() == nibble_client.v1.Device().SerializeToString()\n"
    own = pathlib.Path(nibble_client.__file__).parents[1]
    for imports in ("import nibble_client", "from nibble.v1 import common_pb2"):
        subprocess.run([sys.executable, "-c", f"{imports}\n{program}"], check=True, env={"PYTHONPATH": f"{tmp_path}:{own}"})


def test_tested_packages_are_the_oldest_that_the_package_accepts():
    project = (ROOT / "client/python/pyproject.toml").read_text()
    pins = dict(re.findall(r"([\w-]+)==([\d.]+)", re.search(r'NIBBLE_CLIENT_FLOOR="(.*?)"', (ROOT / "deploy/versions.env").read_text(),
                                                             re.S)[1]))
    oldest = re.findall(r'"([\w-]+)>=([\d.]+),<', project)
    assert {name for name, _ in oldest} >= {"grpcio", "protobuf", "googleapis-common-protos", "pandas", "matplotlib"}
    for name, version in oldest + re.findall(r'"(grpcio-tools|googleapis-common-protos)==([\d.]+)"', project):
        assert pins[name] == version or pins[name] == f"{version}.0", name
    assert f'version = "{nibble_client.__version__}"' in project
