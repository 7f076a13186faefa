"""The Dockerfile: lints it, runs its steps in a debootstrap root, and starts the result as uid 65532 on a read-only
root."""
import json
import os
import pathlib
import re
import stat
import subprocess

import pytest

import charts
import dockerfile
import image_root
from conftest import ROOT, e2e, run
from container import Container, make_pod_volume, write_secret
from soon import soon

DOCKERFILE = ROOT / "Dockerfile"


def test_hadolint(tool):
    assert run(tool("hadolint"), "--no-color", DOCKERFILE).stdout == ""


def test_hadolint_detects_violations(tool, tmp_path):
    for line, rule in [("ADD x /x", "DL3020"), ("USER root", "DL3002"), ("RUN cd /x", "DL3003")]:
        bad = tmp_path / "Dockerfile"
        bad.write_text(DOCKERFILE.read_text() + line + "\n")
        assert rule in run(tool("hadolint"), bad, ok=False).stdout


def test_stages_and_their_settings():
    stages, arguments = dockerfile.parse(DOCKERFILE)
    assert list(stages) == ["build", "server", "trainer"] and stages["trainer"].base == "server"
    assert re.fullmatch(r"debian:12\.\d+-slim", arguments["BASE_IMAGE"])
    server = stages["server"]
    words = {step.word: step.text for step in server.steps}
    assert words["USER"] == "65532:65532" and words["STOPSIGNAL"] == "SIGTERM" and words["EXPOSE"] == "50051 9464"
    assert server.last("ENTRYPOINT") == ["/usr/local/bin/nibbled"] and server.last("HEALTHCHECK")[0] == "/usr/local/bin/nibble"
    labels = set(re.findall(r"org\.opencontainers\.image\.([\w.]+)=", words["LABEL"]))
    assert labels == {"title", "description", "source", "licenses", "version", "revision", "created", "base.name", "base.digest"}
    # The trainer's stage must not change the user or the command.
    assert {step.word for step in stages["trainer"].steps} == {"COPY"}


def test_dockerfile_has_no_url_and_its_context_only_sources():
    text = DOCKERFILE.read_text()
    assert not re.search(r"^\s*ADD |curl|wget|https?://", text, re.MULTILINE)
    files = dockerfile.context_files(ROOT)
    assert "server/main.cc" in files and "deploy/setup.sh" in files and "LICENSE" in files
    assert not [name for name in files if name.startswith(("build/", ".git/", "tests/", "helm/", "docs/")) or "__pycache__" in name]


def test_copies_exist_in_the_context():
    files = dockerfile.context_files(ROOT)
    stages, _ = dockerfile.parse(DOCKERFILE)
    for step in stages["build"].steps:
        if step.word == "COPY":
            for source in step.text.split()[:-1]:
                assert source == "." or any(name == source or name.startswith(source) for name in files), source


