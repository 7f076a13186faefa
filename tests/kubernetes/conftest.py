"""Tests on a real control plane of Kubernetes (tests/support/control_plane.py), which `deploy/setup.sh --kubernetes`
builds. Without it they are skipped. Only tests/node.sh runs the tests on a real node."""
import contextlib
import importlib.util
import os
import pathlib
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = pathlib.Path(os.environ.get("NIBBLE_KUBERNETES", ROOT / "build/deps/kubernetes/bin"))
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")

# The Server class and the small model of the end-to-end tests, under another name because two files are called
# conftest.
sys.path.insert(0, str(ROOT / "tests/e2e"))
_spec = importlib.util.spec_from_file_location("e2e_server", ROOT / "tests/e2e/conftest.py")
_e2e = importlib.util.module_from_spec(_spec)
sys.modules["e2e_server"] = _e2e
_spec.loader.exec_module(_e2e)

import no_skips  # noqa: E402 (on the path now)
from e2e_server import BIN, TRAIN, Server, model_directory, text_file, trainers  # noqa: E402, F401 (for tests of tests/e2e)
from no_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: E402, F401 (pytest finds them here)

pytest.register_assert_rewrite("test_kill", "test_kubernetes_runner", "test_server_kills", "control_plane")
import pki  # noqa: E402
from control_plane import Cluster, ControlPlane  # noqa: E402
from played_trainer import Recording  # noqa: E402
from test_server_kills import request as spec_of  # noqa: E402
from wire import Api  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--node", action="store_true", help="also run the tests on a real node, see tests/node.sh")
    parser.addoption("--images", type=pathlib.Path, help="with --node: folder of the roots `server` and `trainer` of the images")
    no_skips.pytest_addoption(parser)


def pytest_collection_modifyitems(config, items):
    """The tests on a real node run only on request."""
    if not config.getoption("--node"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("node")])
        items[:] = [item for item in items if not item.get_closest_marker("node")]


@pytest.fixture(scope="session")
def helm():
    own = ROOT / "build/deps/tools/bin/helm"
    path = str(own) if os.access(own, os.X_OK) else shutil.which("helm")
    if path is None:
        pytest.skip("helm: missing; install with deploy/setup.sh --full")
    return path


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    missing = [name for name in PROGRAMS if not os.access(TOOLS / name, os.X_OK)]
    if missing:
        pytest.skip(f"{', '.join(missing)}: missing; install with deploy/setup.sh --kubernetes")
    folder = tmp_path_factory.mktemp("plane")
    plane = ControlPlane(folder, pki.Authority(folder / "pki"), TOOLS)
    yield plane
    plane.stop()


@pytest.fixture
def cluster(plane, tmp_path):
    """A namespace of the control plane with one node. No test may make nibbled send a request that is refused as
    unauthorized, forbidden or invalid. Only an API server that has just started may forbid one: it has not read its rules
    yet."""
    cluster = Cluster(plane, tmp_path, {"trainer": BIN / "nibble-trainer"})
    yield cluster
    print("At the end:", *cluster.states(), sep="\n")  # pytest shows it if the test failed
    cluster.stop()
    refusals = {400, 401, 403, 405, 415, 422} - ({403} if cluster.restarted else set())
    assert [request for request in cluster.requests() if request[2] in refusals] == []


@pytest.fixture(scope="session")
def recording(tmp_path_factory, model_directory, text_file):
    """The files of a real trainer, which the local runner started for the spec of test_server_kills.request."""
    folder = tmp_path_factory.mktemp("recording")
    server = Server(folder / "state").start()
    try:
        server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        server.run("datasets", "upload", text_file, "--name", "page")
        with contextlib.closing(Api(server.grpc)) as api:
            job = api.call("FineTuneService", "CreateJob", spec_of(0))
        server.run("jobs", "watch", job.name)
        digest = server.json("models", "get", job.output_model)["digest"]
        return Recording(folder, server.state / "jobs" / job.name / "attempts/1", server.state / "models" / job.output_model, digest)
    finally:
        server.stop()
