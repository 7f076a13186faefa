"""pytest's plugin in the runs of other projects' suites: writes each case's outcome as a line of JSON, and keeps only
the cases that PEER_CASES names. It imports nothing of this project, because it runs in the suite's environment."""
import json
import os
import re
import urllib.request

import pytest

SELECTED = re.compile(os.environ.get("PEER_CASES", ""))


def requests():
    """Number of requests that the proxy has forwarded."""
    with urllib.request.urlopen(os.environ["PEER_PROXY"] + "/peer-requests", timeout=10) as answer:
        return int(answer.read())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    dropped = [item for item in items if not SELECTED.search(item.nodeid)]
    items[:] = [item for item in items if SELECTED.search(item.nodeid)]
    config.hook.pytest_deselected(items=dropped)


def write(**line):
    with open(os.environ["PEER_OUTCOMES"], "a") as outcomes:
        outcomes.write(json.dumps(line) + "\n")


def pytest_collectreport(report):
    if report.failed:
        write(case=report.nodeid, outcome="failed", message=str(report.longrepr)[-4000:], requests=0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    item.peer = {"outcome": "passed", "message": "", "begun": requests()}
    yield
    begun = item.peer.pop("begun")
    write(case=item.nodeid, requests=requests() - begun, **item.peer)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if report.outcome == "passed" or item.peer["outcome"] == "failed":
        return
    text = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else str(report.longrepr)
    item.peer.update(outcome=report.outcome, message=text[-4000:])
