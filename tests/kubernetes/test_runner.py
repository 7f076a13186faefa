"""Trainers as Jobs of a real control plane. The tests of tests/e2e/test_kubernetes_runner.py that use a cluster run here
too, so the fake cluster that they use there behaves like the real one."""
import json
import signal

import pytest

from control_plane import RULES
from kubelet import ABSENT, UNMOUNTABLE
from kubernetes_api import MERGE
from soon import soon
from test_kill import check, create, wait_for_own_step
from test_kubernetes_runner import (  # noqa: F401 (fixtures, and tests that pytest collects here)
    begin, calm, on_cluster, pod_of, reasons, start, trainer_of, test_api_server_that_is_away_stops_nothing,
    test_cancel_ends_the_trainer_and_removes_its_job, test_eviction_resumes_with_the_same_bits_and_no_counted_retry,
    test_job_admitted_again_while_no_server_ran_is_preempted, test_job_has_the_bits_of_the_local_runner_and_is_removed,
    test_killed_server_leaves_the_trainer_and_the_next_one_adopts_it, test_lost_node_is_fenced_and_its_trainer_ends,
    test_paused_job_resumes_with_the_same_bits, test_pod_that_outlives_its_job_saves_its_state_and_resumes,
    test_preempted_job_is_queued_again_as_a_new_suspended_job, test_stopped_server_leaves_the_trainer, watch_into)


def templates(container=None, pod=None, **job_spec):
    """Fields of the trainer's container, of the pod's spec and of the Job's spec."""
    trainer = {"name": "trainer", "image": "nibble-trainer:test", **(container or {})}
    return {"cpu": {"spec": {**job_spec, "template": {"spec": {"containers": [trainer], **(pod or {})}}}}}


def failure(server, job):
    """Waits until the job has failed; returns its error."""
    soon(lambda: server.json("jobs", "get", job)["state"] == "FAILED")
    return server.json("jobs", "get", job)["error"]


def pods_of(cluster, job):
    return [pod for pod in cluster.pods() if pod["metadata"]["labels"]["nibble.dev/job"] == job]


def test_trainer_killed_for_memory_is_retried_and_counted(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    cluster.kubelet.kill_for_memory(pods_of(cluster, job)[0])
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job)["retries"] == 1
    assert "OUT_OF_MEMORY" in reasons(server, job)


def test_trainer_that_refuses_its_input_is_not_retried(on_cluster, tmp_path):
    server, cluster = on_cluster
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\nexit 42\n")
    refusing.chmod(0o700)
    cluster.kubelet.programs["trainer"] = refusing
    job = create(server, "out")
    assert "TRAINER_REFUSED" in json.dumps(failure(server, job))
    assert cluster.created() == [f"nibble-{job}-1"]
    soon(lambda: cluster.jobs() == [])


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_job_deleted_by_a_stranger_resumes_with_the_same_bits(on_cluster, calm, policy):
    server, cluster = on_cluster
    job = begin(server)
    cluster.api.call("DELETE", f"{cluster.job_path}/nibble-{job}-1", {"propagationPolicy": policy})
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0


