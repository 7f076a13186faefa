"""K2 of docs/faults.md: the schema or a template's `fail` refuses wrong values, and the message names the key."""
import json

import pytest
import yaml

from conftest import CHART, run

# (key, value); the message must name the key.
BAD = [
    # unknown keys
    ("imagee", {}), ("image.tga", "1"), ("server.thread", 2), ("limits.maxThings", 1), ("service.port", 50051), ("tls.enabled", False),
    ("tls.clientCA.secret", "x"), ("auth.tokens", ["plain-token"]), ("persistence.accessModes", ["ReadWriteMany"]),
    ("training.enabled", True), ("resources.limit", {}), ("resources.limits.memroy", "8Gi"), ("gpu.enabled", True),
    ("probes.liveness.path", "/"), ("podDisruptionBudget.minAvailable", 1), ("serviceAccount.token", True), ("rbac.create", True),
    ("networkPolicy.ingress", []), ("metrics.enabled", True), ("metrics.serviceMonitor.period", "30s"), ("autoscaling.maxReplicas", 3),
    # wrong types
    ("replicaCount", "two"), ("replicaCount", 1.5), ("server.threads", "4"), ("persistence.enabled", "yes"), ("image.tag", 1.0),
    ("imagePullSecrets", "name"), ("server.extraArgs", "--x=1"), ("tolerations", {}), ("nodeSelector", []), ("podLabels", ["a"]),
    ("limits.maxQueuedJobs", "1000"), ("service.annotations", {"a": 1}), ("extraVolumes", {}),
    # out of range
    ("replicaCount", -1), ("server.threads", -1), ("server.drainSeconds", 36000), ("limits.maxReceiveBytes", 0),
    ("limits.trainMemoryBytes", -1), ("limits.serveMemoryBytes", "4Gi"), ("limits.maxRunningJobs", 65), ("limits.maxRunningRequests", 0),
    ("service.grpcPort", 80), ("service.httpPort", 70000), ("service.openaiPort", 443), ("service.openaiPort", "8000"),
    ("gpu.count", -1), ("probes.startup.failureThreshold", 0), ("podDisruptionBudget.maxUnavailable", 0),
    # wrong forms
    ("image.tag", "latest"), ("image.digest", "sha256:short"), ("image.pullPolicy", "Sometimes"), ("image.repository", "Nibble Server"),
    ("image.registry", "https://registry.example.com"), ("nameOverride", "Nibble"), ("fullnameOverride", "a_b"),
    ("server.device", "gpu0"), ("server.device", "cuda:0"),
    ("server.importRoot", "relative"), ("server.extraArgs.0", "threads 4"), ("service.type", "ExternalName"),
    ("tls.existingSecret", ""), ("auth.existingSecret", ""), ("tls.certKey", "../../etc/passwd"), ("auth.key", "a/b"),
    ("persistence.size", "50GB"), ("persistence.size", 50), ("persistence.accessMode", "ReadOnlyMany"),
    ("persistence.database.size", "5GB"), ("persistence.storageClass", "Fast SSD"),
    ("training.mode", "kubernetes"), ("training.images.cpu.tag", "latest"), ("training.images.cuda.digest", "sha256:short"),
    ("training.images.cpu.repository", ""), ("training.devices.0", "tpu"), ("training.devices", []), ("training.memory", "8GB"),
    ("training.ephemeralStorage", 1), ("training.gpu.resourceName", "nvidia"), ("training.gpu.count", 0), ("training.queue", "Team A"),
    ("training.queuePriorityClass", "High"), ("training.priorityClassName", "a b"), ("training.runtimeClassName", "g/visor"),
    ("training.terminationGracePeriodSeconds", 5), ("training.ttlSecondsAfterFinished", 0), ("training.tolerations.0.operator", "In"),
    ("training.kueue.enabled", True), ("training.kueue.quota.memory", "lots"), ("training.kueue.quota.gpus", "1"),
    ("training.nodeSelector", []), ("training.affinity.nodes", {}), ("training.podAnnotations", {"a": 1}), ("training.image", {}),
    ("limits.pauseGraceS", 0), ("networkPolicy.apiServer.cidrs.0", "everywhere"), ("networkPolicy.apiServer.port", 0),
    ("networkPolicy.apiServer.cidr", "10.0.0.1/32"), ("rbac.trainerJobs", True),
    ("resources.limits.memory", "8 GB"), ("resources.requests.cpu", "two"), ("gpu.resourceName", "nvidia"),
    ("shmSize", "-1"), ("tmpSize", "64"), ("extraVolumeMounts.0.mountPath", "imports"),
    ("networkPolicy.grpc.from.0.ipBlock.cidr", "everywhere"),
    ("openai.port", 8000), ("openai.enabled", "true"), ("openai.corsOrigins", "*"), ("openai.corsOrigins.0", "example.org"),
    ("openai.corsOrigins.0", "https://example.org/"), ("openai.corsOrigins.0", "https://*.example.org"),
    ("openai.corsOrigins.0", "https://a.org,https://b.org"), ("openai.ingress.host", "a.org"), ("openai.ingress.hosts.0", "https://a.org"),
    ("openai.ingress.hosts.0", "a.*.org"), ("openai.ingress.className", "Nginx"), ("openai.ingress.tlsSecret", "a_b"),
    ("kserve.enabled", "true"), ("kserve.port", 8001), ("openai.ingress.annotations", {"a": 1}), ("networkPolicy.openai.from.0.ipBlock.cidr", "everywhere"),
    ("networkPolicy.metrics.from.0", {}), ("metrics.serviceMonitor.interval", "30"), ("metrics.prometheusRule.disabled.0", "no alert"),
    ("metrics.prometheusRule.runbookUrlPrefix", "playbooks"), ("commonLabels.team", "a b"), ("tolerations.0.operator", "In"),
]


