"""Conventions of the dashboards."""
import re

import pytest
import yaml

import dashboards
from conftest import run

BOARDS = dashboards.BOARDS
every_board = pytest.mark.parametrize("name", BOARDS)
TYPES = {"timeseries", "stat", "gauge", "heatmap", "table", "row", "bargauge"}


def test_one_dashboard_per_topic():
    assert set(BOARDS) == {"nibble-overview", "nibble-training", "nibble-serving", "nibble-memory-kernels"}
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@every_board
def test_has_the_common_settings(name):
    board = BOARDS[name]
    assert board["uid"] == name and len(board["uid"]) <= 40
    assert board["id"] is None and board["editable"] is True and board["schemaVersion"] >= 39
    assert "nibble" in board["tags"] and board["time"] == {"from": "now-1h", "to": "now"} and board["refresh"] == "30s"
    assert board["title"].startswith("Nibble / ") and board["description"]


@every_board
def test_every_panel_is_described_and_every_rate_has_a_variable_window(name):
    board = BOARDS[name]
    assert any(panel["type"] == "row" for panel in board["panels"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["type"] in TYPES and panel["title"]
    for panel in dashboards.panels(board):
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len(panel["description"]) > 10 and panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}" and panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert not re.search(r"(rate|increase)\([^\[]*\[\d+[sm]\]", target["expr"]), f"{panel['title']}: a fixed short window"
            # Latencies must be quantiles; _sum / _count would be a mean.
            assert "_sum" not in target["expr"]


@every_board
def test_no_two_panels_overlap(name):
    cells = set()
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] and at["x"] + at["w"] <= 24
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, panel["title"]
        cells |= own


@every_board
def test_variables_are_defined_and_used(name):
    board = BOARDS[name]
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    text = " ".join(target["expr"] for panel in dashboards.panels(board) for target in panel["targets"])
    used = set(re.findall(r"\$(?:\{)?(\w+)", text)) - {"__rate_interval"}
    assert used | {"datasource"} == set(variables)
    assert {"namespace", "job"} <= used
    for panel in dashboards.panels(board):
        for target in panel["targets"]:
            # Every selector is restricted to the chosen servers.
            selectors = re.findall(r"[a-z_:0-9]+\{([^}]*)\}", target["expr"])
            assert selectors and all('namespace=~"$namespace"' in one and 'job=~"$job"' in one for one in selectors), target["expr"]


def test_every_expression_parses(tool, tmp_path):
    rules = [{"record": f"panel:query:{i}", "expr": dashboards.filled(expression, "5m")}
             for i, (_, _, expression) in enumerate(dashboards.queries())]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules" in run(tool("promtool"), "check", "rules", "--lint=none", path).stdout


def test_a_wrong_expression_does_not_parse(tool, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": [{"record": "a:b:c", "expr": "sum(rate(up[5m])"}]}]}))
    assert run(tool("promtool"), "check", "rules", path, ok=False).returncode != 0
