"""A cluster for tests: an API server over TLS with the calls that nibbled makes, the parts of the Job controller that a
trainer's Job uses, and a kubelet that runs a pod's container as a process of this machine. Answers, messages and the order
of changes are those of Kubernetes 1.35: tests/kubernetes runs the same tests on a real control plane. Not part of it:
scheduling, namespaces, rights, images."""
import copy
import http.server
import json
import ssl
import threading
import time
import urllib.parse
import uuid

from pod_process import PodProcess

JOBS, PODS, EVENTS = "/apis/batch/v1/namespaces/ml/jobs", "/api/v1/namespaces/ml/pods", "/api/v1/namespaces/ml/events"
TOKEN = "token-of-nibbled"


class Cluster:
    """`programs`: the program of each container's name. Thread-safe."""

    def __init__(self, folder, authority, programs):
        self.programs = programs
        self.folder = folder
        self.lock = threading.Condition()
        self.objects = {JOBS: {}, PODS: {}, EVENTS: {}}
        self.history = []  # (version, collection, type, object)
        self.version = 1
        self.running = {}  # PodProcess by the pod's UID; stays after the end
        self.requests = []  # (method, path)
        self.away = False
        certificate, key = authority.issue("kubernetes", "IP:127.0.0.1")
        (folder / "token").write_text(TOKEN)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.flags = ["--runner", "kubernetes", "--kubernetes_url", f"https://127.0.0.1:{self.server.server_address[1]}",
                      "--kubernetes_namespace", "ml", "--kubernetes_token_file", folder / "token", "--kubernetes_ca_file",
                      authority.certificate]

    def stop(self):
        self.server.shutdown()
        for process in list(self.running.values()):
            process.kill()

    @property
    def processes(self):
        """The processes of the pods' containers, by the UID of the pod."""
        return {uid: one.process for uid, one in self.running.items()}

    def go_away(self):
        """Calls get no answer."""
        self.away = True

    def come_back(self):
        self.away = False

    # The API server's store.

    def put(self, collection, kind, item):
        """Call with the lock held."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        name = item["metadata"]["name"]
        if kind == "DELETED":
            self.objects[collection].pop(name, None)
        else:
            self.objects[collection][name] = item
        self.history.append((self.version, collection, kind, copy.deepcopy(item)))
        self.lock.notify_all()

    def created(self):
        """Names of the Jobs that POSTs created, in order."""
        with self.lock:
            return [item["metadata"]["name"] for _, collection, kind, item in self.history if collection == JOBS and kind == "ADDED"]

    def pods(self):
        with self.lock:
            return copy.deepcopy(list(self.objects[PODS].values()))

    def jobs(self):
        with self.lock:
            return sorted(self.objects[JOBS])

    # The Job controller and the kubelet.

    def create_job(self, job):
        with self.lock:
            name = job["metadata"]["name"]
            if name in self.objects[JOBS]:
                return 409, failure(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
            job["metadata"].update(uid=str(uuid.uuid4()), namespace="ml")
            job["status"] = {}
            self.put(JOBS, "ADDED", job)
            if not job["spec"].get("suspend"):
                self.start_pod(job)
            return 201, copy.deepcopy(job)

    def set_suspend(self, name, suspend):
        """As Kueue does: false admits the Job, true revokes its quota."""
        with self.lock:
            job = copy.deepcopy(self.objects[JOBS][name])
            job["spec"]["suspend"] = suspend
            self.put(JOBS, "MODIFIED", copy.deepcopy(job))
            reason, message = ("JobSuspended", "Job suspended") if suspend else ("JobResumed", "Job resumed")
            job["status"]["conditions"] = [condition("Suspended", reason, message, str(suspend))]
            self.put(JOBS, "MODIFIED", job)
            pods = [pod for pod in self.objects[PODS].values() if self.owner(pod) == name]
            if not suspend and not pods:
                self.start_pod(job)
        if suspend:
            for pod in pods:
                self.delete_pod(pod["metadata"]["name"])

    @staticmethod
    def owner(pod):
        return pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]

    def start_pod(self, job):
        """Call with the lock held."""
        name, uid = f"{job['metadata']['name']}-0-{uuid.uuid4().hex[:5]}", str(uuid.uuid4())
        labels = {**job["spec"]["template"]["metadata"]["labels"], "batch.kubernetes.io/job-name": job["metadata"]["name"]}
        spec = job["spec"]["template"]["spec"]
        process = PodProcess(self.programs, spec, uid, self.folder / f"{name}.log")
        self.running[uid] = process
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": uid, "namespace": "ml", "labels": labels},
               "spec": {}, "status": {"phase": "Pending", "conditions": []}}
        self.put(PODS, "ADDED", copy.deepcopy(pod))
        pod["status"].update(phase="Running", containerStatuses=[{"name": process.container["name"], "state": {"running": {}}}])
        self.put(PODS, "MODIFIED", pod)
        threading.Thread(target=self.follow, args=(name, process), daemon=True).start()

    def follow(self, pod_name, process):
        code = process.exit_code()
        with self.lock:
            pod = copy.deepcopy(self.objects[PODS].get(pod_name))
            if pod is None or pod["spec"].get("lost"):
                return
            pod["status"]["phase"] = "Failed" if code else "Succeeded"
            pod["status"]["containerStatuses"] = [{"name": process.container["name"], "state": {"terminated": {
                "exitCode": code, "reason": "Error" if code else "Completed"}}}]
            self.put(PODS, "MODIFIED", pod)
            self.end_job(pod, code)
            if "deletionTimestamp" in pod["metadata"]:
                self.put(PODS, "DELETED", pod)
                self.remove_deleted_job(self.owner(pod))

    def end_job(self, pod, code):
        """Call with the lock held."""
        job = copy.deepcopy(self.objects[JOBS].get(self.owner(pod)))
        if job is None or job["spec"].get("suspend") or "deletionTimestamp" in job["metadata"]:
            return
        disrupted = any(one["type"] == "DisruptionTarget" for one in pod["status"]["conditions"])
        name = f"ml/{pod['metadata']['name']}"
        first, last, reason = "FailureTarget", "Failed", "PodFailurePolicy"
        if code == 0:
            first, last, reason = "SuccessCriteriaMet", "Complete", "CompletionsReached"
            message = "Reached expected number of succeeded pods"
        elif disrupted:
            message = f"Pod {name} has condition DisruptionTarget matching FailJob rule at index 0"
        else:
            message = f"Container trainer for pod {name} failed with exit code {code} matching FailJob rule at index 1"
        job["status"]["conditions"] = [condition(first, reason, message)]
        self.put(JOBS, "MODIFIED", copy.deepcopy(job))
        job["status"]["conditions"].append(condition(last, reason, message))
        self.put(JOBS, "MODIFIED", job)

    def remove_deleted_job(self, name):
        """Call with the lock held."""
        job = self.objects[JOBS].get(name)
        if job is not None and "deletionTimestamp" in job["metadata"]:
            self.put(JOBS, "DELETED", job)

    def disrupt(self, name, reason, message):
        """Adds the condition DisruptionTarget to a pod."""
        with self.lock:
            pod = copy.deepcopy(self.objects[PODS][name])
            pod["status"]["conditions"] = [condition("DisruptionTarget", reason, message)]
            self.put(PODS, "MODIFIED", pod)

    def delete_pod(self, name, grace=None):
        with self.lock:
            pod = copy.deepcopy(self.objects[PODS].get(name))
            if pod is None:
                return 404, failure(404, "NotFound", f'pods "{name}" not found')
            process = self.running[pod["metadata"]["uid"]]
            ended = process.process.poll() is not None
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.put(PODS, "DELETED" if ended else "MODIFIED", pod)
        if not ended:
            process.stop(process.grace if grace is None else grace)
        return 200, pod

    def evict(self, name):
        self.disrupt(name, "EvictionByEvictionAPI", "Eviction API: evicting")
        self.delete_pod(name)

    def lose_node(self, name):
        """The pod's node does not answer: the container continues, but its status is not reported any more."""
        self.disrupt(name, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
        with self.lock:
            pod = copy.deepcopy(self.objects[PODS][name])
            pod["spec"]["lost"] = True
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.put(PODS, "MODIFIED", pod)

    def delete_job(self, name, options):
        with self.lock:
            job = copy.deepcopy(self.objects[JOBS].get(name))
            if job is None:
                return 404, failure(404, "NotFound", f'jobs.batch "{name}" not found')
            wanted = options.get("preconditions", {}).get("uid", job["metadata"]["uid"])
            if wanted != job["metadata"]["uid"]:
                return 409, failure(409, "Conflict", "the UID in the precondition does not match")
            pods = [pod["metadata"]["name"] for pod in self.objects[PODS].values()
                    if self.owner(pod) == name and not pod["spec"].get("lost")]
            policy = options.get("propagationPolicy", "Orphan")  # the default of the API for Jobs
            if policy == "Orphan":
                pods = []
            foreground = policy == "Foreground" and pods
            job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.put(JOBS, "MODIFIED" if foreground else "DELETED", job)
        for pod in pods:
            self.delete_pod(pod)
        with self.lock:
            if not [pod for pod in self.objects[PODS].values() if self.owner(pod) == name]:
                self.remove_deleted_job(name)
        return 200, job


def condition(kind, reason, message, status="True"):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def failure(code, reason, message):
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}