def mount(*paths):
    return {"extraVolumes": [{"name": "x", "emptyDir": {}}], "extraVolumeMounts": [{"name": "x", "mountPath": path} for path in paths]}


def jobs(training=None, **values):
    """Values for trainers as Jobs, with `training` and other sections added."""
    return {"training": {"mode": "jobs", **(training or {})}, "networkPolicy": {"apiServer": {"cidrs": ["10.2.0.5/32"]}}, **values}


# Values that the schema accepts but a template refuses, most of them because of other values or of defaults; and the
# key that the message must name.
TOGETHER = [
    ({"replicaCount": 2}, "replicaCount"),
    ({"autoscaling": {"enabled": True}}, "autoscaling.enabled"),
    ({"persistence": {"enabled": False, "existingClaim": "data"}}, "persistence.existingClaim"),
    ({"persistence": {"storageClass": "fast", "existingClaim": "data"}}, "persistence.storageClass"),
    ({"tls": {"clientCA": {"required": True}}}, "tls.clientCA.required"),
    ({"service": {"grpcPort": 9464}}, "service.httpPort"),
    ({"service": {"openaiPort": 50051}, "openai": {"enabled": True}}, "service.openaiPort"),
    (jobs(service={"openaiPort": 50052}, openai={"enabled": True}), "service.openaiPort"),
    ({"openai": {"corsOrigins": ["*"]}}, "openai.corsOrigins"),
    ({"openai": {"ingress": {"enabled": True, "hosts": ["a.org"]}}}, "openai.ingress.enabled"),
    ({"openai": {"enabled": True, "ingress": {"enabled": True}}, "networkPolicy": {"enabled": False}}, "openai.ingress.hosts"),
    ({"openai": {"enabled": True, "ingress": {"enabled": True, "hosts": ["a.org"]}}}, "networkPolicy.openai.from"),
    ({"networkPolicy": {"openai": {"from": [{"podSelector": {}}]}}}, "networkPolicy.openai.from"),
    ({"service": {"type": "LoadBalancer"}}, "networkPolicy.grpc.from"),
    ({"service": {"type": "NodePort"}}, "networkPolicy.grpc.from"),
    ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
    ({"serviceAccount": {"create": False, "name": "default"}}, "serviceAccount.name"),
    ({"gpu": {"count": 1}, "server": {"device": "cpu"}}, "gpu.count"),
    ({"probes": {"liveness": {"timeoutSeconds": 30}}}, "probes.liveness.timeoutSeconds"),
    ({"probes": {"readiness": {"timeoutSeconds": 30}}}, "probes.readiness.timeoutSeconds"),
    ({"extraVolumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "extraVolumes[0].hostPath"),
    *(({"extraVolumes": [{"name": "ok", "emptyDir": {}}, {"name": "x", kind: {}}]}, f"extraVolumes[1].{kind}")
      for kind in ("nfs", "iscsi", "cephfs", "fc", "rbd", "gitRepo", "image", "awsElasticBlockStore")),
    ({"extraVolumes": [{"name": "x"}]}, "extraVolumes[0]"),
    ({"extraVolumes": [{"name": "x", "emptyDir": {}, "configMap": {"name": "x"}}]}, "extraVolumes[0]"),
    ({"extraVolumes": [{"name": "state", "emptyDir": {}}]}, "extraVolumes[0].name"),
    ({"extraVolumes": [{"name": "x", "emptyDir": {}}, {"name": "x", "emptyDir": {}}]}, "extraVolumes[1].name"),
    ({"extraVolumeMounts": [{"name": "x", "mountPath": "/x"}]}, "extraVolumeMounts[0].name"),
    *((mount("/ok", path), "extraVolumeMounts[1].mountPath")
      for path in ("/var/lib/nibble", "/var/lib/nibble/", "/var/lib/nibble/models", "/var/lib/nibble/jobs/x", "/var/lib", "/", "/tmp",
                   "/dev/shm", "/dev", "/etc/nibble/tls", "/etc/nibble/auth/x", "/etc/nibble", "/etc", "/usr", "/usr/local/bin", "/lib/x",
                   "/x/../var/lib/nibble", "/ok/")),
    ({**mount("/etc/nibble/client-ca"), "tls": {"clientCA": {"existingSecret": "ca"}}}, "extraVolumeMounts[0].mountPath"),
    ({"extraVolumes": [{"name": "client-ca", "emptyDir": {}}], "tls": {"clientCA": {"existingSecret": "ca"}}}, "extraVolumes[0].name"),
    ({"extraVolumeMounts": [{"name": "client-ca", "mountPath": "/ca"}]}, "extraVolumeMounts[0].name"),
    *(({"server": {"importRoot": root}}, "server.importRoot")
      for root in ("/etc", "/etc/nibble", "/etc/nibble/auth", "/imports/../etc/nibble/tls/", "/var/lib", "/var/lib/nibble/",
                   "/var/lib/nibble/models", "/var/lib/nibble/jobs/x", "/proc/self", "/dev")),
    ({"resources": {"requests": {"cpu": "5"}}}, "resources.requests.cpu"),
    ({"resources": {"requests": {"cpu": 5}}}, "resources.requests.cpu"),
    ({"resources": {"requests": {"cpu": "4001m"}}}, "resources.requests.cpu"),
    ({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "0.5"}}}, "resources.requests.cpu"),
    ({"resources": {"requests": {"memory": "8193Mi"}}}, "resources.requests.memory"),
    ({"resources": {"requests": {"ephemeral-storage": "2Gi"}}}, "resources.requests.ephemeral-storage"),
    ({"metrics": {"serviceMonitor": {"scrapeTimeout": "31s"}}}, "metrics.serviceMonitor.scrapeTimeout"),
    ({"metrics": {"serviceMonitor": {"interval": "5000ms"}}}, "metrics.serviceMonitor.scrapeTimeout"),
    ({"metrics": {"serviceMonitor": {"interval": "1m", "scrapeTimeout": "1h"}}}, "metrics.serviceMonitor.scrapeTimeout"),
    (jobs(persistence={"accessMode": "ReadWriteOncePod"}), "persistence.accessMode"),
    (jobs(persistence={"enabled": False}), "persistence.enabled"),
    ({"persistence": {"accessMode": "ReadWriteMany"}}, "persistence.accessMode"),
    (jobs(persistence={"database": {"existingClaim": "db"}}), "persistence.database"),
    (jobs(persistence={"database": {"storageClass": "fast"}}), "persistence.database"),
    (jobs(persistence={"accessMode": "ReadWriteMany", "database": {"existingClaim": "db", "storageClass": "fast"}}),
     "persistence.database.storageClass"),
    ({**jobs(persistence={"accessMode": "ReadWriteMany"}), **mount("/var/lib/nibble-database/x")}, "extraVolumeMounts[0].mountPath"),
    (jobs({"devices": ["cpu", "cuda"]}), "training.images.cuda.repository"),
    (jobs({"terminationGracePeriodSeconds": 69}), "training.terminationGracePeriodSeconds"),
    (jobs(limits={"pauseGraceS": 120}), "training.terminationGracePeriodSeconds"),
    (jobs({"queuePriorityClass": "urgent"}), "training.queuePriorityClass"),
    (jobs({"kueue": {"create": True}}), "training.queue"),
    (jobs({"kueue": {"create": True}, "queue": "team", "devices": ["cuda"], "images": {"cuda": {"repository": "t"}}}),
     "training.kueue.quota.gpus"),
    (jobs(networkPolicy={"apiServer": {"port": 443}}), "networkPolicy.apiServer.cidrs"),
    (jobs(service={"reportPort": 50051}), "service.reportPort"),
    (jobs(service={"reportPort": 9464}), "service.reportPort"),
    (jobs(**mount("/etc/nibble/trainer")), "extraVolumeMounts[0].mountPath"),
    (jobs(extraVolumes=[{"name": "trainer-templates", "emptyDir": {}}]), "extraVolumes[0].name"),
    (jobs(server={"importRoot": "/etc/nibble/trainer"}), "server.importRoot"),
    ({"server": {"extraArgs": ["--version"]}}, "server.extraArgs[0]"),
    ({"server": {"extraArgs": ["--isa=avx2", "--help"]}}, "server.extraArgs[1]"),
    ({"server": {"extraArgs": ["--isa=avx2", "--isa=plain"]}}, "server.extraArgs[1]"),
    ({"server": {"extraArgs": ["--insecure"]}}, "server.extraArgs[0]"),
    *(({"server": {"extraArgs": [f"--{flag}=1"]}}, "server.extraArgs[0]") for flag in
      ("state_dir", "grpc_address", "http_address", "openai_address", "openai_cors_origins", "kserve", "threads", "device", "drain_s", "job_grace_s", "import_root", "tls_cert", "tls_key",
       "tls_client_ca", "tls_require_client_cert", "trainer", "max_receive_bytes", "kv_tokens", "pause_grace_s", "runner",
       "trainer_templates", "kubernetes_server_name", "kubernetes_queue", "kubernetes_namespace", "kubernetes_url",
       "kubernetes_token_file", "kubernetes_ca_file", "report_address", "report_target", "report_ca", "trainer_threads")),
    ({"server": {"extraArgs": ["--isa=avx2", "--token_file=/tmp/mine"]}}, "server.extraArgs[1]"),
    ({"server": {"extraArgs": ["--max_queued_jobs=5"]}}, "server.extraArgs[0]"),
    ({"server": {"extraArgs": ["--serve_memory_bytes=5"]}}, "server.extraArgs[0]"),
    # The container's memory limit is 8 GiB by default. Trainers or models whose limit is unset would plan with all of
    # that. In the fourth and the fifth of these cases, both limits together leave nothing for the server itself; the
    # fifth also sets the container's limit, in other units.
    ({"training": {"mode": "inPod"}}, "limits.trainMemoryBytes"),
    ({"training": {"mode": "inPod"}, "limits": {"serveMemoryBytes": 1 << 30}}, "limits.trainMemoryBytes"),
    ({"training": {"mode": "inPod"}, "limits": {"trainMemoryBytes": 1 << 30}}, "limits.serveMemoryBytes"),
    ({"training": {"mode": "inPod"}, "limits": {"trainMemoryBytes": 4 << 30, "serveMemoryBytes": 4 << 30}}, "limits.trainMemoryBytes"),
    ({"training": {"mode": "inPod"}, "limits": {"trainMemoryBytes": 900 << 20, "serveMemoryBytes": 124 << 20},
      "resources": {"limits": {"memory": "1024Mi"}}}, "limits.trainMemoryBytes"),
    ({"podLabels": {"app.kubernetes.io/name": "other"}}, "podLabels.app.kubernetes.io/name"),
    ({"podLabels": {"team": "a"}, "commonLabels": {"team": "b"}}, "podLabels.team"),
    *(({"metrics": {kind: {"labels": {key: "x"}}}, "commonLabels": {"team": "b"}}, f"metrics.{kind}.labels.{key}")
      for kind in ("serviceMonitor", "prometheusRule", "dashboards") for key in ("team", "app.kubernetes.io/name", "helm.sh/chart")),
    ({"commonLabels": {"helm.sh/chart": "other"}}, "commonLabels.helm.sh/chart"),
    ({"auth": {"test": {"existingSecret": "t"}}, "tls": {"clientCA": {"existingSecret": "ca", "required": True}}},
     "auth.test.existingSecret"),
    ({"metrics": {"prometheusRule": {"enabled": True, "disabled": ["NoSuchAlert"]}}}, "metrics.prometheusRule.disabled"),
]

