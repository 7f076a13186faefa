"""A real node for tests: containerd, runc, network plugins, scheduler and kubelet, which join a real control plane. It
runs only in the namespaces that tests/node.sh makes: there, /var/lib, /var/log and /run are the test's own, the end of
the first process ends all others, and the network has only the loopback and the bridge of the pods."""
import json
import pathlib
import subprocess

import yaml

from control_plane import ControlPlane
from kubernetes_api import Refused
from name_server import NameServer
from soon import soon

BRIDGE, ADDRESS, SUBNET = "node0", "192.168.77.1", "192.168.77.0/24"
# Address and port of the Service `kubernetes`, by which pods call the API server. The node has no kube-proxy: it has this
# address itself, and the API server listens on the Service's port.
API_ADDRESS, API_PORT = "10.96.0.1", 443
NAME, TOKEN = "node-1", "token-of-node"
PAUSE = "docker.io/library/nibble-pause:test"
SOCKET = "/run/containerd/containerd.sock"


def node_plane(folder, authority, tools):
    """A control plane with all controllers, for real nodes."""
    plane = ControlPlane(
        folder, authority, tools, port=API_PORT, names=f"IP:127.0.0.1,IP:{ADDRESS},IP:{API_ADDRESS}",
        users=f'{TOKEN},system:node:{NAME},{NAME},"system:nodes"\n', controllers=["*"],
        flags=["--bind-address", "0.0.0.0", "--advertise-address", ADDRESS, "--authorization-mode", "Node", "--allow-privileged",
               "--enable-admission-plugins", "NodeRestriction"])
    plane.commands["kube-scheduler"] = ["--kubeconfig", "controllers.yaml", "--leader-elect=false", "--bind-address", "127.0.0.1"]
    plane.start("kube-scheduler")
    # Pods learn the address of the API server from this Service.
    soon(lambda: plane.api.code("GET", "/api/v1/namespaces/default/services/kubernetes") == 200)
    return plane


class Node:
    """`archive`: the file of the images (image_archive.py). `cgroup`: the parent of the pods' cgroups. `tools`, `plugins`:
    folders of programs."""

    def __init__(self, plane, folder, tools, plugins, archive, cgroup):
        self.plane, self.folder, self.tools = plane, pathlib.Path(folder), pathlib.Path(tools)
        self.processes = {}
        self.environment = {"PATH": f"{tools}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)}
        (self.folder / "cni").mkdir()
        documents = {"node.yaml": plane.kubeconfig(TOKEN), "kubelet.yaml": kubelet_configuration(cgroup), "cni/10-pods.conflist": NETWORK}
        for name, document in documents.items():
            (self.folder / name).write_text(json.dumps(document))
        (self.folder / "containerd.toml").write_text(containerd_configuration(plugins, self.folder / "cni"))
        self.start("containerd", "--config", self.folder / "containerd.toml")
        soon(lambda: self.alive("containerd") and self.ctr("version", check=False).returncode == 0, self.logs)
        self.ctr("images", "import", archive)
        archive.unlink()  # a gigabyte, which containerd has now
        self.name_server = NameServer(plane.api, ADDRESS)
        self.start("kubelet", "--config", self.folder / "kubelet.yaml", "--kubeconfig", self.folder / "node.yaml",
                   "--hostname-override", NAME, "--node-ip", ADDRESS)
        soon(self.ready, self.logs, 180)

    def start(self, name, *arguments):
        with open(self.folder / f"{name}.log", "ab") as out:
            self.processes[name] = subprocess.Popen([self.tools / name, *map(str, arguments)], env=self.environment,
                                                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    def alive(self, name):
        code = self.processes[name].poll()
        assert code is None, f"{name} ended with {code}; {self.logs()}"
        return True

    def logs(self):
        return "\n".join(f"{name}: {(self.folder / f'{name}.log').read_text(errors='replace')[-3000:]}" for name in self.processes)

    def ctr(self, *arguments, check=True):
        return subprocess.run([self.tools / "ctr", "--address", SOCKET, "--namespace", "k8s.io", *arguments],
                              env=self.environment, check=check, capture_output=True, text=True)

    def ready(self):
        self.alive("kubelet")
        try:
            conditions = self.plane.api.call("GET", f"/api/v1/nodes/{NAME}")["status"].get("conditions", [])
        except Refused:
            return False  # not registered yet
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def stop(self):
        """Containers end with the namespaces."""
        self.name_server.stop()
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait()


# No masquerading, which would need iptables: the pods need no other network.
NETWORK = {"cniVersion": "0.4.0", "name": "pods", "plugins": [
    {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": SUBNET, "gateway": ADDRESS}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}


def containerd_configuration(plugins, network):
    # restrict_oom_score_adj: the container of these tests may lack the right to lower its own score.
    return f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{network}"
"""


def kubelet_configuration(cgroup):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "failCgroupV1": False, "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}", "containerRuntimeEndpoint": f"unix://{SOCKET}", "failSwapOn": False, "oomScoreAdj": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
        # The kubelet must not write the machine's settings; tests/node.sh shows the kubelet the settings that it wants.
        "protectKernelDefaults": True,
        "makeIPTablesUtilChains": False, "clusterDNS": [ADDRESS], "clusterDomain": "cluster.local", "nodeStatusUpdateFrequency": "5s",
        # The disk of the test machine may be nearly full: that evicts no pod and removes no image.
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"}}
