"""Queries of the dashboards, and the names of metrics in them."""
import json
import re

from conftest import CHART

PATHS = sorted((CHART / "dashboards").glob("*.json"))
BOARDS = {path.stem: json.loads(path.read_text()) for path in PATHS}


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries():
    """(dashboard, panel, expression)"""
    return [(name, panel["title"], target["expr"]) for name, board in BOARDS.items() for panel in panels(board)
            for target in panel["targets"]]


# Words of PromQL, and the label `le`: they look like names of metrics.
WORDS = {"by", "on", "ignoring", "without", "and", "or", "unless", "bool", "group_left", "group_right", "offset", "sum", "rate", "increase",
         "max", "min", "avg", "count", "topk", "histogram_quantile", "predict_linear", "time", "changes", "clamp_min", "clamp_max",
         "min_over_time", "sum_over_time", "max_over_time", "last_over_time", "timestamp", "absent", "le"}


def metrics(expression):
    """Names of metrics in the expression, including recorded ones."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\b(by|on|ignoring|without)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    return set(re.findall(r"\b[a-z_][a-z0-9_]*(?::[a-z0-9_]+)*", bare)) - WORDS


def filled(expression, interval):
    """The expression with the dashboard's variables set to All, and `interval` as the window of rates."""
    expression = expression.replace("$__rate_interval", interval)
    return re.sub(r"\$(namespace|job|model|method)\b", ".*", expression)