# Values that an earlier version of the chart accepted and that work. Some name paths that may be missing, which the
# chart cannot check.
WORKING = [
    *({"server": {"importRoot": root}}
      for root in ("/imports", "/opt/models", "/var/lib/nibble/import", "/var/lib/nibbles", "/usr/share/models")),
    {"server": {"importRoot": "/data/imports"}, **mount("/data/")},
    {"server": {"importRoot": "/var/lib/nibble/import"}, **mount("/var/lib/nibble/import")},
    *(mount(path)
      for path in ("/tmp/x", "/dev/shm/x", "/etc/nibble/more", "/etc/nibble/client-ca", "/etc/ssl", "/usr/share/models", "/libx")),
    {"extraVolumes": [{"name": "client-ca", "emptyDir": {}}], "extraVolumeMounts": [{"name": "client-ca", "mountPath": "/ca"}]},
    {"extraVolumeMounts": [{"name": "client-ca", "mountPath": "/ca"}], "tls": {"clientCA": {"existingSecret": "ca"}}},
    jobs(), {"service": {"reportPort": 50051, "openaiPort": 50051}}, jobs(networkPolicy={"enabled": False}), jobs({"terminationGracePeriodSeconds": 70}),
    mount("/etc/nibble/trainer"),
    jobs(persistence={"accessMode": "ReadWriteMany", "database": {"existingClaim": "db"}}), mount("/var/lib/nibble-database"),
    # The access mode does not matter for another claim.
    jobs(persistence={"existingClaim": "mine", "accessMode": "ReadWriteOncePod"}),
    jobs({"devices": ["cuda"], "images": {"cuda": {"repository": "team/trainer"}}}), jobs(server={"extraArgs": ["--start_timeout_s=60"]}),
]