def test_versions_of_image_and_chart_match():
    version = re.search(r"project\(nibble VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert f"ARG NIBBLE_VERSION={version}" in DOCKERFILE.read_text()
    chart = (ROOT / "helm/nibble/Chart.yaml").read_text()
    assert f'appVersion: "{version}"' in chart and f"version: {version}\n" in chart
    assert f"image: nibble-trainer:{version}" in (ROOT / "deploy/kubernetes/trainer-job.yaml").read_text()


@pytest.fixture(scope="session")
def images(request, tmp_path_factory, need):
    """{stage: root}, made by every step of the Dockerfile; with --build-tree DIR the build stage only installs from
    that build."""
    need(os.geteuid() == 0, "root (debootstrap, chroot)", "run the test as root")
    need(pathlib.Path("/usr/sbin/debootstrap").exists(), "debootstrap", "install it with apt-get install debootstrap")
    work = pathlib.Path(os.environ.get("NIBBLE_IMAGE_WORK") or tmp_path_factory.mktemp("images"))
    image_root.make_image("trainer", work, request.config.getoption("--build-tree"))
    return {"server": work / "server", "trainer": work / "trainer"}


@pytest.fixture
def start(images, tmp_path):
    running = []

    def make(stage, command=None, health=None, mounts=None):
        server = dockerfile.parse(DOCKERFILE)[0]["server"]
        command = command or server.last("ENTRYPOINT") + server.last("CMD")
        health = health or server.last("HEALTHCHECK")
        running.append(Container(images[stage], tmp_path / f"volume-{stage}", command, tmp_path / f"{stage}-{len(running)}.log", mounts))

        def healthy():
            assert running[-1].process.poll() is None, running[-1].text()
            return running[-1].run(*health, check=False).returncode == 0
        soon(healthy, lambda: f"healthy: {running[-1].text()}")
        return running[-1]

    yield make
    for container in running:
        if container.process.poll() is None:
            container.process.kill()


def test_tests_that_need_images_are_marked(request):
    """Only the section `image` of tests/run.sh builds images, and it runs the tests with this mark."""
    for item in request.session.items:
        if "images" in item.fixturenames:
            assert item.get_closest_marker("image") and item.get_closest_marker("full"), item.nodeid


def give(source, volume, name):
    """Copies a file or folder of the host to the volume, for the container's user."""
    subprocess.run(["cp", "-r", source, volume / name], check=True)
    subprocess.run(["chown", "-R", "65532:65532", volume / name], check=True)
    return f"/var/lib/nibble/{name}"


def missing_libraries(root, program):
    listing = subprocess.run(["chroot", root, "/lib64/ld-linux-x86-64.so.2", "--list", program], capture_output=True, text=True, check=True)
    return [line for line in listing.stdout.splitlines() if "not found" in line], listing.stdout


@pytest.mark.full
@pytest.mark.image
def test_all_libraries_exist_and_the_server_has_no_torch(images):
    for stage, program in [("server", "nibbled"), ("server", "nibble"), ("trainer", "nibble-trainer")]:
        missing, listing = missing_libraries(images[stage], f"/usr/local/bin/{program}")
        assert missing == []
        assert ("libtorch_cpu" in listing) == (stage == "trainer")
    assert not list(images["server"].rglob("libtorch*")) and not (images["server"] / "usr/local/bin/nibble-trainer").exists()
    for name in ("base", "server", "trainer"):
        print(name, run("du", "-sxm", images["server"].parent / name).stdout.split()[0], "MB")


@pytest.mark.full
@pytest.mark.image
def test_server_runs_read_only_as_65532(start, model_directory, text_file):
    server = start("server")
    status = server.status()
    assert status["Uid"].split() == ["65532"] * 4 and status["Gid"].split() == ["65532"] * 4
    assert status["NoNewPrivs"] == "1" and status["CapEff"] == status["CapBnd"] == "0" * 16
    # Only the volume is writable.
    for path in ("/x", "/tmp/x", "/etc/x", "/usr/local/bin/x", "/var/lib/x", "/dev/x", "/run/x"):
        assert server.run("touch", path, check=False).returncode != 0, path
    server.run("touch", "/var/lib/nibble/x")

    server.run("nibble", "models", "import", give(model_directory, server.volume, "model"), "--name", "small", "--dtype", "f32")
    server.run("nibble", "models", "convert", "small", "--to", "int8", "--name", "small-int8")
    answer = server.run("nibble", "--json", "generate", "small-int8", "--prompt", "The keeper", "--max-tokens", "4", "--ignore-eos")
    assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 4
    # The image has no trainer, and the error says so.
    server.run("nibble", "datasets", "upload", give(text_file, server.volume, "page.jsonl"), "--name", "page")
    refused = server.run("nibble", "jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", "1",
                         check=False)
    assert refused.returncode != 0 and "nibble-trainer" in refused.stderr
    assert server.stop() == 0


@pytest.mark.full
@pytest.mark.image
def test_trainer_image_trains(start, model_directory, text_file):
    server = start("trainer")
    server.run("nibble", "models", "import", give(model_directory, server.volume, "model"), "--name", "small", "--dtype", "f32")
    server.run("nibble", "datasets", "upload", give(text_file, server.volume, "page.jsonl"), "--name", "page")
    server.run("nibble", "jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "tuned",
               "--max-steps", "2", "--micro-batch", "2", "--seq-len", "32", "--watch")
    assert "tuned" in server.run("nibble", "models", "list").stdout
    assert server.stop() == 0


def certificate(folder, name):
    """tls.crt, tls.key and ca.crt for a Secret: one self-signed certificate."""
    folder.mkdir()
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", f"/CN={name}", "-addext",
        f"subjectAltName=DNS:{name}", "-keyout", folder / "tls.key", "-out", folder / "tls.crt")
    pem = (folder / "tls.crt").read_bytes()
    return {"tls.crt": pem, "tls.key": (folder / "tls.key").read_bytes(), "ca.crt": pem}


