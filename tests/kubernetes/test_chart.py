"""The chart's objects on a real API server: fields, values, rights and pod security are what the server accepts."""
import subprocess
import uuid

import pytest
import yaml

from conftest import ROOT
from soon import soon

CHART = ROOT / "helm/nibble"
CASES = [None, *sorted((CHART / "ci").glob("*.yaml"))]  # the defaults, and each file
OPERATORS = ("monitoring.coreos.com/", "kueue.x-k8s.io/")  # whose types this server does not have


@pytest.fixture
def namespace(plane):
    """Enforces the restricted pod security."""
    name = f"chart-{uuid.uuid4().hex[:8]}"
    plane.api.call("POST", "/api/v1/namespaces",
                   {"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    soon(lambda: plane.api.code("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default") == 200)
    yield name
    plane.api.call("DELETE", f"/api/v1/namespaces/{name}")


def render(helm, case, namespace):
    values = ["--values", str(case)] if case else []
    text = subprocess.run([helm, "template", "test", CHART, "--namespace", namespace, "--kube-version", "1.35.0", "--api-versions",
                           "monitoring.coreos.com/v1", *values], check=True, capture_output=True, text=True).stdout
    return [document for document in yaml.safe_load_all(text) if document]


def path_of(api, document, namespace):
    version = document["apiVersion"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    (plural,) = [one["name"] for one in api.call("GET", base)["resources"] if one["kind"] == document["kind"] and "/" not in one["name"]]
    return f"{base}/namespaces/{namespace}/{plural}"


def provide(api, namespace, spec):
    """Creates what values name but the chart does not contain: the account, runtime and priority of a pod."""
    wanted = [(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": spec.get("serviceAccountName", "default")}})]
    if "runtimeClassName" in spec:
        wanted.append(("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": spec["runtimeClassName"]}, "handler": "test"}))
    if "priorityClassName" in spec:
        wanted.append(("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": spec["priorityClassName"]}, "value": 1}))
    for path, document in wanted:
        assert api.code("POST", path, document) in (200, 409)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem if case else "default")
def test_every_object_is_accepted_in_a_restricted_namespace(plane, helm, namespace, case):
    api = plane.api
    documents = [one for one in render(helm, case, namespace) if not one["apiVersion"].startswith(OPERATORS)]
    accounts = [one for one in documents if one["kind"] == "ServiceAccount"]
    for one in accounts:
        api.call("POST", path_of(api, one, namespace), one, fieldValidation="Strict")
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": one["spec"]["template"]["spec"]} for one in documents
            if one["kind"] in ("Deployment", "Job")]
    for pod in pods:
        provide(api, namespace, pod["spec"])
    for one in [document for document in documents if document not in accounts] + pods:
        api.call("POST", path_of(api, one, namespace), one, dryRun="All", fieldValidation="Strict")
    assert len(documents) >= 3 and pods