def nested(key, value):
    """{"a": {"b": value}} for "a.b"; a number makes a list with one element. A mountPath also gets a `name`, which the
    schema requires."""
    for part in reversed(key.split(".")):
        if part.isdigit():
            value = [{"name": "imports", **value} if "mountPath" in str(value) else value]
        else:
            value = {part: value}
    return value


# A helm built from source assumes Kubernetes 1.20, which the chart refuses.
TEMPLATE = ("template", "test", CHART, "--kube-version", "1.33.0")


def refused(helm, values, tmp_path):
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    result = run(helm, *TEMPLATE, "--values", path, ok=False)
    assert result.returncode != 0, f"{values} was accepted"
    return result.stderr


def names_key(key, message):
    """Whether the message names the key: literally, as a JSON pointer, or as an unknown last part with the path before
    it."""
    *before, last = key.split(".")
    pointer = "/".join(["", *key.split(".")])
    additional = f"'{last}'" in message and ("/".join(["", *before]) in message if before else True)
    return key in message or pointer in message or additional


@pytest.mark.parametrize("number", range(len(BAD)), ids=[f"{key}={json.dumps(value)}" for key, value in BAD])
def test_k2_bad_value(tool, tmp_path, number):
    key, value = BAD[number]
    message = refused(tool("helm"), nested(key, value), tmp_path)
    assert names_key(key, message), message


@pytest.mark.parametrize("number", range(len(TOGETHER)), ids=[f"{key}-{json.dumps(values)}" for values, key in TOGETHER])
def test_k2_bad_together(tool, tmp_path, number):
    values, key = TOGETHER[number]
    message = refused(tool("helm"), values, tmp_path)
    assert f"{key}: " in message or f"{key} " in message, message


@pytest.mark.parametrize("number", range(len(WORKING)), ids=[json.dumps(values) for values in WORKING])
def test_k2_accepts_working_values(tool, tmp_path, number):
    values = WORKING[number]
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    text = run(tool("helm"), *TEMPLATE, "--values", path).stdout
    (container,) = [container for document in yaml.safe_load_all(text) if document and document["kind"] == "Deployment"
                    for container in document["spec"]["template"]["spec"]["containers"]]
    root = values.get("server", {}).get("importRoot")
    assert [word for word in container["args"] if word.startswith("--import_root")] == ([f"--import_root={root}"] if root else [])
    assert all(given in container["volumeMounts"] for given in values.get("extraVolumeMounts", []))


def test_k2_has_at_least_60_cases():
    assert len(BAD) + len(TOGETHER) >= 60