def belongs(path):
    """(uid, gid, mode) of a path, without following a link."""
    found = path.lstat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_secrets_and_volumes_match_the_kubelets(tmp_path):
    make_pod_volume(tmp_path / "state")
    assert belongs(tmp_path / "state") == (0, 65532, 0o2775)
    folder = tmp_path / "secret"
    write_secret(folder, {"tls.crt": b"one", "tls.key": b"two"})
    assert belongs(folder) == (0, 65532, 0o3777) and os.readlink(folder / "tls.key") == "..data/tls.key"
    assert belongs((folder / "tls.key").resolve()) == (0, 65532, 0o440)
    before = os.readlink(folder / "..data")
    write_secret(folder, {"tls.crt": b"three", "tls.key": b"four"})
    assert os.readlink(folder / "..data") != before and (folder / "tls.crt").read_bytes() == b"three"


@pytest.mark.full
@pytest.mark.image
def test_the_charts_command_runs_in_the_image(start, tool, tmp_path):
    """Runs the default command that helm renders (all addresses, TLS, tokens, limits), and calls it with and without a
    token. The volume and the Secrets belong to root and to group 65532, as in a pod. A changed certificate is served
    without a restart."""
    (_, _, spec), *_ = charts.pods(charts.render(tool("helm"), None))
    container, = spec["containers"]
    assert spec["securityContext"]["fsGroup"] == container["securityContext"]["runAsGroup"] == 65532
    assert {volume["secret"]["defaultMode"] for volume in spec["volumes"] if "secret" in volume} == {0o440}
    command = container["command"] + [word.replace("$(CPU_LIMIT)", "2") for word in container["args"]]
    write_secret(tmp_path / "tls", certificate(tmp_path / "first", "test-nibble.ml.svc"))
    line = run(e2e.BIN / "nibble", "tokens", "new", "tester", "--role", "viewer", "--out", tmp_path / "token").stdout
    write_secret(tmp_path / "auth", {"tokens.jsonl": line.encode()})
    write_secret(tmp_path / "client", {"token": (tmp_path / "token").read_bytes()})
    make_pod_volume(tmp_path / "volume-server")
    call = ["nibble", "--server", "127.0.0.1:50051", "--tls-ca", "/etc/nibble/tls/ca.crt", "--tls-name", "test-nibble.ml.svc"]
    with_token = [*call, "--token-file", "/etc/nibble/token/token", "server", "info"]
    server = start("server", command, with_token, {"/etc/nibble/tls": tmp_path / "tls", "/etc/nibble/auth": tmp_path / "auth",
                                                   "/etc/nibble/token": tmp_path / "client"})
    refused = server.run(*call, "server", "info", check=False)
    assert refused.returncode != 0 and "TOKEN_MISSING" in refused.stderr
    # The commands of the pod of `helm test`, in the same image.
    commands = charts.helm_test_commands(tool("helm"), {})
    assert len(commands) == 2
    for arguments in commands.values():
        server.run("nibble", *arguments, "--server", "127.0.0.1:50051")
    # The container's user owns none of these files, so it cannot change their permissions.
    for path in ("/etc/nibble/tls/tls.key", "/etc/nibble/auth/tokens.jsonl"):
        assert server.run("stat", "-L", "-c", "%u:%g %a", path).stdout.split() == ["0:65532", "440"]
        assert server.run("touch", path, check=False).returncode != 0
    assert server.run("stat", "-c", "%u:%g %a", "/var/lib/nibble").stdout.split() == ["0:65532", "2775"]
    assert server.run("stat", "-c", "%u:%g", "/var/lib/nibble/nibble.db").stdout.split() == ["65532:65532"]
    # A client that trusts only the new certificate succeeds once the server has loaded it, within five seconds.
    write_secret(tmp_path / "tls", certificate(tmp_path / "second", "test-nibble.ml.svc"))
    soon(lambda: server.run(*with_token, check=False).returncode == 0, server.text)
    assert server.stop() == 0
