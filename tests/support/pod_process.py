"""The container of a pod as a process of this machine, for the kubelets of tests."""
import os
import signal
import subprocess
import threading


class PodProcess:
    """Runs `programs`[name of the pod's only container] with the arguments and the environment of the pod's spec, in a
    process group of its own. The only field that a variable may refer to is metadata.uid."""

    def __init__(self, programs, spec, uid, log):
        (self.container,) = spec["containers"]
        self.grace = spec.get("terminationGracePeriodSeconds", 30)
        environment = {entry["name"]: entry.get("value", uid) for entry in self.container.get("env", [])}
        with open(log, "ab") as out:
            self.process = subprocess.Popen([programs[self.container["name"]], *self.container.get("args", [])],
                                            env={"PATH": "/usr/bin:/bin", **environment}, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=subprocess.STDOUT, start_new_session=True)

    def send(self, number):
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def stop(self, grace):
        """SIGTERM now, SIGKILL after `grace` seconds. A second call with less grace brings SIGKILL forward."""
        self.send(signal.SIGTERM)
        timer = threading.Timer(grace, self.send, [signal.SIGKILL])
        timer.daemon = True
        timer.start()

    def kill(self):
        self.send(signal.SIGKILL)
        self.process.wait()

    def exit_code(self):
        """Waits for the end. An end by signal N is 128 + N, as in a container's status."""
        code = self.process.wait()
        return 128 - code if code < 0 else code
