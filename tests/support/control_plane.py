"""A real control plane of Kubernetes for tests: etcd, API server and controller manager on free ports of 127.0.0.1, as
processes of this machine. It has no scheduler, and kubelet.py plays its nodes. For a real node, see node.py."""
import json
import pathlib
import socket
import subprocess
import uuid

import yaml

from kubernetes_api import MERGE, STRATEGIC_MERGE, Api, Refused
from kubelet import Kubelet
from soon import soon

ADMIN = "token-of-admin"
# "daemonset" runs only because "taint-eviction" uses its index of the pods of a node. "node-lifecycle" is left out, so
# that nodes need not send heartbeats.
CONTROLLERS = [f"{name}-controller" for name in (
    "job", "garbage-collector", "namespace", "serviceaccount", "pod-garbage-collector", "taint-eviction", "daemonset", "ttl-after-finished",
    "disruption", "resourcequota", "root-ca-certificate-publisher")]
# Exactly the rights that nibbled needs.
RULES = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "list", "watch", "delete"]},
         {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "delete"]},
         {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]}]
AUDIT = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
         "rules": [{"level": "Metadata", "resources": [{"group": "batch", "resources": ["jobs"]},
                                                       {"group": "", "resources": ["pods", "events"]}]},
                   {"level": "None"}]}


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class ControlPlane:
    """`tools`: the folder of the three programs. `port` (None: a free one) and `names` (of the certificate) are those of the
    API server. `users`: more lines of its token file. `flags`: more flags; one that is given twice has the last value.
    `controllers`: those that the controller manager runs."""

    def __init__(self, folder, authority, tools, port=None, names="IP:127.0.0.1", users="", flags=(), controllers=CONTROLLERS):
        self.folder, self.tools, self.authority = pathlib.Path(folder), pathlib.Path(tools), authority
        self.processes = {}
        etcd, peer, free, controller = free_ports(4)
        self.port = port or free
        certificate, key = authority.issue("apiserver", names)
        # Keys of the tokens of service accounts.
        account_certificate, account_key = authority.issue("accounts", "DNS:accounts")
        files = {"tokens.csv": f'{ADMIN},admin,admin,"system:masters"\n{users}', "audit.yaml": yaml.safe_dump(AUDIT),
                 "controllers.yaml": yaml.safe_dump(self.kubeconfig())}
        for name, text in files.items():
            (self.folder / name).write_text(text)
        self.audit = self.folder / "audit.jsonl"
        store = f"http://127.0.0.1:{etcd}"
        peers = f"http://127.0.0.1:{peer}"
        self.commands = {
            "etcd": ["--data-dir", "etcd", "--listen-client-urls", store, "--advertise-client-urls", store, "--listen-peer-urls", peers,
                     "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}", "--unsafe-no-fsync"],
            "kube-apiserver": [
                "--etcd-servers", store, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", self.port,
                "--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.96.0.0/24", "--tls-cert-file", certificate,
                "--tls-private-key-file", key, "--service-account-key-file", account_certificate, "--service-account-signing-key-file",
                account_key, "--service-account-issuer", "https://kubernetes.default.svc", "--token-auth-file", "tokens.csv",
                "--authorization-mode", "RBAC", "--audit-policy-file", "audit.yaml", "--audit-log-path", self.audit, *flags],
            "kube-controller-manager": [
                "--kubeconfig", "controllers.yaml", "--service-account-private-key-file", account_key, "--root-ca-file",
                authority.certificate, "--use-service-account-credentials", "--leader-elect=false", "--bind-address", "127.0.0.1",
                "--secure-port", controller, "--controllers", ",".join(controllers)]}
        self.api = Api(self.port, authority.certificate, ADMIN)
        for name in self.commands:
            self.start(name)

    def kubeconfig(self, token=ADMIN):
        return {"apiVersion": "v1", "kind": "Config", "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": f"https://127.0.0.1:{self.port}",
                                                          "certificate-authority": str(self.authority.certificate)}}],
                "users": [{"name": "admin", "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}]}

    def start(self, name):
        log = self.folder / f"{name}.log"
        with open(log, "ab") as out:
            process = subprocess.Popen([self.tools / name, *map(str, self.commands[name])], cwd=self.folder, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT)
        self.processes[name] = process
        if name == "kube-apiserver":
            self.await_api()

    def await_api(self):
        def ready():
            ended = {name: process.returncode for name, process in self.processes.items() if process.poll() is not None}
            assert not ended, f"ended: {ended}; {self.logs()}"
            try:
                self.api.call("GET", "/readyz")
                return True
            except (OSError, Refused):
                return False
        soon(ready, lambda: f"the API server is ready; {self.logs()}", 120)

    def logs(self):
        return "\n".join(f"{name}: {(self.folder / f'{name}.log').read_text(errors='replace')[-1500:]}" for name in self.processes)

    def end(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self):
        for name in reversed(list(self.processes)):
            self.end(name)


class Cluster:
    """A new namespace of a control plane, with a node of its own: has the interface of fake_cluster.Cluster. nibbled is a
    service account with RULES."""

    def __init__(self, plane, folder, programs):
        name = f"ml-{uuid.uuid4().hex[:8]}"
        self.plane, self.api, self.name = plane, plane.api, name
        self.restarted = False  # whether the test ended the API server (go_away)
        self.job_path, self.pod_path = f"/apis/batch/v1/namespaces/{name}/jobs", f"/api/v1/namespaces/{name}/pods"
        space = f"/api/v1/namespaces/{name}"
        rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
        self.account = f"system:serviceaccount:{name}:nibbled"
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.api.call("POST", f"{space}/serviceaccounts", {"metadata": {"name": "nibbled"}})
        self.api.call("POST", f"{rights}/roles", {"metadata": {"name": "nibbled"}, "rules": RULES})
        self.api.call("POST", f"{rights}/rolebindings", {
            "metadata": {"name": "nibbled"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "nibbled"},
            "subjects": [{"kind": "ServiceAccount", "name": "nibbled", "namespace": name}]})
        # A pod is refused until its namespace has the account that the controller manager makes.
        soon(lambda: self.api.code("GET", f"{space}/serviceaccounts/default") == 200)
        token = self.api.call("POST", f"{space}/serviceaccounts/nibbled/token", {"spec": {"expirationSeconds": 7200}})
        (folder / "token").write_text(token["status"]["token"])
        self.kubelet = Kubelet(self.api, name, programs, folder)
        self.flags = ["--runner", "kubernetes", "--kubernetes_url", f"https://127.0.0.1:{plane.port}", "--kubernetes_namespace", name,
                      "--kubernetes_token_file", folder / "token", "--kubernetes_ca_file", plane.authority.certificate]

    @property
    def processes(self):
        """The processes of the pods' containers, by the UID of the pod."""
        return {uid: one.process for uid, one in self.kubelet.running.items()}

    def stop(self):
        self.come_back()
        self.kubelet.stop()
        self.api.call("DELETE", f"/api/v1/namespaces/{self.name}")
        for pod in self.pods():  # a pod whose node is gone would delay the namespace's deletion
            self.api.code("DELETE", f"{self.pod_path}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})

    def as_nibbled(self):
        """An Api with the rights of nibbled."""
        return Api(self.plane.port, self.plane.authority.certificate, ADMIN, user=self.account)

    def requests(self):
        """(verb, resource, HTTP status, name) of the finished requests of nibbled's account."""
        found = []
        for line in self.plane.audit.read_text().splitlines(True):
            event = json.loads(line) if line.endswith("\n") else {}
            if event.get("user", {}).get("username") == self.account:
                of = event["objectRef"]
                found.append((event["verb"], of["resource"], event["responseStatus"]["code"], of.get("name", "")))
        return found

    def created(self):
        """Names of the Jobs that POSTs created, in order."""
        return [name for verb, resource, code, name in self.requests() if (verb, resource, code) == ("create", "jobs", 201)]

    def pods(self):
        return self.api.call("GET", self.pod_path)["items"]

    def jobs(self):
        return sorted(job["metadata"]["name"] for job in self.api.call("GET", self.job_path)["items"])

    def states(self):
        """A line for each Job and each pod: its name, whether it is being deleted, and its status."""
        def line(kind, found):
            metadata = found["metadata"]
            deleted = f", being deleted since {metadata['deletionTimestamp']}" if "deletionTimestamp" in metadata else ""
            return f"{kind} {metadata['name']}{deleted}: {json.dumps(found.get('status', {}))}"
        self.come_back()
        jobs = self.api.call("GET", self.job_path)["items"]
        return [line("Job", job) for job in jobs] + [line("Pod", pod) for pod in self.pods()]

    def delete_job(self, job, options):
        self.api.call("DELETE", f"{self.job_path}/{job}", options)

    def evict(self, pod):
        self.api.call("POST", f"{self.pod_path}/{pod}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}})

    def lose_node(self, pod):
        """The pod's node does not answer: the container continues, and the cluster deletes the pod."""
        self.kubelet.lose(pod)
        self.kubelet.taint([{"key": "nibble.dev/lost", "effect": "NoExecute"}])
        soon(lambda: [one for one in self.pods() if one["metadata"]["name"] == pod and "deletionTimestamp" in one["metadata"]])
        self.kubelet.taint(None)  # for the next pods

    def collect(self, pod):
        """Removes the pod of a node that is gone (pkg/controller/podgc in kubernetes, without its wait of a minute)."""
        gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists"}
        self.api.call("PATCH", f"{self.pod_path}/{pod}/status", {"status": {"phase": "Failed", "conditions": [gone]}}, STRATEGIC_MERGE)
        self.api.call("DELETE", f"{self.pod_path}/{pod}", {"gracePeriodSeconds": 0})

    def label(self, labels):
        """Sets labels of the namespace."""
        self.api.call("PATCH", f"/api/v1/namespaces/{self.name}", {"metadata": {"labels": labels}}, MERGE)

    def set_quota(self, pods):
        """Allows at most `pods` pods in the namespace. Returns when the quota is in force."""
        path, quota = f"/api/v1/namespaces/{self.name}/resourcequotas", {"spec": {"hard": {"count/pods": str(pods)}}}
        if self.api.code("GET", f"{path}/pods") == 404:
            self.api.call("POST", path, {"metadata": {"name": "pods"}, **quota})
        else:
            self.api.call("PATCH", f"{path}/pods", quota, MERGE)
        soon(lambda: self.api.call("GET", f"{path}/pods")["status"].get("hard") == quota["spec"]["hard"])

    def set_suspend(self, job, suspend):
        """As Kueue does: false admits the Job, true revokes its quota."""
        self.api.call("PATCH", f"{self.job_path}/{job}", {"spec": {"suspend": suspend}}, MERGE)

    def go_away(self):
        """Ends the API server."""
        self.restarted = True
        self.plane.end("kube-apiserver")

    def come_back(self):
        if "kube-apiserver" not in self.plane.processes:
            self.plane.start("kube-apiserver")
