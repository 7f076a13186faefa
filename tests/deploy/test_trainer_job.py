"""The Jobs of trainers: the chart's templates with what nibbled adds, and deploy/kubernetes/trainer-job.yaml."""
import json
import re

import pytest
import yaml

import charts
import pki
import trainer_job
from charts import KUBERNETES, conform
from conftest import CHART, ROOT, e2e, run
from fake_cluster import JOBS, Cluster
from soon import soon
from trainer_job import JOB

every_jobs_case = pytest.mark.parametrize("case", [CHART / f"ci/{name}.yaml" for name in ("jobs", "queue", "shared")],
                                          ids=charts.case_name)


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
    """trainer_job.py repeats constants of server/jobs/kubernetes_job.cc and its header: they must be equal."""
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
    """nibbled replaces the args, and request and limit of memory (the plan of 8 GiB and a tenth), sets restartPolicy,
    and adds two variables and a CPU request, which here equals the chart's limit."""
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
        kept = own.keys() - {"args", "env", "resources"}
        assert {key: container[key] for key in kept} == {key: own[key] for key in kept}
        assert job["spec"]["ttlSecondsAfterFinished"] == template["spec"]["ttlSecondsAfterFinished"]
        # The same path, of the same claim, in the server and in the trainer.
        assert state[0] in container["volumeMounts"]
        assert [volume for volume in pod["volumes"] if volume["name"] == "state"] == \
            [volume for volume in server["volumes"] if volume["name"] == "state"]


def test_a_shared_claim_frees_trainers_from_the_servers_node(helm):
    """Only the server mounts the claim of the database."""
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    for case, free in [("jobs", False), ("shared", True)]:
        documents = charts.render(helm, CHART / f"ci/{case}.yaml")
        (server,) = [spec for name, _, spec in charts.pods(documents) if name.startswith("Deployment/")]
        claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in server["volumes"]
                  if "persistentVolumeClaim" in volume}
        modes = {document["metadata"]["name"]: document["spec"]["accessModes"] for document in documents
                 if document["kind"] == "PersistentVolumeClaim"}
        assert modes == ({claims["state"]: ["ReadWriteMany"], claims["database"]: ["ReadWriteOnce"]} if free
                         else {claims["state"]: ["ReadWriteOnce"]})
        assert ("--database_dir=/var/lib/nibble-database" in server["containers"][0]["args"]) == free
        assert ({"name": "database", "mountPath": "/var/lib/nibble-database"} in server["containers"][0]["volumeMounts"]) == free
        (template,) = trainer_job.templates(documents).values()
        pod = template["spec"]["template"]["spec"]
        assert "database" not in [volume["name"] for volume in pod["volumes"]]
        assert (rule not in pod["affinity"].get("podAffinity", {})) == free
        assert ("affinity" not in server) == free
        assert ("nodeAffinity" in pod["affinity"]) == free  # set by ci/shared.yaml


def test_kueue_quotas_cover_what_trainers_request(helm):
    """Kueue never admits a Job that requests a resource that its queue does not cover."""
    documents = charts.render(helm, CHART / "ci/queue.yaml")
    (queue,) = [document["spec"] for document in documents if document["kind"] == "ClusterQueue"]
    (covered,) = [set(group["coveredResources"]) for group in queue["resourceGroups"]]
    for job in trainer_jobs(documents, "team"):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert set(container["resources"]["requests"]) | set(container["resources"]["limits"]) <= covered


def test_nibbled_posts_the_same_job(helm, tmp_path, model_directory, text_file):
    """With the chart's template, nibbled posts what make_trainer_job returns."""
    template = trainer_job.templates(charts.render(helm, CHART / "ci/jobs.yaml"))
    (tmp_path / "templates.json").write_text(json.dumps(template))
    cluster = Cluster(tmp_path, pki.Authority(tmp_path / "pki"), {"trainer": e2e.BIN / "nibble-trainer"})
    server = e2e.Server(tmp_path / "state", *cluster.flags, "--trainer_templates", tmp_path / "templates.json",
                        "--kubernetes_server_name", "test-nibble", "--threads", "4").start()
    try:
        server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        server.run("datasets", "upload", text_file, "--name", "page")
        options = ["--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", "2", *e2e.TRAIN]
        planned = server.json("jobs", "plan", *options)["memory_total_bytes"]
        job = server.json("jobs", "create", "--output", "out", *options)["id"]
        soon(cluster.created, "a Job is created", 60)
        server.run("jobs", "watch", job)
    finally:
        server.stop()
        cluster.stop()
    with cluster.lock:
        posted = next(item for _, collection, kind, item in cluster.history if collection == JOBS and kind == "ADDED")
    for key in ("uid", "namespace", "resourceVersion"):
        posted["metadata"].pop(key)
    assert posted.pop("status") == {}
    directory = server.state / "jobs" / job / "attempts/1"
    assert posted == trainer_job.make_trainer_job(template["cpu"], "test-nibble", "", job_id=job, attempt=1, threads=4,
                                                  memory_bytes=planned, directory=directory)


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
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] >= grace + 10  # as templates/validate.yaml wants


def test_trainers_run_on_the_node_of_their_server(helm):
    """The trainers require the server's node. The server only prefers the node of its trainers: the pods of a lost node
    remain, so a requirement would tie the server to that node."""
    documents = charts.render(helm, CHART / "ci/queue.yaml")
    found = {name.split("/")[0]: (metadata["labels"], spec["affinity"]) for name, metadata, spec in charts.pods(documents)}
    (server, preference), (trainer, requirement) = found["Deployment"], found["Template"]
    (rule,) = requirement["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname" and rule["labelSelector"]["matchLabels"].items() <= server.items()
    assert "nodeAffinity" in requirement
    assert list(preference["podAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    (rule,) = preference["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert rule["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert rule["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= trainer.items()


def test_rights_of_the_server_are_its_calls(helm):
    """Only with trainers as Jobs, and only what server/kube/jobs_api.cc and its watches call."""
    for case in charts.CASES:
        rules = {tuple(rule["resources"]): set(rule["verbs"]) for document in charts.render(helm, case)
                 if document["kind"] == "Role" for rule in document["rules"]}
        if case is None or case.stem not in ("jobs", "queue", "shared"):
            assert rules == {}
        else:
            assert rules == {("jobs",): {"create", "get", "list", "watch", "delete"}, ("pods",): {"list", "watch", "delete"},
                             ("events",): {"list"}}


def test_k3_trainer_job_is_restricted():
    documents = list(yaml.safe_load_all(JOB.read_text()))
    complaints = [line for pod in charts.pods(documents) for line in charts.restricted(*pod)]
    assert complaints == []
