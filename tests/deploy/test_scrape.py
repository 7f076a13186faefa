"""O1 and O3 of docs/faults.md: a real nibbled in a mixed run, scraped by a real Prometheus."""
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest
import yaml

import dashboards
import pki
from conftest import CHART, ROOT, e2e, run
from prometheus import SCRAPE_S, Prometheus
from soon import soon

# Metrics of a GPU: dashboards and rules use them, but nibbled does not export them yet.
GPU_METRICS = {"nibble_gpu_memory_used_bytes", "nibble_gpu_memory_total_bytes", "nibble_gpu_utilization_ratio"}
# Metrics of Prometheus, and of kube-state-metrics.
PROMETHEUS_METRICS = {"up"}
KUBERNETES_METRICS = {"kube_pod_container_status_last_terminated_reason", "kube_pod_container_status_restarts_total"}
HISTOGRAM = re.compile(r"_(bucket|count|sum)$")


def spread(works):
    """Calls the functions one after another, with a scrape after each: only counters that increase between two scrapes
    have a rate."""
    for work in works:
        work()
        time.sleep(2 * SCRAPE_S)


def create(server, *more):
    return server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", "2000", *e2e.TRAIN,
                       *more)["id"]


def runs_in_attempt(server, job, attempt):
    got = server.json("jobs", "get", job)
    assert got["state"] not in ("SUCCEEDED", "FAILED", "CANCELLED"), got
    return got["state"] == "RUNNING" and got["attempt"] == attempt


def meet_one_that_waits(prometheus, server):
    """Runs three clients on a server where one request may run and one may wait, until a scrape has seen a waiting
    request."""
    met = threading.Event()

    def client():
        while not met.is_set():
            server.run("generate", "tuned-int8-0", "--prompt", "The boat", "--max-tokens", "900", "--ignore-eos", check=False)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(client) for _ in range(3)]
        try:
            soon(lambda: any(float(value) > 0 for series in prometheus.range("nibble_requests_waiting")
                                 for _, value in series["values"]))
        finally:
            met.set()
    for one in clients:
        one.result()


def ask_openai(server):
    """Lists the models and completes prompts over OpenAI's API, and sends wrong requests. The flags of the client name
    certificate and token."""
    _, authority, _, token = server.client_flags
    connection = http.client.HTTPSConnection(server.openai, timeout=60, context=ssl.create_default_context(cafile=str(authority)))
    fields = {"Authorization": f"Bearer {pathlib.Path(token).read_text().strip()}", "Content-Type": "application/json"}
    body = json.dumps({"model": "tuned-int8-0", "prompt": "The boat", "max_tokens": 8})
    kept = json.dumps({"model": "tuned-int8-0", "input": "The boat", "max_output_tokens": 16})
    for method, path, sent, wanted in (("GET", "/v1/models", None, 200), ("POST", "/v1/completions", body, 200),
                                       ("POST", "/v1/responses", kept, 200), ("POST", "/v1/completions", "{}", 400),
                                       ("GET", "/v1/nothing", None, 404)):
        connection.request(method, path, sent, fields)
        answer = connection.getresponse()
        assert answer.status == wanted, answer.read()
        answer.read()
    connection.close()


def ask_kserve(server):
    """Asks over KServe's protocol whether the server is ready."""
    _, authority, _, token = server.client_flags
    with grpc.secure_channel(server.grpc, grpc.ssl_channel_credentials(pathlib.Path(authority).read_bytes())) as channel:
        ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        ready(b"", timeout=20, metadata=[("authorization", f"Bearer {pathlib.Path(token).read_text().strip()}")])


