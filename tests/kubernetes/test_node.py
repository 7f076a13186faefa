"""A release of the chart on a real node (tests/support/node.py): kubelet, containerd and runc run the pods of the server
and of trainers, in a namespace that enforces restricted pod security. Runs only by tests/node.sh."""
import base64
import json
import os
import shutil
import subprocess

import pytest
import yaml

import image_archive
import pki
from conftest import BIN, ROOT, TOOLS, Server
from node import ADDRESS, API_PORT, NAME, PAUSE, Node, node_plane
from soon import soon
from test_kill import check, create
from test_kubernetes_runner import begin, undisturbed_digest

pytestmark = pytest.mark.node

CHART, PLUGINS = ROOT / "helm/nibble", TOOLS.parent / "cni"
PROGRAMS = [*(TOOLS / name for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd",
                                        "containerd-shim-runc-v2", "ctr", "runc")),
            *(PLUGINS / name for name in ("bridge", "host-local", "loopback"))]
NAMESPACE, NIBBLED = "ml", "test-nibble"  # NIBBLED: name of the Deployment and of the Service
PODS, JOBS = f"/api/v1/namespaces/{NAMESPACE}/pods", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
UID = 65532  # of the images' user
# One thread, as in the local server: so the bits are the same, and the pods fit on a machine with two CPUs.
VALUES = {
    "image": {"pullPolicy": "Never"},
    "server": {"threads": 1, "preStopSeconds": 0, "extraArgs": ["--min_free_bytes=1048576"]},
    "training": {"mode": "jobs", "memory": "1Gi", "ephemeralStorage": "64Mi"},
    "resources": {"requests": {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "64Mi"},
                  "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "256Mi"}},
    "shmSize": "64Mi",
    "persistence": {"accessMode": "ReadWriteMany", "storageClass": "node", "size": "1Gi",
                    "database": {"storageClass": "node", "size": "1Gi"}},
    "networkPolicy": {"apiServer": {"cidrs": [f"{ADDRESS}/32"], "port": API_PORT}},
    "auth": {"test": {"existingSecret": "nibble-test"}}}


@pytest.fixture(scope="module")
def cgroup():
    name = os.environ.get("NIBBLE_NODE_CGROUP")
    if name is None:
        pytest.skip("needs namespaces of its own: run it as root by tests/node.sh")
    missing = [str(path) for path in PROGRAMS if not os.access(path, os.X_OK)]
    if missing:
        pytest.skip(f"{', '.join(missing)}: missing; install with deploy/setup.sh --node")
    return name


@pytest.fixture(scope="module")
def archive(cgroup, request, tmp_path_factory):
    """The images, with the names of the chart's default values."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    folder = tmp_path_factory.mktemp("images")
    given, made = request.config.getoption("--images"), folder / "made"
    pause = image_archive.make_pause_root(made / "pause")
    if given is None:
        server = image_archive.make_root(made / "server", [BIN / "nibbled", BIN / "nibble"])
        trainer = [server, image_archive.make_root(made / "trainer", [BIN / "nibble-trainer"], without=server)]
    else:
        server, trainer = given / "server", [given / "trainer"]
    # Both images begin with nibbled, as in the Dockerfile; the chart's template of trainers sets their command.
    image_archive.write(folder / "images.tar", {
        PAUSE: ([pause], ["/pause"]), f"docker.io/library/nibble-server:{version}": ([server], ["/usr/local/bin/nibbled"]),
        f"docker.io/library/nibble-trainer:{version}": (trainer, ["/usr/local/bin/nibbled"])})
    shutil.rmtree(made)  # a gigabyte
    return folder / "images.tar"


@pytest.fixture(scope="module")
def node(cgroup, archive, tmp_path_factory):
    """The only node of a control plane. It has the images."""
    folder = tmp_path_factory.mktemp("plane")
    plane = node_plane(folder, pki.Authority(folder / "pki"), TOOLS)
    try:
        node = Node(plane, tmp_path_factory.mktemp("node"), TOOLS, PLUGINS, archive, cgroup)
        yield node
        node.stop()
    finally:
        plane.stop()


@pytest.fixture(scope="module")
def plane(node):
    return node.plane


def secret(api, name, **files):
    data = {key.replace("_", "."): base64.b64encode(content).decode() for key, content in files.items()}
    api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": name}, "data": data})


def volume(api, folder, name, mode):
    """A volume in a folder of the node. The kubelet does not change the owner of such a folder."""
    (folder / name).mkdir()
    os.chown(folder / name, UID, UID)
    api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": [mode], "storageClassName": "node", "hostPath": {"path": str(folder / name)}}})


@pytest.fixture(scope="module")
def install(plane, helm, tmp_path_factory):
    """Runs helm on the cluster: install(command, ...)."""
    folder = tmp_path_factory.mktemp("helm")
    environment = {"KUBECONFIG": str(plane.folder / "controllers.yaml"), "HOME": str(folder), "PATH": "/usr/bin:/bin"}

    def run(*arguments):
        found = subprocess.run([helm, "--namespace", NAMESPACE, *map(str, arguments)], env=environment, capture_output=True, text=True)
        assert found.returncode == 0, f"helm {arguments}: {found.stderr}{found.stdout}; {states(plane.api)}"
        return found.stdout
    return run


def states(api):
    """The status and events of the namespace's pods, for the message of a failure."""
    pods = {pod["metadata"]["name"]: pod["status"] for pod in api.call("GET", PODS)["items"]}
    events = [[event["metadata"]["creationTimestamp"], event["involvedObject"]["name"], event["message"]]
              for event in api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]]
    return json.dumps(pods, indent=1) + "\n".join(map(str, events))


