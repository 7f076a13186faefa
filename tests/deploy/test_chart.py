"""K1 and K3 of docs/faults.md: the chart with its defaults and with every file of ci/."""
import json
import re
import subprocess
import sys

import pytest
import yaml

import charts
import dashboards
import pki
import trainer_job
from conftest import CHART, ROOT, TOOLS, e2e, run

KUBERNETES = ["1.28.0", "1.33.0", "1.37.0"]  # the oldest supported one, one in between, the newest with a schema
JOB = trainer_job.JOB
every_case = pytest.mark.parametrize("case", charts.CASES, ids=charts.case_name)
every_jobs_case = pytest.mark.parametrize("case", [CHART / "ci/jobs.yaml", CHART / "ci/queue.yaml"], ids=charts.case_name)


@pytest.fixture(scope="session")
def helm(tool):
    return tool("helm")


def test_k1_covers_the_defaults_and_nine_files():
    assert len(charts.VALUE_FILES) == 9
    assert len(charts.CASES) == 10 and charts.CASES[0] is None


@every_case
def test_k1_lints(helm, case):
    result = run(helm, "lint", "--strict", CHART, *(["--values", case] if case else []))
    assert "0 chart(s) failed" in result.stdout


@pytest.fixture(scope="session")
def schemas(tmp_path_factory, need):
    need(charts.schema_source(), "the wheel kubernetes-validate")
    need((TOOLS / "monitoring.coreos.com_servicemonitors.yaml").exists(), "the Prometheus operator's schemas")
    need((TOOLS / "kueue.x-k8s.io_clusterqueues.yaml").exists(), "Kueue's schemas")
    folder = tmp_path_factory.mktemp("schemas")
    for version in KUBERNETES:
        charts.write_schemas(version, folder / version)
        charts.write_operator_schemas(TOOLS, folder / version)
    return folder


def conform(tool, schemas, version, text):
    location = f"{schemas}/{version}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    return subprocess.run([tool("kubeconform"), "-summary", "-strict", "-schema-location", location, "-"], input=text,
                          capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("version", KUBERNETES)
@every_case
def test_k1_conforms(helm, tool, schemas, version, case):
    text = charts.render_text(helm, case, version)
    result = conform(tool, schemas, version, text)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Invalid: 0, Errors: 0, Skipped: 0" in result.stdout
    assert charts.unset(text) == []


def trainer_jobs(documents, queue=""):
    """The Jobs that nibbled would post with the templates of a rendering."""
    return [trainer_job.make_trainer_job(template, "test-nibble", queue, **trainer_job.EXAMPLE)
            for template in trainer_job.templates(documents).values()]


def conforming_policy(job, version):
    """The schema of 1.28 requires a list that the API server of 1.28 does not."""
    if version == "1.28.0":
        for rule in job["spec"]["podFailurePolicy"]["rules"]:
            rule.setdefault("onPodConditions", [])
    return job


@pytest.mark.parametrize("version", KUBERNETES)
@every_jobs_case
def test_trainer_jobs_conform(helm, tool, schemas, version, case):
    jobs = trainer_jobs(charts.render(helm, case), "team")
    assert len(jobs) == (2 if case.stem == "queue" else 1)
    for job in jobs:
        result = conform(tool, schemas, version, yaml.safe_dump(conforming_policy(job, version)))
        assert result.returncode == 0 and "1 resource found" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("version", KUBERNETES)
def test_trainer_job_conforms(tool, schemas, version):
    job = conforming_policy(yaml.safe_load(JOB.read_text()), version)
    result = conform(tool, schemas, version, yaml.safe_dump(job))
    assert result.returncode == 0 and "1 resource found" in result.stdout, result.stdout + result.stderr


def test_trainer_job_is_made_from_the_charts_template(helm):
    assert JOB.read_text() == trainer_job.example_text(helm), "run tests/deploy/trainer_job.py"


