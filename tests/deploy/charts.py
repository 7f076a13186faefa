"""Shared by the tests of the chart: cached renderings of the chart, the pods in them, the commands of `helm test`, and
the schemas for kubeconform."""
import functools
import importlib.util
import json
import pathlib
import re
import subprocess

import yaml

import trainer_job
from conftest import CHART, run

KUBERNETES = ["1.28.0", "1.33.0", "1.37.0"]  # the oldest supported one, one in between, the newest with a schema
VALUE_FILES = sorted((CHART / "ci").glob("*.yaml"))
CASES = [None, *VALUE_FILES]  # the defaults, and each file


def case_name(case):
    return case.stem if case else "default"


@functools.cache
def render_text(helm, case, version="1.33.0", settings=(), release="test", api=()):
    values = ["--values", str(case)] if case else []
    values += [word for setting in settings for word in ("--set", setting)]
    # The API versions of a cluster with the Prometheus operator, and those in `api`.
    versions = ",".join(["monitoring.coreos.com/v1", *api])
    return run(helm, "template", release, CHART, "--namespace", "ml", "--kube-version", version, "--api-versions", versions, *values).stdout


def render(helm, case, settings=(), release="test"):
    return [document for document in yaml.safe_load_all(render_text(helm, case, settings=settings, release=release)) if document]


def rules(helm, *settings, release="test"):
    """The rules in the PrometheusRule of a release, in the form that promtool reads."""
    (found,) = [document["spec"] for document in render(helm, None, ("metrics.prometheusRule.enabled=true", *settings), release)
                if document["kind"] == "PrometheusRule"]
    return found


def pods(documents):
    """Yields (name, metadata, spec) of every pod, of objects that create pods, and of the templates of trainers' Jobs."""
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Pod":
            yield name, document["metadata"], document["spec"]
        elif document["kind"] in ("Deployment", "Job"):
            template = document["spec"]["template"]
            yield name, template["metadata"], template["spec"]
    for device, job in trainer_job.templates(documents).items():
        yield f"Template/{device}", job["spec"]["template"]["metadata"], job["spec"]["template"]["spec"]


def helm_test_commands(helm, places):
    """{container: its arguments} of the pod of `helm test`, without --server: the Service's name becomes --tls-name.
    `places`: for each path in the pod that the arguments name, the path on this machine that replaces it."""
    documents = render(helm, None, ("auth.test.existingSecret=nibble-test",))
    (spec,) = [spec for name, _, spec in pods(documents) if name.startswith("Pod/")]
    commands = {}
    for container in spec["containers"]:
        assert container["command"] == ["/usr/local/bin/nibble"]
        (server,) = [word for word in container["args"] if word.startswith("--server=")]
        host, _, port = server.removeprefix("--server=").rpartition(":")
        assert port == "50051"
        arguments = [word for word in container["args"] if word != server]
        for path, place in places.items():
            assert [word for word in arguments if word.endswith(f"={path}")], path
            arguments = [word.replace(f"={path}", f"={place}") for word in arguments]
        commands[container["name"]] = [f"--tls-name={host}", *arguments]
    return commands


def schema_source():
    """The folder of schemas in the wheel kubernetes-validate; None without the wheel. The wheel's code is not used."""
    found = importlib.util.find_spec("kubernetes_validate")
    return pathlib.Path(found.origin).parent / "kubernetes-json-schema" if found else None


def write_schemas(version, target):
    """Writes the Kubernetes schemas of one minor version for kubeconform, from the wheel kubernetes-validate (no
    network)."""
    source = schema_source() / f"v{version}-local-strict"
    assert source.is_dir(), source
    target.mkdir(parents=True)
    for path in source.glob("*.json"):
        # References point to a web server's root, and an $id would make kubeconform look there.
        text = path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#')
        schema = json.loads(text)
        schema.pop("$id", None)
        (target / path.name).write_text(json.dumps(schema))


def strict(schema):
    """The schema, but unknown fields are errors; the API server only warns of them. Changes `schema` itself too."""
    if isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("anyOf", None)  # says the same as the next line
            schema["type"] = ["integer", "string"]
        return {key: strict(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [strict(value) for value in schema]
    return schema


def write_operator_schemas(folder, target):
    """Writes the schemas of the custom resources that the chart creates, from the definitions of their operators."""
    for path in sorted([*folder.glob("monitoring.coreos.com_*.yaml"), *folder.glob("kueue.x-k8s.io_*.yaml")]):
        definition = yaml.safe_load(path.read_text())
        group = definition["spec"]["group"].split(".")[0]
        for version in definition["spec"]["versions"]:
            name = f"{definition['spec']['names']['kind'].lower()}-{group}-{version['name']}.json"
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            (target / name).write_text(json.dumps(schema))


def unset(text):
    """Traces of unset values in a rendered text."""
    return re.findall(r"<no value>|%!\w\(|nil pointer", text)


def restricted(name, _, spec):
    """Lists violations of the Pod Security Standard 'restricted' and of K3."""
    wrong = []
    pod = spec.get("securityContext", {})
    if pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        wrong.append("seccompProfile")
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            wrong.append(key)
    if spec.get("serviceAccountName", "default") == "default":
        wrong.append("default service account")
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    for volume in spec.get("volumes", []):
        if kinds := set(volume) - {"name"} - allowed:
            wrong.append(f"volume {volume['name']}: {kinds}")
    for container in spec["containers"] + spec.get("initContainers", []):
        security = container.get("securityContext", {})
        expected = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "readOnlyRootFilesystem": True, "privileged": False,
                    "runAsUser": 65532, "runAsGroup": 65532, "capabilities": {"drop": ["ALL"]}}
        wrong += [f"{container['name']}: {key}" for key, value in expected.items() if security.get(key) != value]
        image = container["image"]
        if not re.fullmatch(r"\S+(:[\w.-]+|@sha256:[0-9a-f]{64})", image) or image.endswith(":latest"):
            wrong.append(f"image {image}")
        if any("hostPort" in port for port in container.get("ports", [])):
            wrong.append("hostPort")
        if not {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["limits"]):
            wrong.append("limits")
    if spec.get("automountServiceAccountToken") is not False:
        wrong.append("service account token")
    return [f"{name}: {complaint}" for complaint in wrong]


def conform(tool, schemas, version, text):
    location = f"{schemas}/{version}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    return subprocess.run([tool("kubeconform"), "-summary", "-strict", "-schema-location", location, "-"], input=text,
                          capture_output=True, text=True, timeout=120)