@pytest.fixture(autouse=True)
def told(node):
    """Prints what the cluster says, which pytest shows for a test that failed."""
    yield
    print(states(node.plane.api), node.logs())


@pytest.fixture(scope="module")
def release(plane, install, model_directory, text_file, tmp_path_factory):
    """The Server of the release, with the model and the data of the tests."""
    api, folder = plane.api, tmp_path_factory.mktemp("release")
    api.call("POST", "/api/v1/namespaces",
             {"metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    volume(api, folder, "state", "ReadWriteMany")
    volume(api, folder, "database", "ReadWriteOnce")
    host = f"{NIBBLED}.{NAMESPACE}.svc"
    certificate, key = plane.authority.issue("nibbled", f"DNS:{host}")
    ca = plane.authority.certificate
    secret(api, "nibble-tls", tls_crt=certificate.read_bytes(), tls_key=key.read_bytes(), ca_crt=ca.read_bytes())
    line = subprocess.run([BIN / "nibble", "tokens", "new", "tester", "--role", "admin", "--out", folder / "token"], check=True,
                          capture_output=True, env={}).stdout
    secret(api, "nibble-tokens", tokens_jsonl=line)
    secret(api, "nibble-test", token=(folder / "token").read_bytes())
    (folder / "values.yaml").write_text(yaml.safe_dump(VALUES))
    install("install", "test", CHART, "--values", folder / "values.yaml", "--wait", "--timeout", "240s")
    server = Server(folder / "state")
    server.grpc = f"{server_pod(api)['status']['podIP']}:50051"
    server.client_flags = ["--tls-ca", ca, "--tls-name", host, "--token-file", folder / "token"]
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    return server


@pytest.fixture(scope="module")
def calm(cgroup, tmp_path_factory, model_directory, text_file):
    return undisturbed_digest(tmp_path_factory.mktemp("local"), model_directory, text_file, "--threads", 1)


def server_pod(api):
    (pod,) = api.call("GET", PODS, labelSelector="app.kubernetes.io/component=server")["items"]
    return pod


def pods_of(api, job):
    """Pods of a job's trainers, by attempt."""
    found = api.call("GET", PODS, labelSelector=f"nibble.dev/job={job}")["items"]
    return {int(pod["metadata"]["labels"]["nibble.dev/attempt"]): pod for pod in found}


def test_namespace_refuses_a_pod_that_is_not_restricted(plane, release):
    pod = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "root", "image": "nibble-server:test"}]}}
    assert plane.api.code("POST", PODS, pod, dryRun="All") == 403


def test_helm_test_of_the_release_succeeds(release, install):
    assert "Phase:          Succeeded" in install("test", "test", "--timeout", "120s")


def test_job_succeeds_in_a_real_pod_with_the_bits_of_the_local_runner(plane, release, calm):
    job = create(release, "undisturbed")
    pod = soon(lambda: pods_of(plane.api, job).get(1))
    check(release, job, calm, "undisturbed", attempts=1)
    assert pod["metadata"]["ownerReferences"][0]["name"] == f"nibble-{job}-1"
    attempt = release.state / "jobs" / job / "attempts/1"
    assert json.loads((attempt / "attempt.json").read_text())["report_address"] == f"{NIBBLED}.{NAMESPACE}.svc:50052"
    soon(lambda: plane.api.call("GET", JOBS)["items"] == [])


def test_evicted_job_resumes_with_the_bits_of_the_local_runner_and_no_counted_retry(plane, release, calm):  # R30
    job = begin(release)
    pod = pods_of(plane.api, job)[1]
    name, (container,) = pod["metadata"]["name"], pod["status"]["containerStatuses"]
    assert container["containerID"].startswith("containerd://") and pod["spec"]["nodeName"] == NAME
    plane.api.call("POST", f"{PODS}/{name}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})
    check(release, job, calm, "out")
    assert release.json("jobs", "get", job).get("retries", 0) == 0
    assert plane.api.code("GET", f"{PODS}/{name}") == 404
    assert server_pod(plane.api)["status"]["containerStatuses"][0]["restartCount"] == 0
    outcome = json.loads((release.state / "jobs" / job / "attempts/1/outcome.json").read_text())
    assert outcome["exit_code"] == 75, "SIGTERM ended the trainer, after a checkpoint"