def test_trainer_job_is_merged_as_in_nibbled():
    """Constants of server/jobs/kubernetes_job.cc and its header that trainer_job.py repeats."""
    source = (ROOT / "server/jobs/kubernetes_job.cc").read_text()
    (policy,) = re.findall(r'R"\((\{"rules":.*?\})\)"', source, re.DOTALL)
    assert json.loads(policy) == trainer_job.FAILURE_POLICY
    job = yaml.safe_load(JOB.read_text())
    labels = re.findall(r'k\w+Label\[\] = "(nibble\.dev/\w+)"', (ROOT / "server/jobs/kubernetes_job.h").read_text())
    assert len(labels) == 3 and set(labels) <= set(job["metadata"]["labels"])
    set_keys = re.findall(r'^  spec\["(\w+)"\] = ', source, re.MULTILINE)
    assert len(set_keys) >= 6 and set(set_keys) <= set(job["spec"])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    names = re.findall(r'\{"name",? ?:?"(\w+)"', source)
    assert sorted(names) == sorted(entry["name"] for entry in container["env"])


@every_jobs_case
def test_trainers_keep_what_the_chart_sets(helm, case):
    """nibbled replaces only the memory, and its CPU request does not exceed the chart's limit."""
    documents = charts.render(helm, case)
    (server,) = [spec for name, _, spec in charts.pods(documents) if name.startswith("Deployment/")]
    state = [{"name": "state", "mountPath": "/var/lib/nibble"}]
    assert state[0] in server["containers"][0]["volumeMounts"]
    for template, job in zip(trainer_job.templates(documents).values(), trainer_jobs(documents)):
        pod, before = job["spec"]["template"]["spec"], template["spec"]["template"]["spec"]
        (container,), (own,) = pod["containers"], before["containers"]
        assert "cpu" not in own["resources"]["requests"] and container["resources"]["requests"]["cpu"] == own["resources"]["limits"]["cpu"]
        assert container["resources"]["limits"] == {**own["resources"]["limits"], "memory": "9012Mi"}
        assert {key: value for key, value in pod.items() if key not in ("containers", "restartPolicy")} == \
            {key: value for key, value in before.items() if key != "containers"}
        assert job["spec"]["ttlSecondsAfterFinished"] == template["spec"]["ttlSecondsAfterFinished"]
        # The same path, of the same claim, in the server and in the trainer.
        assert state[0] in container["volumeMounts"]
        assert [volume for volume in pod["volumes"] if volume["name"] == "state"] == [volume for volume in server["volumes"] if volume["name"] == "state"]


def test_kueue_objects_conform_in_both_versions(helm, tool, schemas):
    case = CHART / "ci/queue.yaml"
    for version, api in [("v1beta1", ()), ("v1beta2", ("kueue.x-k8s.io/v1beta2",))]:
        text = charts.render_text(helm, case, KUBERNETES[-1], api=api)
        assert text.count(f"apiVersion: kueue.x-k8s.io/{version}\n") == 3
        result = conform(tool, schemas, KUBERNETES[-1], text)
        assert result.returncode == 0 and "Invalid: 0, Errors: 0, Skipped: 0" in result.stdout, result.stdout + result.stderr
        assert conform(tool, schemas, KUBERNETES[-1], text.replace("nominalQuota:", "quota:", 1)).returncode != 0


def test_kueue_quotas_cover_what_trainers_request(helm):
    """Kueue never admits a Job that requests a resource that its queue does not cover."""
    documents = charts.render(helm, CHART / "ci/queue.yaml")
    (queue,) = [document["spec"] for document in documents if document["kind"] == "ClusterQueue"]
    (covered,) = [set(group["coveredResources"]) for group in queue["resourceGroups"]]
    for job in trainer_jobs(documents, "team"):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert set(container["resources"]["requests"]) | set(container["resources"]["limits"]) <= covered


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


@every_jobs_case
def test_trainer_jobs_score_without_criticals(helm, tool, case):
    """With the network policies and accounts of the chart."""
    documents = charts.render(helm, case)
    for job in trainer_jobs(documents):
        job["metadata"]["namespace"] = "ml"
        # Release tags do not move, as in the Deployment.
        result = run(tool("kube-score"), "score", "--output-format", "ci", "--kubernetes-version", "v1.28",
                     "--ignore-test", "container-image-pull-policy", "-", ok=False,
                     input=yaml.safe_dump_all([*(one for one in documents if one["kind"] in ("NetworkPolicy", "ServiceAccount")), job]))
        lines = [line for line in result.stdout.splitlines() if job["metadata"]["name"] in line]
        assert any(line.startswith("[OK]") for line in lines), result.stdout + result.stderr
        assert [line for line in lines if line.startswith("[CRITICAL]")] == []


