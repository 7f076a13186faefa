"""Checks of the deployment: image, chart, dashboards, rules. `deploy/setup.sh --tests` installs promtool and `--full`
the other tools. Tests without their tool are skipped; with --full they fail."""
import importlib.util
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/nibble"
TOOLS = pathlib.Path(os.environ.get("NIBBLE_TOOLS", ROOT / "build/deps/tools"))

# The Server class and the small model of the end-to-end tests, under another name because two files are called
# conftest.
sys.path.insert(0, str(ROOT / "tests/e2e"))
_spec = importlib.util.spec_from_file_location("e2e_server", ROOT / "tests/e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)
sys.modules["e2e_server"] = e2e
_spec.loader.exec_module(e2e)

import no_skips  # noqa: E402 (on the path now)
from no_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: E402, F401 (pytest finds them here)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="fail instead of skipping a test whose tool is missing")
    parser.addoption("--build-tree", type=pathlib.Path, help="install images from this build instead of building in a bare root")
    no_skips.pytest_addoption(parser)


K1_SECONDS = 60
k1 = []  # for each test_k1_ that ran: (seconds, seconds of processor time of its tools)


def tools_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """The tests of K1 (docs/faults.md) together must take less than 60 s of processor time; with --full, the test in
    which the sum reaches the bound fails. Counts the time of helm, kubeconform and similar tools: on a busy machine,
    wall time includes other work, and a bound on wall time would fail without cause."""
    if not item.name.startswith("test_k1_"):
        yield
        return
    began, used = time.monotonic(), tools_seconds()
    outcome = yield
    spent = sum(seconds for _, seconds in k1)
    k1.append((time.monotonic() - began, tools_seconds() - used))
    if item.config.getoption("--full") and spent < K1_SECONDS <= spent + k1[-1][1] and outcome.excinfo is None:
        outcome.force_exception(AssertionError(f"K1 took {spent + k1[-1][1]:.1f} s of processor time, wanted less than {K1_SECONDS} s"))


def pytest_terminal_summary(terminalreporter):
    if k1:
        wall, tools = map(sum, zip(*k1))
        terminalreporter.write_line(f"K1: {len(k1)} tests in {wall:.1f} s; {tools:.1f} s of processor time, "
                                    f"wanted less than {K1_SECONDS} s")


@pytest.fixture(scope="session")
def need(request):
    """need(there, name, advice): skips the test, or fails it with --full, unless `there` is true."""
    def check(there, name, advice="install it with deploy/setup.sh --full"):
        if there:
            return
        missing = f"{name}: missing; {advice}"
        if request.config.getoption("--full"):
            pytest.fail(missing)
        pytest.skip(missing)

    return check


@pytest.fixture(scope="session")
def tool(need):
    """tool("helm"): returns its path."""
    def find(name):
        own = TOOLS / "bin" / name
        path = str(own) if os.access(own, os.X_OK) else shutil.which(name)
        need(path, name)
        return path

    return find


def run(*command, ok=True, **options):
    """Runs a command to its end; with ok, an exit code other than 0 fails the test and shows the output."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=options.pop("timeout", 300), **options)
    assert not ok or result.returncode == 0, f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stdout}{result.stderr}"
    return result


@pytest.fixture(scope="session")
def helm(tool):
    return tool("helm")


@pytest.fixture(scope="session")
def schemas(tmp_path_factory, need):
    """A folder of schemas for charts.conform."""
    import charts  # which imports this file
    need(charts.schema_source(), "the wheel kubernetes-validate")
    need((TOOLS / "monitoring.coreos.com_servicemonitors.yaml").exists(), "the Prometheus operator's schemas")
    need((TOOLS / "kueue.x-k8s.io_clusterqueues.yaml").exists(), "Kueue's schemas")
    folder = tmp_path_factory.mktemp("schemas")
    for version in charts.KUBERNETES:
        charts.write_schemas(version, folder / version)
        charts.write_operator_schemas(TOOLS, folder / version)
    return folder


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory):
    return e2e.small_model.write(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "page.jsonl"
    path.write_text("".join(json.dumps({"text": e2e.PAGE}) + "\n" for _ in range(40)))
    return path
