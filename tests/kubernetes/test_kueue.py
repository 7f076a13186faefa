"""Trainers in a queue of a real Kueue. Needs root: Kueue reads certificates from a fixed folder in /etc, which it gets in
a mount namespace of its own."""
import contextlib
import json
import os
import subprocess
import urllib.request

import pytest
import yaml

from conftest import TOOLS
from control_plane import Cluster, free_ports
from e2e_server import Server
from played_trainer import Players
from soon import soon
from test_kill import check, create
from test_kubernetes_runner import FLAGS, TEMPLATES, begin, calm, pod_of, start  # noqa: F401 (fixtures)
from test_server_kills import request
from wire import Api

VERSION = "kueue.x-k8s.io/v1beta2"
BASE = f"/apis/{VERSION}"
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
# One trainer at a time: each has two threads.
FLAVOR = {"name": "default", "resources": [{"name": "cpu", "nominalQuota": "2"}, {"name": "memory", "nominalQuota": "100Gi"}]}
ALL = {"namespaceSelector": {}, "preemption": {"withinClusterQueue": "LowerPriority"},
       "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": [FLAVOR]}]}


def define_types(api):
    """Kueue's types, without the webhook that converts between versions. Kueue ends if discovery lacks one of them."""
    plurals = set()
    for file in sorted((TOOLS.parent / "kueue-crds").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        definition["spec"].pop("conversion", None)
        versions = definition["spec"]["versions"]
        newest = max(one["name"] for one in versions)
        if newest in VERSION:
            plurals.add(definition["spec"]["names"]["plural"])
        for one in versions:
            one["storage"] = one["name"] == newest
        api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    soon(lambda: api.code("GET", BASE) == 200 and plurals <= {one["name"] for one in api.call("GET", BASE)["resources"]})
    for plural in plurals:
        soon(lambda: api.code("GET", f"{BASE}/{plural}") == 200)


def put(api, plural, kind, name, **fields):
    api.call("POST", f"{BASE}/{plural}", {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, **fields})


@pytest.fixture(scope="module")
def kueue(plane, tmp_path_factory):
    """One queue of the cluster, `all`, and priorities `low` and `high`."""
    if not os.access(TOOLS / "kueue", os.X_OK):
        pytest.skip("kueue: missing; install with deploy/setup.sh --kubernetes")
    if os.geteuid() != 0:
        pytest.skip("Kueue needs root")
    folder = tmp_path_factory.mktemp("kueue")
    define_types(plane.api)
    plane.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
    webhook, health = free_ports(2)
    (folder / "config.yaml").write_text(yaml.safe_dump({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"}, "webhook": {"port": webhook, "certDir": "/etc/kueue"}, "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False}, "integrations": {"frameworks": ["batch/job"]}}))
    certificate, key = plane.authority.issue("kueue", "DNS:kueue")
    script = """set -e
        mount -t tmpfs tmpfs /etc
        for folder in /etc/kueue /etc/kueue/metrics/certs; do
          mkdir -p "$folder"
          cp "$1" "$folder/tls.crt"
          cp "$2" "$folder/tls.key"
        done
        shift 2
        exec "$@" """
    with open(folder / "kueue.log", "ab") as out:
        process = subprocess.Popen(["unshare", "-m", "bash", "-c", script, "_", certificate, key, TOOLS / "kueue", "--config",
                                    folder / "config.yaml", "--kubeconfig", plane.folder / "controllers.yaml",
                                    "--feature-gates=VisibilityOnDemand=false"],
                                   env={"PATH": "/usr/bin:/bin:/usr/sbin"}, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=subprocess.STDOUT)

    def ready():
        assert process.poll() is None, (folder / "kueue.log").read_text()[-1500:]
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=2).status == 200
        except OSError:
            return False
    soon(ready)
    put(plane.api, "resourceflavors", "ResourceFlavor", "default", spec={})
    put(plane.api, "clusterqueues", "ClusterQueue", "all", spec=ALL)
    for name, value in (("low", 1), ("high", 1000)):
        put(plane.api, "workloadpriorityclasses", "WorkloadPriorityClass", name, value=value)
    yield
    process.kill()
    process.wait()


@pytest.fixture
def queue(kueue, cluster):
    """The name of a queue of the cluster's namespace."""
    put(cluster.api, f"namespaces/{cluster.name}/localqueues", "LocalQueue", "team", spec={"clusterQueue": "all"})
    return "team"


def test_second_trainer_waits_for_the_quota_of_the_first(start, cluster, queue, calm):
    server = start(kubernetes_queue=queue)
    jobs = [create(server, name) for name in ("first", "second")]
    for job, name in zip(jobs, ("first", "second")):
        check(server, job, calm, name, attempts=1)
    assert [cluster.created().count(f"nibble-{job}-1") for job in jobs] == [1, 1]
    # A trainer writes `claim` when it begins, and outcome.json at its end.
    attempts = [server.state / "jobs" / job / "attempts/1" for job in jobs]
    (_, first_end), (second_begin, _) = sorted(
        [(attempt / name).stat().st_mtime_ns for name in ("claim", "outcome.json")] for attempt in attempts)
    assert first_end <= second_begin


def await_readmission(cluster, job, first):
    """Waits until Kueue has started the Job again without `first`, the pod of its trainer, and the new pod has found the
    attempt claimed."""
    def found():
        pods = [pod for pod in cluster.pods() if pod["metadata"]["labels"].get("nibble.dev/job") == job]
        return [(pod["metadata"]["name"] != first, pod["status"]["phase"]) for pod in pods] == [(True, "Failed")]
    soon(found, "the Job is started again", 120)


