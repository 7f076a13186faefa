"""A node for tests: binds the pods of one namespace to itself, runs their containers as processes of this machine
(pod_process.py), reports their status and ends them as a kubelet does."""
import signal
import threading
import time

from kubernetes_api import MERGE, STRATEGIC_MERGE, Refused
from pod_process import PodProcess

ABSENT = "absent.example/image:1"  # an image that the node cannot pull
UNMOUNTABLE = "unmountable.example/image:1"  # the image of a pod whose volumes the node cannot mount


class Kubelet:
    """`programs`: the program of each container's name. Thread-safe."""

    def __init__(self, api, namespace, programs, folder):
        self.api, self.programs, self.folder = api, programs, folder
        self.namespace, self.name, self.collection = namespace, f"node-of-{namespace}", f"/api/v1/namespaces/{namespace}/pods"
        self.lock = threading.Lock()
        self.running = {}  # PodProcess by UID; stays after the end
        self.ended = set()  # UIDs of pods whose end is reported
        self.graces = {}  # by UID, of pods that are being deleted
        self.endings = {}  # by UID: (reason of the container's end, more of the pod's status) if not the usual ones
        self.broken = set()  # UIDs of pods whose image was not pulled, or whose volumes were not mounted
        self.lost = set()  # names of pods whose status is no longer reported
        self.stopped = False
        self.run = PodProcess  # (programs, spec, uid, log): the container of a pod
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        api.call("POST", "/api/v1/nodes", {"metadata": {"name": self.name}})
        api.call("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": {"conditions": [ready]}}, STRATEGIC_MERGE)
        threading.Thread(target=self.follow, daemon=True).start()

    def stop(self):
        """Ends all containers without a report."""
        with self.lock:
            self.stopped = True
            processes = list(self.running.values())
        for process in processes:
            process.kill()
        self.api.call("DELETE", f"/api/v1/nodes/{self.name}")

    def kill_for_memory(self, pod):
        """Kills the container as the kernel does when it exceeds its limit of memory."""
        self.kill(pod, "OOMKilled", {})

    def evict(self, pod):
        """Ends the pod as a kubelet does on a node that is short of memory."""
        why = "The node was low on resource: memory."
        disruption = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": why}
        self.kill(pod, "Error", {"reason": "Evicted", "message": why, "conditions": [disruption]})

    def kill(self, pod, reason, status):
        uid = pod["metadata"]["uid"]
        with self.lock:
            self.endings[uid] = reason, status
        self.running[uid].send(signal.SIGKILL)

    def lose(self, pod_name):
        """The node no longer answers for this pod: its container continues."""
        with self.lock:
            self.lost.add(pod_name)

    def taint(self, taints):
        self.api.call("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": taints}}, MERGE)

    # The methods below run on threads of the kubelet.

    def follow(self):
        while not self.stopped:
            try:
                for kind, pod in self.api.watch(self.collection):
                    if self.stopped or kind == "ERROR":
                        break
                    self.attempt(self.handle, kind, pod)
            except (OSError, Refused):
                time.sleep(0.2)  # the API server is away

    def attempt(self, action, *arguments):
        """Ignores 404 and 409: the pod is gone or has changed, and its next event says so."""
        try:
            action(*arguments)
        except Refused as refused:
            if refused.code not in (404, 409):
                raise

    def handle(self, kind, pod):
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        leaving = "deletionTimestamp" in pod["metadata"]
        with self.lock:
            process, known, lost = self.running.get(uid), uid in self.running or uid in self.broken, name in self.lost
        if lost or self.stopped:
            return
        if kind == "DELETED":
            if process:
                process.stop(process.grace)  # deleted with grace 0 by somebody else
        elif leaving:
            self.leave(name, uid, pod, process)
        elif "nodeName" not in pod["spec"]:
            self.api.call("POST", f"{self.collection}/{name}/binding",
                          {"metadata": {"name": name, "uid": uid}, "target": {"kind": "Node", "name": self.name}})
        elif not known and pod["status"]["phase"] == "Pending":
            self.begin(name, uid, pod["spec"])

    def leave(self, name, uid, pod, process):
        grace = pod["metadata"]["deletionGracePeriodSeconds"]
        with self.lock:
            shorter = grace < self.graces.get(uid, float("inf"))
            self.graces[uid] = grace
            ended = uid in self.ended or process is None
        if process is None and pod["status"]["phase"] == "Pending":
            self.end_unstarted(name, uid, pod["spec"])
        if ended:
            self.remove(name, uid)
        elif shorter:
            process.stop(grace)

    def end_unstarted(self, name, uid, spec):
        """pkg/kubelet/status/status_manager.go in kubernetes, TerminatePod: a container that waited ends with 137."""
        (container,) = spec["containers"]
        unknown = {"exitCode": 137, "reason": "ContainerStatusUnknown",
                   "message": "The container could not be located when the pod was terminated"}
        self.report(name, uid, "Failed", container, {"terminated": unknown} if uid in self.broken else None)

    def begin(self, name, uid, spec):
        (container,) = spec["containers"]
        if container["image"] == ABSENT:
            with self.lock:
                self.broken.add(uid)
            waiting = {"reason": "ErrImagePull", "message": f"failed to pull and unpack image \"{ABSENT}\": not found"}
            self.report(name, uid, "Pending", container, {"waiting": waiting})
            return
        if container["image"] == UNMOUNTABLE:
            with self.lock:
                self.broken.add(uid)
            self.report(name, uid, "Pending", container, {"waiting": {"reason": "ContainerCreating"}},
                        {"conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]})
            self.warn(name, uid, "FailedMount", "no such volume")
            return
        with self.lock:
            if self.stopped:
                return
            process = self.running[uid] = self.run(self.programs, spec, uid, self.folder / f"{name}.log")
        try:
            self.report(name, uid, "Running", container, {"running": {}})
        finally:
            threading.Thread(target=self.await_end, args=(name, uid, process), daemon=True).start()

    def warn(self, name, uid, reason, message):
        """Creates an event of a pod."""
        self.api.call("POST", f"/api/v1/namespaces/{self.namespace}/events", {
            "metadata": {"generateName": f"{name}."}, "type": "Warning", "reason": reason, "message": message,
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": self.namespace, "name": name, "uid": uid}})

    def await_end(self, name, uid, process):
        code = process.exit_code()
        with self.lock:
            if self.stopped or name in self.lost:
                return
            reason, more = self.endings.get(uid, ("Error" if code else "Completed", {}))
        self.until_answered(self.report, name, uid, "Failed" if code else "Succeeded", process.container,
                            {"terminated": {"exitCode": code, "reason": reason}}, more)
        with self.lock:
            self.ended.add(uid)
            leaving = uid in self.graces
        if leaving:
            self.until_answered(self.remove, name, uid)

    def until_answered(self, action, *arguments):
        while not self.stopped:
            try:
                return self.attempt(action, *arguments)
            except OSError:
                time.sleep(0.2)  # the API server is away

    def report(self, name, uid, phase, container, state, more=None):
        """`state`: of the container; None: it has no status. Strategic merge: the conditions of others stay."""
        status = {"phase": phase, **(more or {})}
        if state is not None:
            status["containerStatuses"] = [{"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                                            "ready": "running" in state, "state": state}]
        self.api.call("PATCH", f"{self.collection}/{name}/status", {"metadata": {"uid": uid}, "status": status}, STRATEGIC_MERGE)

    def remove(self, name, uid):
        self.api.call("DELETE", f"{self.collection}/{name}", {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
