"""A real Prometheus (Debian's) on a loopback port, with the chart's recording and alert rules."""
import json
import pathlib
import socket
import subprocess
import time
import urllib.parse
import urllib.request

import yaml

from conftest import CHART
from soon import soon

SCRAPE_S = 1  # for the tests; operators use 15 to 30


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    def __init__(self, program, directory, target):
        self.directory, self.port = pathlib.Path(directory), free_port()
        rules = []
        for path in sorted((CHART / "rules").glob("*.yaml")):
            document = yaml.safe_load(path.read_text())
            for group in document["groups"]:
                group["interval"] = f"{SCRAPE_S}s"
            rules.append(str(self.directory / path.name))
            pathlib.Path(rules[-1]).write_text(yaml.safe_dump(document))
        config = {"global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
                  "rule_files": rules,
                  "scrape_configs": [{"job_name": "nibble", "static_configs": [{"targets": [target], "labels": {"namespace": "ml"}}]}]}
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.log = open(self.directory / "prometheus.log", "wb")
        self.process = subprocess.Popen(
            [program, f"--config.file={self.directory}/prometheus.yml", f"--storage.tsdb.path={self.directory}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        self.began = time.time()
        soon(self._ready, lambda: (self.directory / "prometheus.log").read_text()[-2000:])

    def _ready(self):
        assert self.process.poll() is None, (self.directory / "prometheus.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2) as answer:
                # A ready Prometheus may need 5 s more to find its target; no series shows events before that.
                return answer.status == 200 and self.get("query", query="up")["result"]
        except OSError:
            return False

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=30) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def range(self, expression):
        """Series of the expression since the start, with one point per second."""
        return self.get("query_range", query=expression, start=self.began, end=time.time(), step=SCRAPE_S)["result"]

    def names(self):
        return set(self.get("label/__name__/values"))

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.log.close()