def test_pod_deleted_by_a_stranger_resumes_with_the_same_bits(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    cluster.api.call("DELETE", f"{cluster.pod_path}/{pod_of(cluster, job)}")
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0


def test_trainer_that_the_deletion_of_its_pod_kills_counts_no_retry(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    trainer_of(cluster, job).send_signal(signal.SIGSTOP)  # it does not end by itself
    cluster.api.call("DELETE", f"{cluster.pod_path}/{pod_of(cluster, job)}", {"gracePeriodSeconds": 1})
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0


def test_template_that_fits_restricted_pod_security_runs(start, cluster, calm):
    cluster.label({"pod-security.kubernetes.io/enforce": "restricted"})
    server = start(templates({"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}},
                             {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}}))
    check(server, create(server, "out"), calm, "out", attempts=1)


def test_pod_refused_by_pod_security_fails_with_the_message_of_its_event(start, cluster):
    server = start(max_retries=0)
    cluster.label({"pod-security.kubernetes.io/enforce": "restricted"})
    job = create(server, "out")
    error = json.dumps(failure(server, job))
    assert "START_FAILED" in error and "violates PodSecurity" in error
    soon(lambda: cluster.jobs() == [])


def test_image_that_cannot_be_pulled_fails_with_the_message_of_the_pod(start, cluster):
    server = start(templates({"image": ABSENT}), max_retries=0)
    job = create(server, "out")
    error = json.dumps(failure(server, job))
    assert "START_FAILED" in error and "ErrImagePull: failed to pull" in error
    soon(lambda: cluster.jobs() == [])


def test_trainer_whose_volume_cannot_be_mounted_says_so(start, cluster, tmp_path):
    server = start(templates({"image": UNMOUNTABLE}))
    job = create(server, "out")
    watched = tmp_path / "events"
    watch = watch_into(watched, server, job)
    soon(lambda: "FailedMount: no such volume" in watched.read_text())
    assert '"WAITING_FOR_RESOURCES"' in watched.read_text()
    assert server.json("jobs", "get", job)["state"] == "PREPARING"
    server.run("jobs", "cancel", job)
    watch.wait(timeout=120)
    assert server.json("jobs", "get", job)["state"] == "CANCELLED"


def test_pod_deleted_before_it_began_counts_no_retry(start, cluster):
    server = start(templates({"image": ABSENT}), start_timeout_s=600)
    job = create(server, "out")
    soon(lambda: [pod for pod in pods_of(cluster, job) if pod["status"].get("containerStatuses")])
    cluster.api.call("DELETE", f"{cluster.pod_path}/{pod_of(cluster, job)}")
    soon(lambda: f"nibble-{job}-2" in cluster.created())
    assert server.json("jobs", "get", job).get("retries", 0) == 0


def test_pod_evicted_by_its_node_resumes_with_the_same_bits(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    cluster.kubelet.evict(pods_of(cluster, job)[0])
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0
    assert "EVICTED" in reasons(server, job)


def test_trainer_whose_node_was_removed_while_no_server_ran_is_fenced(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    server.kill()
    pod, zombie = pod_of(cluster, job), trainer_of(cluster, job)
    zombie.send_signal(signal.SIGSTOP)  # it must not finish before it is given up
    cluster.kubelet.lose(pod)
    cluster.collect(pod)
    soon(lambda: pods_of(cluster, job) == [])
    server.start()
    attempts = server.state / "jobs" / job / "attempts"
    try:
        soon(lambda: (attempts / "2").is_dir())
        assert (attempts / "1.lost").is_dir() and (attempts / "1").is_file()
    finally:
        zombie.send_signal(signal.SIGCONT)
    zombie.wait(timeout=30)
    check(server, job, calm, "out")


def test_trainer_over_the_quota_of_its_namespace_waits(start, cluster, tmp_path):
    server = start(max_retries=0)
    cluster.set_quota(0)
    job = create(server, "out")
    watched = tmp_path / "events"
    watch = watch_into(watched, server, job)
    soon(lambda: "exceeded quota" in watched.read_text())
    cluster.set_quota(1)
    assert watch.wait(timeout=120) == 0, watched.read_text()
    assert server.json("jobs", "get", job)["state"] == "SUCCEEDED"


def test_job_that_the_cluster_removed_while_no_server_ran_has_succeeded(start, cluster, calm):
    server = start(templates(ttlSecondsAfterFinished=1))
    job = create(server, "out")
    wait_for_own_step(server, job, 1)
    assert server.stop() == 0
    soon(lambda: cluster.jobs() == [], seconds=120)
    server.start()
    check(server, job, calm, "out", attempts=1)


RESOURCES = {"/apis/batch/v1": ["jobs", "cronjobs"], "/api/v1": ["pods", "events", "secrets", "configmaps", "serviceaccounts", "services",
                                                               "persistentvolumeclaims"],
             "/apis/apps/v1": ["deployments"], "/apis/rbac.authorization.k8s.io/v1": ["roles", "rolebindings"]}
SUBRESOURCES = [("jobs/status", "patch"), ("jobs/status", "get"), ("pods/log", "get"), ("pods/exec", "create"), ("pods/exec", "get"),
                ("pods/eviction", "create"), ("pods/status", "patch"), ("pods/ephemeralcontainers", "patch"),
                ("serviceaccounts/token", "create")]
METHODS = {"create": "POST", "get": "GET", "list": "GET", "watch": "GET", "update": "PUT", "patch": "PATCH", "delete": "DELETE",
           "deletecollection": "DELETE"}


def test_every_right_that_nibbled_does_not_need_is_refused(cluster):
    api = cluster.as_nibbled()
    allowed = {(resource, verb) for rule in RULES for resource in rule["resources"] for verb in rule["verbs"]}

    def code(base, resource, verb):
        resource, _, part = resource.partition("/")
        path = f"{base}/namespaces/{cluster.name}/{resource}"
        if verb not in ("create", "list", "watch", "deletecollection") or part:
            path += f"/absent/{part}" if part else "/absent"
        content = MERGE if verb == "patch" else "application/json"
        body = {"metadata": {"name": "absent"}} if verb in ("create", "update", "patch") else None
        # A watch ends at once.
        return api.code(METHODS[verb], path, body, content, **({"watch": 1, "timeoutSeconds": 1} if verb == "watch" else {}))

    tried = [(base, resource, verb) for base, resources in RESOURCES.items() for resource in resources for verb in METHODS]
    bases = {resource: base for base, resources in RESOURCES.items() for resource in resources}
    tried += [(bases[resource.partition("/")[0]], resource, verb) for resource, verb in SUBRESOURCES]
    refused = {(resource, verb) for base, resource, verb in tried if code(base, resource, verb) == 403}
    assert {(resource, verb) for _, resource, verb in tried} - refused == allowed
    for path in ("/apis/batch/v1/jobs", "/api/v1/nodes", "/api/v1/namespaces", "/api/v1/namespaces/default/pods"):
        assert api.code("GET", path) == 403, path
