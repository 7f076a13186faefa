"""K1 and K3 of docs/faults.md: the chart with its defaults and with every file of ci/."""
import re
import subprocess
import sys

import pytest
import yaml

import charts
import dashboards
import pki
from charts import KUBERNETES, conform
from conftest import CHART, ROOT, e2e, run

every_case = pytest.mark.parametrize("case", charts.CASES, ids=charts.case_name)


def test_k1_covers_the_defaults_and_eleven_files():
    assert len(charts.VALUE_FILES) == 11
    assert len(charts.CASES) == 12 and charts.CASES[0] is None


@every_case
def test_k1_lints(helm, case):
    result = run(helm, "lint", "--strict", CHART, *(["--values", case] if case else []))
    assert "0 chart(s) failed" in result.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@every_case
def test_k1_conforms(helm, tool, schemas, version, case):
    text = charts.render_text(helm, case, version)
    result = conform(tool, schemas, version, text)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Invalid: 0, Errors: 0, Skipped: 0" in result.stdout
    assert charts.unset(text) == []


def test_kueue_objects_conform_in_both_versions(helm, tool, schemas):
    case = CHART / "ci/queue.yaml"
    for version, api in [("v1beta1", ()), ("v1beta2", ("kueue.x-k8s.io/v1beta2",))]:
        text = charts.render_text(helm, case, KUBERNETES[-1], api=api)
        assert text.count(f"apiVersion: kueue.x-k8s.io/{version}\n") == 3
        result = conform(tool, schemas, KUBERNETES[-1], text)
        assert result.returncode == 0 and "Invalid: 0, Errors: 0, Skipped: 0" in result.stdout, result.stdout + result.stderr
        assert conform(tool, schemas, KUBERNETES[-1], text.replace("nominalQuota:", "quota:", 1)).returncode != 0


@pytest.mark.parametrize("version", KUBERNETES)
def test_unknown_and_mistyped_fields_do_not_conform(helm, tool, schemas, version):
    good = charts.render_text(helm, CHART / "ci/monitoring.yaml", version)
    for right, wrong in [("livenessProbe:", "livenessprobe:"), ("  selector:", "  selectorr:"), ("replicas: 1", "replicas: one"),
                         ("scrapeTimeout:", "scrapeTimeOut:"), ("expr:", "expression:")]:
        assert right in good
        assert conform(tool, schemas, version, good.replace(right, wrong, 1)).returncode != 0, wrong


@every_case
def test_k1_scores_without_criticals(helm, tool, case):
    result = subprocess.run([tool("kube-score"), "score", "--output-format", "ci", "--kubernetes-version", "v1.28", "-"],
                            input=charts.render_text(helm, case), capture_output=True, text=True, timeout=120)
    lines = result.stdout.splitlines()
    assert any(line.startswith("[OK]") for line in lines), result.stdout + result.stderr
    assert [line for line in lines if line.startswith("[CRITICAL]")] == []


def test_k1_unit_tests_of_templates(tool):
    result = run(tool("helm-unittest"), "--strict", CHART)
    count = int(re.search(r"Tests:\s+(\d+) passed", re.sub(r"\x1b\[[0-9;]*m", "", result.stdout))[1])
    assert count >= 40, result.stdout


def test_every_template_has_a_unit_test():
    tested = {path.name.removesuffix("_test.yaml") for path in (CHART / "tests").glob("*_test.yaml")}
    templates = {path.stem for path in (CHART / "templates").rglob("*.yaml")}
    assert templates <= tested


def test_values_table_matches_values():
    run(sys.executable, ROOT / "tests/deploy/values_table.py", "--check")


@every_case
def test_flags_exist_in_nibbled(helm, case):
    known = set(re.findall(r"^\s+(?:-\w,)?(--[\w-]+)", run(e2e.BIN / "nibbled", "--help").stdout, re.MULTILINE))
    arguments = [word for _, _, spec in charts.pods(charts.render(helm, case)) for container in spec["containers"]
                 if container["command"] == ["/usr/local/bin/nibbled"] for word in container["args"]]
    assert len(arguments) > 10
    assert {word.split("=")[0] for word in arguments} <= known


def test_commands_of_the_test_pod_pass_only_with_a_server(helm, tmp_path):
    """Runs the rendered commands with other places for server, CA and token: over TLS by the Service's name, with the
    lowest role. They fail without a server."""
    authority = pki.Authority(tmp_path / "pki")
    certificate, key = authority.issue("server", "DNS:test-nibble.ml.svc")
    line = run(e2e.BIN / "nibble", "tokens", "new", "tester", "--role", "viewer", "--out", tmp_path / "token").stdout
    (tmp_path / "tokens").write_text(line)
    server = e2e.Server(tmp_path / "state", "--tls_cert", certificate, "--tls_key", key, "--token_file", tmp_path / "tokens")
    commands = charts.helm_test_commands(helm, {"/etc/nibble/tls/ca.crt": str(authority.certificate),
                                               "/etc/nibble/token/token": str(tmp_path / "token")})
    assert {name: arguments[-2:] for name, arguments in commands.items()} == {"health": ["health", "--grpc"],
                                                                              "models-list": ["models", "list"]}
    server.start()
    try:
        for arguments in commands.values():
            run(e2e.BIN / "nibble", *arguments, "--server", server.grpc, env={})
    finally:
        server.stop()
    for arguments in commands.values():
        assert run(e2e.BIN / "nibble", *arguments, "--server", server.grpc, env={}, ok=False).returncode == 5