def mixed_run(prometheus, server, model_directory, text_file):
    """Makes the server import, upload, train, convert, verify, load, generate and score, also over OpenAI's API and KServe's
    protocol; refuse, cancel and fail."""
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    server.run("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "tuned", "--max-steps", "40",
               "--save-every", "4", *e2e.TRAIN, "--watch")
    spread(lambda name=f"tuned-int8-{i}": server.run("models", "convert", "tuned", "--to", "int8", "--name", name) for i in range(2))
    server.run("models", "verify", "tuned-int8-0")
    server.run("models", "load", "tuned")
    server.run("models", "unload", "tuned")

    def generate():
        server.run("generate", "tuned-int8-0", "--prompt", "The keeper of the light", "--max-tokens", "24", "--ignore-eos")

    spread([generate] * 3 + [lambda: server.run("models", "unload", "tuned-int8-0")] + [generate] * 2)

    def crowd():
        """Sends requests faster than they are served. One may run and one may wait; the others are refused."""
        ended = []
        for pause in (0.1, 0.02, 0):  # shorter pauses, because clients start slowly on a busy machine
            with concurrent.futures.ThreadPoolExecutor(20) as pool:
                for _ in range(20):
                    ended.append(pool.submit(server.run, "generate", "tuned-int8-0", "--prompt", "The boat", "--max-tokens", "900",
                                             "--ignore-eos", check=False))
                    time.sleep(pause)
            if any("RESOURCE_EXHAUSTED" in one.result().stderr for one in ended):
                break
        else:
            raise AssertionError("no request was refused")
        assert any(one.result().returncode == 0 for one in ended)

    spread([lambda: ask_openai(server), lambda: ask_kserve(server)] * 2)
    spread([crowd] * 2)
    meet_one_that_waits(prometheus, server)
    server.run("score", "tuned-int8-0", "--text", "He counted the boats.")
    assert server.run("models", "get", "nothing", check=False).returncode != 0
    # A caller without a token; client_flags[1] is the certificate of the authority.
    unknown = grpc.secure_channel(server.grpc, grpc.ssl_channel_credentials(pathlib.Path(server.client_flags[1]).read_bytes()))
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as refused:
            unknown.unary_unary("/nibble.v1.ModelService/ListModels")(b"", timeout=20)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        time.sleep(2 * SCRAPE_S)
    unknown.close()
    cancelled = create(server, "--save-every", "4")
    soon(lambda: runs_in_attempt(server, cancelled, 1) and server.json("jobs", "checkpoints", cancelled)["checkpoints"])
    server.run("jobs", "cancel", cancelled)
    soon(lambda: server.json("jobs", "get", cancelled)["state"] == "CANCELLED")
    # One job waits while another runs. The trainer of the running job is killed twice; after one retry the job fails.
    failed, waits = create(server), create(server)
    soon(lambda: prometheus.range(f'nibble_train_loss{{job_id="{failed}"}}'))
    server.run("jobs", "cancel", waits)
    for attempt in (1, 2):
        soon(lambda: runs_in_attempt(server, failed, attempt))
        (pid,) = e2e.trainers(server)
        os.kill(pid, signal.SIGKILL)
    soon(lambda: server.json("jobs", "get", failed)["state"] == "FAILED")
    time.sleep(4 * SCRAPE_S)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory, tool, model_directory, text_file):
    folder = tmp_path_factory.mktemp("scraped")
    authority = pki.Authority(folder / "pki")
    certificate, key = authority.issue("server", "DNS:localhost,IP:127.0.0.1", days=60)
    token = subprocess.run([e2e.BIN / "nibble", "tokens", "new", "tests", "--role", "admin", "--out", folder / "token"], env={},
                           capture_output=True, text=True, check=True).stdout
    (folder / "tokens").write_text(token)
    server = e2e.Server(folder / "state", "--tls_cert", certificate, "--tls_key", key, "--token_file", folder / "tokens",
                        "--openai_address", "127.0.0.1:0", "--kserve", "--max_retries", 1, "--retry_backoff_scale", "0.01",
                        "--max_running_requests", 1, "--max_waiting_requests", 1)
    server.client_flags = ["--tls-ca", authority.certificate, "--token-file", folder / "token"]
    server.start()
    prometheus = Prometheus(tool("prometheus"), tmp_path_factory.mktemp("prometheus"), server.http)
    try:
        mixed_run(prometheus, server, model_directory, text_file)
        yield prometheus, server
    finally:
        prometheus.stop()
        server.stop()


def scrape(server):
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=5) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def exposition(scraped):
    """A scrape while a job trains: only then its loss has a series."""
    _, server = scraped
    job = create(server)
    loss = f'nibble_train_loss{{job_id="{job}",method="qlora"}}'
    soon(lambda: loss in scrape(server))
    text = scrape(server)
    server.run("jobs", "cancel", job)
    soon(lambda: server.json("jobs", "get", job)["state"] == "CANCELLED")
    assert "nibble_train_loss{" not in scrape(server)
    return text