@pytest.mark.parametrize("down", [False, True], ids=["seen", "while_no_server_ran"])
def test_preempted_trainer_resumes_with_the_same_bits_and_no_counted_retry(start, cluster, queue, calm, tmp_path, down):
    server = start(kubernetes_queue=queue)
    job = begin(server)
    first = pod_of(cluster, job)
    if down:
        server.kill()
    urgent = tmp_path / "urgent"
    urgent.write_text("#!/bin/sh\nexit 0\n")
    urgent.chmod(0o700)
    cluster.kubelet.programs["urgent"] = urgent
    container = {"name": "urgent", "image": "urgent:test", "resources": {"requests": {"cpu": "2"}}}
    cluster.api.call("POST", cluster.job_path, {
        "metadata": {"name": "urgent", "labels": {QUEUE: queue, PRIORITY: "high"}},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}})
    if down:
        await_readmission(cluster, job, first)
        server.start()
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0
    assert cluster.created() == [f"nibble-{job}-1", f"nibble-{job}-2"]
    (message,) = [event["message"] for event in server.lines("jobs", "watch", job) if event.get("reason") == "PREEMPTED"]
    assert "Kueue admitted the Job again" in message or not down


SHARE = 2  # trainers for which each tenant has quota
TRAINING_S = 4  # long beside the moment for which a place is empty between two trainers
SUCCEEDED, FAILED = 7, 8  # numbers of JobState


class Tenant:
    """A namespace with a server and a queue of its own. Its trainers are played."""

    def __init__(self, plane, folder, name, recording, model_directory, text_file):
        folder.mkdir()
        self.cluster = Cluster(plane, folder, {})
        Players(self.cluster, recording, lasts=lambda number: TRAINING_S)
        flavor = {"name": "default", "resources": [{"name": "cpu", "nominalQuota": str(2 * SHARE)},
                                                   {"name": "memory", "nominalQuota": "100Gi"}]}
        put(plane.api, "clusterqueues", "ClusterQueue", name, spec={
            "cohortName": "tenants", "namespaceSelector": {}, "preemption": {"reclaimWithinCohort": "Any"},
            "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": [flavor]}]})
        put(plane.api, f"namespaces/{self.cluster.name}/localqueues", "LocalQueue", "team", spec={"clusterQueue": name})
        (folder / "templates.json").write_text(json.dumps(TEMPLATES))
        flags = {**FLAGS, "kubernetes_queue": "team", "trainer_templates": folder / "templates.json", "max_running_jobs": 4 * SHARE}
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        self.server = Server(folder / "state", *self.cluster.flags, *words).start()
        self.server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        self.server.run("datasets", "upload", text_file, "--name", "page")
        self.jobs = []

    def stop(self):
        self.server.stop()
        self.cluster.stop()

    def submit(self, number):
        with contextlib.closing(Api(self.server.grpc)) as api:
            self.jobs += [api.call("FineTuneService", "CreateJob", request(len(self.jobs))).name for _ in range(number)]

    def places(self):
        """Numbers of its admitted Jobs that have not ended, and of its Jobs that wait."""
        jobs = self.cluster.api.call("GET", self.cluster.job_path)["items"]
        ended = {"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"}
        live = [job for job in jobs if not ended & {one["type"] for one in job["status"].get("conditions", [])} and
                "deletionTimestamp" not in job["metadata"]]
        waiting = sum(job["spec"]["suspend"] for job in live)
        return len(live) - waiting, waiting

    def check(self):
        with contextlib.closing(Api(self.server.grpc)) as api:
            for job in self.jobs:
                got = soon(lambda: (one := api.call("FineTuneService", "GetJob", name=job)).state in (SUCCEEDED, FAILED) and one,
                           seconds=120)
                assert got.state == SUCCEEDED and got.retries == 0, got


@pytest.fixture
def tenants(kueue, plane, recording, model_directory, text_file, tmp_path):
    made = []
    try:
        for name in ("first", "second"):
            made.append(Tenant(plane, tmp_path / name, name, recording, model_directory, text_file))
        yield made
    finally:
        for tenant in made:
            tenant.stop()


def test_two_tenants_share_a_quota_and_borrow_what_the_other_does_not_use(tenants):
    first, second = tenants
    first.submit(22)
    soon(lambda: first.places()[0] == 2 * SHARE, "the first tenant has all places")
    second.submit(10)
    soon(lambda: second.places()[0] == SHARE, "the second tenant has its share")
    shared = []  # places of both, as long as both have waiting Jobs

    def over():
        places = first.places(), second.places()
        if not all(waiting for _, waiting in places):
            return True
        shared.append([taken for taken, _ in places])
        return False
    soon(over, every=0.2)
    soon(lambda: first.places()[0] == 2 * SHARE, "the first tenant has all places again")
    for tenant in tenants:
        tenant.check()
    taken = [sum(column) for column in zip(*shared)]
    share = taken[0] / sum(taken)
    preempted = len(first.cluster.created()) - len(first.jobs)
    print(f"{len(shared)} looks while both tenants had waiting trainers: on average {taken[0] / len(shared):.2f} places for the first, "
          f"{taken[1] / len(shared):.2f} for the second, share of the first {share:.2f}; {preempted} of its trainers were preempted")
    # After each end, a place is empty for a moment, longer for one tenant than for the other. No tenant has more than its
    # share. A look may show more, because the two tenants are not read at the same moment.
    assert len(shared) >= 10 and 0.4 <= share <= 0.6
    assert sum(one > SHARE for both in shared for one in both) <= len(shared) // 10
    assert preempted > 0, "the second tenant took back its share at once"
