"""O1 and O3 of ops.md section 9: a real nibbled in a mixed run, scraped by a real Prometheus."""
import re
import subprocess
import time
import urllib.request

import pytest
import yaml

import dashboards
from conftest import CHART, ROOT, e2e, run
from prometheus import SCRAPE_S, Prometheus

# Exist only where there is a GPU; nothing exports them on this build.
GPU_METRICS = {"nibble_gpu_memory_used_bytes", "nibble_gpu_memory_total_bytes", "nibble_gpu_utilization_ratio"}
# Exist only over TLS.
TLS_METRICS = {"nibble_tls_certificate_expiry_timestamp_seconds"}
# Prometheus' own.
PROMETHEUS_METRICS = {"up"}
HISTOGRAM = re.compile(r"_(bucket|count|sum)$")


def mixed_run(server, model_directory, text_file):
    """Everything that a server does once: import, upload, train, convert, verify, generate, score, and fail."""
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    server.run("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "tuned", "--max-steps", "20",
               "--save-every", "4", *e2e.TRAIN, "--watch")
    server.run("models", "convert", "tuned", "--to", "int8", "--name", "tuned-int8")
    server.run("models", "verify", "tuned-int8")
    for _ in range(4):
        server.run("generate", "tuned-int8", "--prompt", "The keeper of the light", "--max-tokens", "24", "--ignore-eos")
        time.sleep(SCRAPE_S)
    server.run("score", "tuned-int8", "--text", "He counted the boats.")
    assert server.run("models", "get", "nothing", check=False).returncode != 0
    # A job that is cancelled while it runs.
    job = server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", "2000", *e2e.TRAIN)["id"]
    for _ in range(100):
        if server.json("jobs", "get", job)["state"] == "RUNNING":
            break
        time.sleep(0.1)
    server.run("jobs", "cancel", job)
    time.sleep(4 * SCRAPE_S)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory, tool, model_directory, text_file):
    server = e2e.Server(tmp_path_factory.mktemp("scraped") / "state").start()
    prometheus = Prometheus(tool("prometheus"), tmp_path_factory.mktemp("prometheus"), server.http)
    try:
        mixed_run(server, model_directory, text_file)
        yield prometheus, server
    finally:
        prometheus.stop()
        server.stop()


@pytest.fixture(scope="module")
def exposition(scraped):
    with urllib.request.urlopen(f"http://{scraped[1].http}/metrics", timeout=5) as answer:
        return answer.read().decode()


def catalogue():
    """Every metric that server/telemetry names."""
    return set(re.findall(r'"((?:nibble|grpc|process)_[a-z0-9_]+)"', (ROOT / "server/telemetry/families.h").read_text()))


def rules():
    return [(path.name, rule) for path in sorted((CHART / "rules").glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]
            for rule in group["rules"]]


def test_o1_promtool_is_silent(tool, exposition):
    result = subprocess.run([tool("promtool"), "check", "metrics"], input=exposition, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_o1_number_of_series(exposition):
    count = sum(1 for line in exposition.splitlines() if line and not line.startswith("#"))
    print(f"{count} series")
    assert 100 < count <= 2000


def test_o1_every_metric_of_the_catalogue_is_there(exposition):
    names = set(re.findall(r"^# TYPE (\S+)", exposition, re.MULTILINE))
    assert catalogue() - names - GPU_METRICS - TLS_METRICS == set()


def known(prometheus):
    return {HISTOGRAM.sub("", name) for name in prometheus.names()} | prometheus.names() | GPU_METRICS | TLS_METRICS | PROMETHEUS_METRICS


def test_o1_every_metric_of_dashboards_and_rules_is_in_the_scrape(scraped):
    names = known(scraped[0]) | {rule["record"] for _, rule in rules() if "record" in rule}
    for where, title, expression in dashboards.queries():
        asked = dashboards.metrics(expression)
        assert asked, expression
        assert asked <= names, f"{where}, {title}: {asked - names}"
    for where, rule in rules():
        asked = dashboards.metrics(rule["expr"])
        assert asked and asked <= names, f"{where}, {rule.get('alert') or rule['record']}: {asked - names}"


def test_a_name_that_is_not_in_the_scrape_is_seen(scraped):
    assert dashboards.metrics('sum by (model) (rate(nibble_no_such_total{a="b"}[5m])) / up') == {"nibble_no_such_total", "up"}
    assert "nibble_no_such_total" not in known(scraped[0])


def test_label_values_of_queries_exist(scraped):
    """A selector for a label that a metric does not have finds nothing, in silence."""
    prometheus, _ = scraped
    for where, title, expression in dashboards.queries():
        for name, selector in re.findall(r"\b((?:nibble|grpc)_[a-z0-9_]+)\{([^}]*)\}", expression):
            if name in GPU_METRICS | TLS_METRICS:
                continue
            labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selector))
            series = prometheus.get("series", **{"match[]": name})
            assert series and labels <= set(series[0]), f"{where}, {title}: {labels - set(series[0])} of {name}"


def test_o3_panels_have_data(scraped):
    prometheus, _ = scraped
    empty, asked = [], 0
    for where, title, expression in dashboards.queries():
        if dashboards.metrics(expression) & GPU_METRICS:
            continue
        asked += 1
        result = prometheus.range(dashboards.filled(expression, f"{4 * SCRAPE_S}s"))
        values = [value for series in result for _, value in series["values"]]
        if not any(value != "NaN" for value in values):
            empty.append(f"{where}, {title}: {expression}")
    print(f"{asked - len(empty)} of {asked} queries have data; empty: {empty}")
    assert len(empty) <= 0.05 * asked, empty


def test_rules_are_evaluated_without_errors_and_nothing_fires(scraped):
    groups = scraped[0].get("rules")["groups"]
    states = {rule["name"]: (rule["health"], rule.get("lastError", "")) for group in groups for rule in group["rules"]}
    assert len(states) >= 30 and set(states.values()) == {("ok", "")}
    firing = [alert["labels"]["alertname"] for alert in scraped[0].get("alerts")["alerts"] if alert["state"] == "firing"]
    assert firing == []