# The metrics of the design, with the labels that distinguish their series. Listed here in addition to server/telemetry,
# which could lose a metric unnoticed.
DESIGNED = {
    "nibble_build_info": {"version", "revision", "torch", "cuda"},
    "grpc_server_started_total": {"grpc_type", "grpc_service", "grpc_method"},
    "grpc_server_handled_total": {"grpc_type", "grpc_service", "grpc_method", "grpc_code"},
    "grpc_server_handling_seconds": {"grpc_type", "grpc_service", "grpc_method"},
    "nibble_jobs": {"method", "state"},
    "nibble_jobs_created_total": {"method"},
    "nibble_jobs_finished_total": {"method", "result"},
    "nibble_job_attempts_total": {"method", "reason"},
    "nibble_job_queue_wait_seconds": set(),
    "nibble_job_duration_seconds": {"method", "result"},
    "nibble_job_steps_total": {"method"},
    "nibble_train_tokens_total": {"method"},
    "nibble_train_tokens_per_second": {"method"},
    "nibble_train_step_duration_seconds": {"method"},
    "nibble_train_loss": {"method", "job_id"},
    "nibble_checkpoint_duration_seconds": set(),
    "nibble_checkpoint_bytes": set(),
    "nibble_checkpoint_failures_total": {"reason"},
    "nibble_checkpoint_last_success_timestamp_seconds": set(),
    "nibble_convert_duration_seconds": {"format"},
    "nibble_artifact_bytes": {"kind"},
    "nibble_artifact_verify_failures_total": set(),
    "nibble_generate_requests_total": {"model", "result"},
    "nibble_generate_time_to_first_token_seconds": {"model"},
    "nibble_generate_time_per_output_token_seconds": {"model"},
    "nibble_generated_tokens_total": {"model"},
    "nibble_kernel_launches_total": {"kernel", "device", "phase"},
    "nibble_peak_memory_bytes": {"process", "device"},
    "nibble_kv_cache_used_blocks": {"model"},
    "nibble_kv_cache_blocks": {"model"},
    "nibble_requests_waiting": {"model"},
    "nibble_requests_running": {"model"},
    "nibble_store_op_duration_seconds": {"op", "backend"},
    "nibble_store_errors_total": {"backend", "reason"},
    "nibble_disk_free_bytes": {"volume"},
    "nibble_worker_oom_kills_total": set(),
    "nibble_client_requests_total": {"protocol"},
    "nibble_openai_requests_total": {"route"},
    "nibble_openai_answers_total": {"route", "status"},
    "nibble_openai_stored_responses": set(),
    "nibble_openai_stored_response_bytes": set(),
    "nibble_auth_failures_total": {"reason"},
    "nibble_rejected_total": {"reason"},
    "process_cpu_seconds_total": set(),
    "process_start_time_seconds": set(),
    "process_resident_memory_bytes": set(),
    "process_virtual_memory_bytes": set(),
    "process_open_fds": set(),
    "process_max_fds": set(),
}
# Designed but not implemented yet. The test fails once such a metric exists: move it to DESIGNED.
UNIMPLEMENTED = {
    "nibble_gpu_memory_used_bytes": "read from a GPU's driver; this build serves and trains on the CPU",
    "nibble_gpu_memory_total_bytes": "as above",
    "nibble_gpu_utilization_ratio": "as above",
    "nibble_prefix_cache_hits_total": "no prefix is shared between requests",
}


