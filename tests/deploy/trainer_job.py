#!/usr/bin/env python3
"""Makes deploy/kubernetes/trainer-job.yaml: the Job that nibbled posts for one attempt, from the chart's template.

  trainer_job.py            writes the file; needs helm (deploy/setup.sh --full)
  trainer_job.py --check    fails if the file is not what it would write"""
import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/nibble"
JOB = ROOT / "deploy/kubernetes/trainer-job.yaml"
# The chart requires the CIDR with training.mode jobs; the Job does not depend on it.
SETTINGS = ["training.mode=jobs", "networkPolicy.apiServer.cidrs[0]=10.0.0.1/32"]
MIB = 1 << 20
# The example's attempt: a plan of 8 GiB, and as many threads as the default CPU limit of the chart.
EXAMPLE = {"job_id": "job-0123456789abcdef", "attempt": 1, "threads": 4, "memory_bytes": 8 << 30,
           "directory": "/var/lib/nibble/jobs/job-0123456789abcdef/attempts/1"}
HEADER = """\
# The Kubernetes Job of a trainer, as nibbled posts it for attempt 1 of job-0123456789abcdef, whose plan is 8 GiB. The
# release is "nibble" with training.mode jobs and otherwise the chart's defaults. This file is for readers only: nibbled
# creates and deletes the Jobs. tests/deploy/trainer_job.py makes it from the chart's template; do not edit it.
"""
# Repeats FailurePolicy of server/jobs/kubernetes_job.cc.
FAILURE_POLICY = {"rules": [
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "NotIn", "values": [0]}},
]}


def make_trainer_job(template, server, queue, *, job_id, attempt, threads, memory_bytes, directory):
    """The template with what nibbled decides: the same as MakeTrainerJob in server/jobs/kubernetes_job.cc, if the template
    has terminationGracePeriodSeconds, as the chart's does."""
    job = copy.deepcopy(template)
    job.update(apiVersion="batch/v1", kind="Job")
    metadata, spec = job.setdefault("metadata", {}), job["spec"]
    metadata["name"] = f"nibble-{job_id}-{attempt}"
    labels = {"nibble.dev/server": server, "nibble.dev/job": job_id, "nibble.dev/attempt": str(attempt)}
    metadata.setdefault("labels", {}).update(labels)
    spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    if queue:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = queue
    spec.update(suspend=bool(queue), completionMode="Indexed", parallelism=1, completions=1, backoffLimit=0,
                podFailurePolicy=copy.deepcopy(FAILURE_POLICY))
    spec.setdefault("ttlSecondsAfterFinished", 86400)
    pod = spec["template"]["spec"]
    pod["restartPolicy"] = "Never"
    (container,) = [container for container in pod["containers"] if container["name"] == "trainer"]
    container["args"] = [f"--job_dir={directory}"]
    environment = {entry["name"]: entry for entry in container.get("env", [])}
    environment["NIBBLE_POD_UID"] = {"name": "NIBBLE_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    environment["GOMP_SPINCOUNT"] = {"name": "GOMP_SPINCOUNT", "value": "1000"}
    container["env"] = list(environment.values())
    resources = container.setdefault("resources", {})
    resources.setdefault("requests", {})["cpu"] = str(threads)
    if memory_bytes:
        bytes_ = memory_bytes + memory_bytes // 10
        memory = f"{(bytes_ + MIB - 1) // MIB}Mi"
        resources["requests"]["memory"] = resources.setdefault("limits", {})["memory"] = memory
    return job


def templates(documents):
    """{device: Job} of the ConfigMap that the chart renders with training.mode jobs; {} if there is none."""
    for document in documents:
        if document["kind"] == "ConfigMap" and "templates.json" in document["data"]:
            return json.loads(document["data"]["templates.json"])
    return {}


def example(helm):
    text = subprocess.run([helm, "template", "nibble", str(CHART), "--kube-version", "1.33.0",
                           *(word for setting in SETTINGS for word in ("--set", setting))],
                          check=True, capture_output=True, text=True).stdout
    template = templates(document for document in yaml.safe_load_all(text) if document)["cpu"]
    return make_trainer_job(template, "nibble", "", **EXAMPLE)


def example_text(helm):
    return HEADER + yaml.safe_dump(example(helm), width=120)


def main():
    own = ROOT / "build/deps/tools/bin/helm"
    helm = str(own) if os.access(own, os.X_OK) else shutil.which("helm")
    if helm is None:
        sys.exit("helm: missing; install it with deploy/setup.sh --full")
    if "--check" in sys.argv[1:]:
        sys.exit(0 if JOB.read_text() == example_text(helm) else f"{JOB} does not match the chart: run tests/deploy/trainer_job.py")
    JOB.write_text(example_text(helm))


if __name__ == "__main__":
    main()