def matches(item, query):
    labels = item["metadata"].get("labels", {})
    selector = query.get("labelSelector", "")
    return all(labels.get(key) == value for key, _, value in (one.partition("=") for one in selector.split(",") if one))


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for `cluster`, which a subclass sets (handler_of)."""
    cluster = None
    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, *_):
        pass

    def handle(self):
        if not self.cluster.away:
            try:
                super().handle()
            except OSError:
                pass  # the client has left

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def parts(self):
        """(collection, name, query, body) of an allowed request; None if it was refused, or if the cluster is away."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        with self.cluster.lock:
            self.cluster.requests.append((self.command, self.path))
        if self.cluster.away:
            self.close_connection = True
            return None
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, failure(401, "Unauthorized", "Unauthorized"))
            return None
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        for collection in self.cluster.objects:
            if url.path == collection or url.path.startswith(collection + "/"):
                return collection, url.path[len(collection) + 1:], query, body
        self.answer(404, failure(404, "NotFound", "no such path"))
        return None

    def do_POST(self):
        if parts := self.parts():
            self.answer(*self.cluster.create_job(parts[3]))

    def do_DELETE(self):
        if parts := self.parts():
            collection, name, _, body = parts
            self.answer(*(self.cluster.delete_job(name, body) if collection == JOBS else
                          self.cluster.delete_pod(name, body.get("gracePeriodSeconds"))))

    def do_GET(self):
        if not (parts := self.parts()):
            return
        collection, name, query, _ = parts
        if query.get("watch") in ("1", "true"):
            return self.watch(collection, query)
        with self.cluster.lock:
            if name:
                item = self.cluster.objects[collection].get(name)
                answer = (200, copy.deepcopy(item)) if item else (404, failure(404, "NotFound", f'"{name}" not found'))
            else:
                items = [copy.deepcopy(item) for item in self.cluster.objects[collection].values() if matches(item, query)]
                answer = (200, {"kind": "List", "metadata": {"resourceVersion": str(self.cluster.version)}, "items": items})
        self.answer(*answer)

    def watch(self, collection, query):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent, ends = int(query["resourceVersion"]), time.monotonic() + float(query.get("timeoutSeconds", 60))
        while not self.cluster.away and time.monotonic() < ends:
            with self.cluster.lock:
                self.cluster.lock.wait_for(lambda: self.cluster.version > sent, timeout=0.5)
                events = [(kind, item) for version, of, kind, item in self.cluster.history if of == collection and version > sent]
                sent = self.cluster.version
            for kind, item in events:
                if matches(item, query):
                    line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


def handler_of(cluster):
    return type("HandlerOfACluster", (Handler,), {"cluster": cluster})