@every_case
def test_rules_select_the_job_of_the_scraped_service(helm, tool, case, tmp_path):
    """The Prometheus operator sets the label `job` to the name of the Service whose port is scraped: every selector of
    nibbled's metrics has that name, for any settings of the names. Selectors of kube_ metrics name the pods."""
    documents = charts.render(helm, case, ("metrics.prometheusRule.enabled=true", "replicaCount=1"))
    (service,) = [document["metadata"]["name"] for document in documents if document["kind"] == "Service"
                  and any(port["name"] == "http" for port in document["spec"]["ports"])]
    (rules,) = [document["spec"] for document in documents if document["kind"] == "PrometheusRule"]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rules))
    run(tool("promtool"), "check", "rules", "--lint=all", "--lint-fatal", path)
    deployment, = [document["metadata"]["name"] for document in documents if document["kind"] == "Deployment"]
    own = f'namespace="ml",job="{service}"'
    pods = f'namespace="ml",pod=~"{deployment}-[a-z0-9]+(-[a-z0-9]{{5}})?",container="nibbled"'
    asked = 0
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        selectors = re.findall(r"([a-z_:][a-z0-9_:]*)\{([^{}]*(?:\{\d+\}[^{}]*)*)\}", rule["expr"])
        asked += len(selectors)
        for metric, matchers in selectors:
            wanted = pods if metric.startswith("kube_") else own
            assert matchers == wanted or matchers.startswith(wanted + ","), f"{metric}{{{matchers}}}"
        # No metric is left without a selector in braces.
        bare = rule["expr"]
        for metric, matchers in selectors:
            bare = bare.replace(f"{metric}{{{matchers}}}", "")
        assert dashboards.metrics(bare) == set(), rule["expr"]
    assert asked >= 80


@every_case
def test_k3_restricted(helm, case):
    documents = charts.render(helm, case)
    found = list(charts.pods(documents))
    assert found
    complaints = [line for pod in found for line in charts.restricted(*pod)]
    if case and case.stem in ("jobs", "queue", "shared"):
        # Only with trainers as Jobs does the server's pod mount the token of its account, which has a narrow role.
        complaints = [line for line in complaints if not re.fullmatch("Deployment/.*: service account token", line)]
        assert any(name == "Template/cpu" for name, _, _ in found)
    assert complaints == []
    accounts = [document for document in documents if document["kind"] == "ServiceAccount"]
    assert all(account["automountServiceAccountToken"] is False for account in accounts)
    roles = [document for document in documents if document["kind"] in ("Role", "ClusterRole")]
    assert all(role["kind"] == "Role" and not any("secrets" in rule["resources"] or "*" in rule["verbs"] for rule in role["rules"])
               for role in roles)
    assert "hostPath" not in charts.render_text(helm, case)


def test_k3_detects_violations(helm):
    """Tests the function `restricted` itself: it finds each of these violations."""
    import copy
    (name, metadata, good), *_ = charts.pods(charts.render(helm, None))
    spoilers = [lambda spec: spec.update(hostNetwork=True), lambda spec: spec.update(serviceAccountName="default"),
                lambda spec: spec.update(automountServiceAccountToken=True), lambda spec: spec["securityContext"].pop("seccompProfile"),
                lambda spec: spec["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
                lambda spec: spec["containers"][0].update(image="nibble-server:latest"),
                lambda spec: spec["containers"][0].update(image="nibble-server"),
                lambda spec: spec["containers"][0]["securityContext"].update(readOnlyRootFilesystem=False),
                lambda spec: spec["containers"][0]["securityContext"].update(capabilities={"drop": ["ALL"], "add": ["NET_ADMIN"]})]
    for spoil in spoilers:
        bad = copy.deepcopy(good)
        spoil(bad)
        assert len(charts.restricted(name, metadata, bad)) == 1


def test_secrets_are_files_only(helm):
    """No Secret is passed in the environment, so no argument can have one either: $(NAME) reads the environment."""
    for case in charts.CASES:
        for _, _, spec in charts.pods(charts.render(helm, case)):
            for container in spec["containers"]:
                assert "envFrom" not in container
                assert not any("secretKeyRef" in entry.get("valueFrom", {}) for entry in container.get("env", []))