def series(exposition):
    """The label names of every series, by metric; the parts of a histogram count as the histogram."""
    found = {}
    for name, labels in re.findall(r"^([a-z]\w*)(?:\{(.*)\})? \S+$", exposition, re.MULTILINE):
        names = set(re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', labels)) - {"le"}
        found.setdefault(HISTOGRAM.sub("", name), set()).add(frozenset(names))
    return found


def test_o1_every_designed_metric_has_series_with_its_labels(exposition):
    found = series(exposition)
    assert set(DESIGNED) - set(found) == set()
    lacking = {name: labels - frozenset.intersection(*found[name]) for name, labels in DESIGNED.items()}
    assert {name: labels for name, labels in lacking.items() if labels} == {}


def test_o1_unimplemented_metrics_have_a_reason_and_no_series(exposition):
    assert all(UNIMPLEMENTED.values()) and not set(UNIMPLEMENTED) & set(DESIGNED)
    assert set(UNIMPLEMENTED) & (set(series(exposition)) | catalogue()) == set()


# The mixed run causes all of these events, so a value of 0 means that a count was lost.
WORKED = ["nibble_jobs_created_total", "nibble_jobs_finished_total", "nibble_job_attempts_total", "nibble_job_steps_total",
          "nibble_train_tokens_total", "nibble_train_loss", "nibble_train_step_duration_seconds_count",
          "nibble_job_queue_wait_seconds_count", "nibble_job_duration_seconds_count", "nibble_checkpoint_duration_seconds_count",
          "nibble_checkpoint_bytes_count", "nibble_checkpoint_last_success_timestamp_seconds", "nibble_convert_duration_seconds_count",
          "nibble_artifact_bytes",
          "nibble_generate_requests_total", "nibble_generate_time_to_first_token_seconds_count",
          "nibble_generate_time_per_output_token_seconds_count", "nibble_generated_tokens_total", "nibble_kernel_launches_total",
          "nibble_peak_memory_bytes", "nibble_kv_cache_blocks", "nibble_store_op_duration_seconds_count", "nibble_disk_free_bytes",
          "nibble_client_requests_total", "nibble_openai_requests_total", "nibble_openai_answers_total",
          "nibble_auth_failures_total", "nibble_rejected_total", "nibble_tls_files_ok", "nibble_token_file_ok",
          "nibble_tls_certificate_expiry_timestamp_seconds",
          "grpc_server_started_total", "grpc_server_handled_total",
          "grpc_server_handling_seconds_count", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"]


@pytest.mark.parametrize("name", WORKED)
def test_o1_mixed_work_is_counted(exposition, name):
    values = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", exposition, re.MULTILINE)
    assert values and max(map(float, values)) > 0


def catalogue():
    """Every metric that server/telemetry defines."""
    return set(re.findall(r'"((?:nibble|grpc|process)_[a-z0-9_]+)"', (ROOT / "server/telemetry/families.h").read_text()))


def rules():
    return [(path.name, rule) for path in sorted((CHART / "rules").glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]
            for rule in group["rules"]]


def test_o1_promtool_is_silent(tool, exposition):
    result = subprocess.run([tool("promtool"), "check", "metrics"], input=exposition, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_o1_scrape_has_at_most_2000_series(exposition):
    count = sum(1 for line in exposition.splitlines() if line and not line.startswith("#"))
    print(f"{count} series")
    assert 100 < count <= 2000


def test_o1_every_metric_of_the_catalogue_exists(exposition):
    names = set(re.findall(r"^# TYPE (\S+)", exposition, re.MULTILINE))
    assert catalogue() - names - GPU_METRICS == set()


def known(prometheus):
    names = prometheus.names()
    return {HISTOGRAM.sub("", name) for name in names} | names | GPU_METRICS | PROMETHEUS_METRICS | KUBERNETES_METRICS


def test_o1_every_metric_of_dashboards_and_rules_is_in_the_scrape(scraped):
    names = known(scraped[0]) | {rule["record"] for _, rule in rules() if "record" in rule}
    for where, title, expression in dashboards.queries():
        asked = dashboards.metrics(expression)
        assert asked, expression
        assert asked <= names, f"{where}, {title}: {asked - names}"
    for where, rule in rules():
        asked = dashboards.metrics(rule["expr"])
        assert asked and asked <= names, f"{where}, {rule.get('alert') or rule['record']}: {asked - names}"


def test_detects_a_metric_missing_from_the_scrape(scraped):
    assert dashboards.metrics('sum by (model) (rate(nibble_no_such_total{a="b"}[5m])) / up') == {"nibble_no_such_total", "up"}
    assert "nibble_no_such_total" not in known(scraped[0])


def test_labels_of_queries_exist(scraped):
    """A selector for a label that a metric does not have silently finds nothing."""
    prometheus, _ = scraped
    for where, title, expression in dashboards.queries():
        for name, selector in re.findall(r"\b((?:nibble|grpc)_[a-z0-9_]+)\{([^}]*)\}", expression):
            if name in GPU_METRICS:
                continue
            labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selector))
            series = prometheus.get("series", **{"match[]": name})
            assert series and labels <= set(series[0]), f"{where}, {title}: {labels - set(series[0])} of {name}"


# Panels that count events that must not happen, or that the mixed run does not cause: their data is 0.
STAYS_ZERO = {
    "Failed calls": "counts only failures caused by the server",
    "Calls that failed because of the server": "counts only failures caused by the server",
    "Weights quantized while serving": "must never happen",
    "Damage and failures": "needs a full disk (R8) or damaged files (R12)",
    "Killed because of memory": "needs a memory cgroup",
    "Failed": "needs a checkpoint that cannot be written: R8",
}
MAY_BE_ZERO = {
    "Adapters: trainer compared with server": "without AVX-512 both multiply in f32 in the same order",
}


def test_o3_panels_have_data(scraped):
    prometheus, _ = scraped
    empty, zero, asked = [], set(), 0
    for where, title, expression in dashboards.queries():
        if dashboards.metrics(expression) & GPU_METRICS:
            continue
        asked += 1
        result = prometheus.range(dashboards.filled(expression, f"{4 * SCRAPE_S}s"))
        values = [value for series in result for _, value in series["values"] if value != "NaN"]
        if not values:
            empty.append(f"{where}, {title}: {expression}")
        elif not any(float(value) for value in values):
            zero.add(title)
    assert asked >= 60 and empty == []
    assert zero - set(MAY_BE_ZERO) == set(STAYS_ZERO)


def test_rules_are_evaluated_without_errors_and_nothing_fires(scraped):
    groups = scraped[0].get("rules")["groups"]
    states = {rule["name"]: (rule["health"], rule.get("lastError", "")) for group in groups for rule in group["rules"]}
    assert len(states) >= 30 and set(states.values()) == {("ok", "")}
    firing = [alert["labels"]["alertname"] for alert in scraped[0].get("alerts")["alerts"] if alert["state"] == "firing"]
    assert firing == []