def test_trainer_job_fits_the_trainer():
    """The flags and the time for a checkpoint match the sources."""
    job = yaml.safe_load(JOB.read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    known = re.findall(r"--[\w-]+", run(e2e.BIN / "nibble-trainer", "--help").stdout)
    assert container["args"] and {word.split("=")[0] for word in container["args"]} <= set(known)
    grace = int(re.search(r"pause_grace_s = (\d+)", (ROOT / "server/limits.h").read_text())[1])
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] >= grace + 10


def test_trainers_of_a_release_only_share_its_node(helm):
    """Server and trainers have the same rule, which each of them matches itself: the first pod may run on any node."""
    documents = charts.render(helm, CHART / "ci/queue.yaml")
    found = [(metadata["labels"], spec["affinity"]) for _, metadata, spec in charts.pods(documents)]
    assert len(found) == 3
    for labels, affinity in found:
        (rule,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (component,) = rule["labelSelector"]["matchExpressions"]
        assert rule["topologyKey"] == "kubernetes.io/hostname" and component["operator"] == "In"
        assert rule["labelSelector"]["matchLabels"].items() <= labels.items() and labels[component["key"]] in component["values"]
    assert all("nodeAffinity" in affinity for labels, affinity in found if labels["app.kubernetes.io/component"] == "trainer")


def test_rights_of_the_server_are_its_calls(helm):
    """Only with trainers as Jobs, and only what server/kube/jobs_api.cc and its watches call."""
    for case in charts.CASES:
        rules = {tuple(rule["resources"]): set(rule["verbs"]) for document in charts.render(helm, case)
                 if document["kind"] == "Role" for rule in document["rules"]}
        if case is None or case.stem not in ("jobs", "queue"):
            assert rules == {}
        else:
            assert rules == {("jobs",): {"create", "get", "list", "watch", "delete"}, ("pods",): {"list", "watch", "delete"},
                             ("events",): {"list"}}


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
    assert {name: arguments[-2:] for name, arguments in commands.items()} == {"health": ["health", "--grpc"], "models-list": ["models", "list"]}
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
    the rules has that name, for any settings of the names."""
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


def restricted(name, _, spec):
    """Lists violations of the Pod Security Standard 'restricted' and of K3."""
    wrong = []
    pod = spec.get("securityContext", {})
    if pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        wrong.append("seccompProfile")
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            wrong.append(key)
    if spec.get("serviceAccountName", "default") == "default":
        wrong.append("default service account")
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    for volume in spec.get("volumes", []):
        if kinds := set(volume) - {"name"} - allowed:
            wrong.append(f"volume {volume['name']}: {kinds}")
    for container in spec["containers"] + spec.get("initContainers", []):
        security = container.get("securityContext", {})
        expected = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "readOnlyRootFilesystem": True, "privileged": False,
                    "runAsUser": 65532, "runAsGroup": 65532, "capabilities": {"drop": ["ALL"]}}
        wrong += [f"{container['name']}: {key}" for key, value in expected.items() if security.get(key) != value]
        image = container["image"]
        if not re.fullmatch(r"\S+(:[\w.-]+|@sha256:[0-9a-f]{64})", image) or image.endswith(":latest"):
            wrong.append(f"image {image}")
        if any("hostPort" in port for port in container.get("ports", [])):
            wrong.append("hostPort")
        if not {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["limits"]):
            wrong.append("limits")
    if spec.get("automountServiceAccountToken") is not False:
        wrong.append("service account token")
    return [f"{name}: {complaint}" for complaint in wrong]


@every_case
def test_k3_restricted(helm, case):
    documents = charts.render(helm, case)
    found = list(charts.pods(documents))
    assert found
    complaints = [line for pod in found for line in restricted(*pod)]
    if case and case.stem in ("jobs", "queue"):
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


def test_k3_trainer_job():
    documents = list(yaml.safe_load_all(JOB.read_text()))
    complaints = [line for pod in charts.pods(documents) for line in restricted(*pod)]
    assert complaints == []


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
        assert len(restricted(name, metadata, bad)) == 1


def test_secrets_are_files_only(helm):
    """No Secret is passed in an argument or the environment."""
    for case in charts.CASES:
        for _, _, spec in charts.pods(charts.render(helm, case)):
            for container in spec["containers"]:
                assert "envFrom" not in container
                assert not any("secretKeyRef" in entry.get("valueFrom", {}) for entry in container.get("env", []))
