"""Uses the API with third-party programs: grpcurl through reflection, ghz for load."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import ROOT, Server

# Codes of gRPC: 2 UNKNOWN, 3 INVALID_ARGUMENT, 5 NOT_FOUND, 12 UNIMPLEMENTED, 13 INTERNAL, 14 UNAVAILABLE.
SERVICES = ["google.longrunning.Operations", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
            "nibble.internal.v1.TrainerReportService", "nibble.v1.DatasetService", "nibble.v1.FineTuneService",
            "nibble.v1.InferenceService", "nibble.v1.ModelService", "nibble.v1.ServerService",
            "nibble.v1.UploadService"]


def tool(name):
    """Finds a program in build/deps/tools/bin (deploy/setup.sh --full) or the PATH."""
    found = shutil.which(name, path=f"{ROOT}/build/deps/tools/bin:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not there: deploy/setup.sh --full installs it")
    return found


@pytest.fixture(scope="module")
def reflecting(tmp_path_factory, model_directory):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("third") / "state", "--reflection").start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    yield server
    server.stop()


def grpcurl(server, *arguments, data=None, timeout=60):
    command = [tool("grpcurl"), "-plaintext", "-format-error", "-max-time", "20"]
    if data is not None:
        command += ["-d", json.dumps(data)]
    verb = [a for a in arguments if a in ("list", "describe")]
    names = [a for a in arguments if a not in verb]
    command += [server.grpc, *verb, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def call(server, method, **data):
    answer = grpcurl(server, method, data=data)
    assert answer.returncode == 0, answer.stderr
    return [json.loads(part) for part in split(answer.stdout)]


def split(text):
    """Splits the output of grpcurl: one indented object after another. An empty object is printed as {}."""
    if text.strip() == "{}":
        return ["{}"]
    return [part + "\n}" for part in text.split("\n}\n") if part.strip()]


def test_every_service_is_listed_and_described(reflecting):
    listed = grpcurl(reflecting, "list")
    assert listed.returncode == 0 and listed.stdout.split() == SERVICES
    for service in SERVICES:
        described = grpcurl(reflecting, "describe", service)
        assert described.returncode == 0 and " is a service" in described.stdout
        methods = grpcurl(reflecting, "list", service).stdout.split()
        assert methods and all(f"rpc {method.rsplit('.', 1)[1]}" in described.stdout for method in methods)


def test_every_method_answers_an_empty_request(reflecting):
    """An empty request gets an answer or a status of ours with its reason; never INTERNAL or UNKNOWN."""
    unimplemented = set(reflecting.json("server", "info")["unimplemented"])
    called = 0
    for service in SERVICES:
        for method in grpcurl(reflecting, "list", service).stdout.split():
            name = f"{service}/{method.rsplit('.', 1)[1]}"
            if name in ("grpc.health.v1.Health/Watch", "nibble.v1.ServerService/WatchLoad", "google.longrunning.Operations/WaitOperation"):
                continue  # they would wait
            if name == "nibble.v1.ServerService/Drain":
                continue  # the server would refuse all later calls: test_drained_server_refuses_calls
            answer = grpcurl(reflecting, name, data={})
            called += 1
            if answer.returncode == 0:
                assert name not in unimplemented
                continue
            status = json.loads(answer.stderr) if answer.stderr.lstrip().startswith("{") else {"code": -1, "message": answer.stderr}
            assert status["code"] not in (2, 13, -1), f"{name}: {answer.stderr}"
            assert (status["code"] == 12) == (name in unimplemented), f"{name}: {answer.stderr}"
            if service.startswith("nibble.v1"):
                reasons = [detail.get("reason") for detail in status.get("details", []) if detail["@type"].endswith("ErrorInfo")]
                assert len(reasons) == 1 and reasons[0], f"{name}: {answer.stderr}"
    assert called > 40


def test_health_is_serving(reflecting):
    for service in ("", "nibble.v1.InferenceService"):
        answer, = call(reflecting, "grpc.health.v1.Health/Check", service=service)
        assert answer == {"status": "SERVING"}
    watch = subprocess.run([tool("grpcurl"), "-plaintext", "-max-time", "5", reflecting.grpc, "grpc.health.v1.Health/Watch"],
                           capture_output=True, text=True, timeout=30)
    assert '"SERVING"' in watch.stdout


def test_generate_and_score_answer_and_errors_have_details(reflecting):
    request = {"model": "small", "text": "abc", "stopping": {"maxTokens": 6, "ignoreEos": True}}
    whole, = call(reflecting, "nibble.v1.InferenceService/Generate", **request)
    stream = call(reflecting, "nibble.v1.InferenceService/GenerateStream", request=request)
    assert "start" in stream[0] and "usage" in stream[-1] and "finish" in stream[-2]
    assert "".join(part["delta"].get("text", "") for part in stream if "delta" in part) == whole["outputs"][0]["text"]
    score, = call(reflecting, "nibble.v1.InferenceService/Score", model="small", text="abc")
    assert len(score["tokens"]) == 3 and "logprob" not in score["tokens"][0]
    bad = grpcurl(reflecting, "nibble.v1.InferenceService/Generate", data={"model": "small", "text": "a", "sampling": {"n": 99}})
    status = json.loads(bad.stderr)
    assert status["code"] == 3
    kinds = {detail["@type"].rsplit(".", 1)[1]: detail for detail in status["details"]}
    assert kinds["BadRequest"]["field_violations"][0]["field"] == "sampling.n"
    assert kinds["ErrorInfo"]["reason"] == "FIELD_VIOLATION" and kinds["ErrorInfo"]["domain"] == "nibble"


def test_operation_is_waited_for_listed_cancelled_and_deleted(reflecting):
    operations = "google.longrunning.Operations/"
    begun, = call(reflecting, "nibble.v1.ModelService/ConvertModel", model="small", name="small-int8", target="MODEL_FORMAT_INT8")
    name = begun["name"]
    done, = call(reflecting, operations + "WaitOperation", name=name, timeout="20s")
    assert done["done"] is True and done["response"]["model"]["name"] == "small-int8", done
    assert name in [one["name"] for one in call(reflecting, operations + "ListOperations")[0]["operations"]]
    # Cancelling an operation that has ended changes nothing.
    call(reflecting, operations + "CancelOperation", name=name)
    assert call(reflecting, operations + "GetOperation", name=name)[0]["done"] is True
    call(reflecting, operations + "DeleteOperation", name=name)
    gone = grpcurl(reflecting, operations + "GetOperation", data={"name": name})
    assert json.loads(gone.stderr)["code"] == 5


@pytest.mark.parametrize("method, data", [
    ("Score", {"model": "small", "text": "The keeper of the light"}),
    ("Generate", {"model": "small", "text": "The keeper", "stopping": {"maxTokens": 8, "ignoreEos": True}})])
def test_ghz_gets_an_answer_to_every_call(reflecting, method, data, tmp_path):
    out = tmp_path / "ghz.json"
    subprocess.run([tool("ghz"), "--insecure", "--call", f"nibble.v1.InferenceService.{method}", "-d", json.dumps(data), "-n", "200",
                    "-c", "16", "--timeout", "60s", "-O", "json", "-o", out, reflecting.grpc], check=True, timeout=300)
    report = json.loads(pathlib.Path(out).read_text())
    assert report["count"] == 200 and report["statusCodeDistribution"] == {"OK": 200}, report["errorDistribution"]
    load = reflecting.json("server", "load")
    assert load["requests_running"] == load["requests_waiting"] == load["kv_blocks_used"] == 0


def test_drained_server_refuses_calls(make_server):
    server = make_server("--reflection")
    call(server, "nibble.v1.ServerService/Drain", deadline="1s")
    refused = grpcurl(server, "nibble.v1.ModelService/ListModels", data={})
    status = json.loads(refused.stderr)
    assert status["code"] == 14 and "DRAINING" in [detail.get("reason") for detail in status["details"]]
    answer, = call(server, "grpc.health.v1.Health/Check", service="")
    assert answer == {"status": "NOT_SERVING"}
