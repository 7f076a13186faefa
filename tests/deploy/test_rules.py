"""O2 of docs/faults.md: every alert fires when it should, stays silent when it should not, and links to its
playbook."""
import re

import pytest
import yaml

import charts
from conftest import CHART, ROOT, e2e, run

RULES = sorted((CHART / "rules").glob("*.yaml"))
CASES = sorted((ROOT / "deploy/rules").glob("*_test.yaml"))


def all_rules():
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


ALERTS = [rule for rule in all_rules() if "alert" in rule]
RECORDS = [rule for rule in all_rules() if "record" in rule]


def test_promtool_accepts_the_rules(tool):
    assert run(tool("promtool"), "check", "rules", "--lint=all", "--lint-fatal", *RULES).stdout.count("SUCCESS") == len(RULES)


def test_o2_promtool_test_rules(tool):
    assert run(tool("promtool"), "test", "rules", *CASES).stdout.count("SUCCESS") == len(CASES)


@pytest.mark.parametrize("alert", [rule["alert"] for rule in ALERTS])
def test_o2_alert_has_both_cases(alert):
    cases = [check for path in CASES for case in yaml.safe_load(path.read_text())["tests"] for check in case["alert_rule_test"]
             if check["alertname"] == alert]
    assert {bool(case["exp_alerts"]) for case in cases} == {False, True}


def test_o2_detects_a_rule_that_never_fires(tool, tmp_path):
    """Tests the cases themselves: an alert with an unreachable threshold fails them."""
    for path in RULES:
        (tmp_path / path.name).write_text(path.read_text().replace("> 0.5 * 25", "> 5000 * 25"))
    cases = (ROOT / "deploy/rules/alerts_test.yaml").read_text().replace("../../helm/nibble/rules", str(tmp_path))
    (tmp_path / "cases.yaml").write_text(cases)
    result = run(tool("promtool"), "test", "rules", tmp_path / "cases.yaml", ok=False)
    assert result.returncode != 0 and "NibbleCheckpointSlowVsGrace" in result.stdout + result.stderr


@pytest.mark.parametrize("grace, fires", [(25, True), (36, True), (37, False), (180, False)])
def test_checkpoint_alert_follows_the_grace_of_the_release(tool, tmp_path, grace, fires):
    """Five checkpoints in a hundred take 10 to 20 s: the 99th percentile is 18.43 s, which is half of 36.86 s."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(charts.rules(tool("helm"), f"server.jobGraceSeconds={grace}")))
    name, labels = "nibble_checkpoint_duration_seconds_bucket", 'namespace="ml",job="test-nibble"'
    counts = {"10.24": 95, "20.48": 100, "+Inf": 100}
    alert = {"exp_labels": {"namespace": "ml", "job": "test-nibble", "severity": "warning"},
             "exp_annotations": {"summary": "Checkpoints take more than half the shutdown grace",
                                 "description": f"The slowest checkpoints take 18.43s; a trainer has {grace} s (--job_grace_s) to write "
                                                "one at shutdown.",
                                 "runbook_url": "deploy/playbooks/NibbleCheckpointSlowVsGrace.md#steps"}}
    case = {"interval": "1m",
            "input_series": [{"series": f'{name}{{{labels},le="{le}"}}', "values": f"0+{count}x120"} for le, count in counts.items()],
            "alert_rule_test": [{"eval_time": "100m", "alertname": "NibbleCheckpointSlowVsGrace",
                                 "exp_alerts": [alert] if fires else []}]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}))
    run(tool("promtool"), "test", "rules", tmp_path / "cases.yaml")


def cases_of(path, rules, change):
    """The cases of a file of deploy/rules, with other rules; `change` changes each expectation."""
    document = yaml.safe_load(path.read_text())
    document["rule_files"] = [str(rules)]
    for case in document["tests"]:
        for check in case["alert_rule_test"]:
            change(check)
    return yaml.safe_dump(document)


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_o2_the_charts_rules_pass_the_same_cases(tool, tmp_path, cases):
    """The cases expect job="nibble", the label of a release of this name. Only one expectation differs: if the target
    is missing, the chart's NibbleTargetDown has the labels `namespace` and `job`, the rule as written has neither."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(charts.rules(tool("helm"), release="nibble")))

    def known_target(check):
        for alert in check["exp_alerts"]:
            if check["alertname"] == "NibbleTargetDown" and "job" not in alert["exp_labels"]:
                alert["exp_labels"] |= {"namespace": "ml", "job": "nibble"}

    (tmp_path / "cases.yaml").write_text(cases_of(cases, tmp_path / "rules.yaml", known_target))
    run(tool("promtool"), "test", "rules", tmp_path / "cases.yaml")


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_o2_rules_ignore_other_releases(tool, tmp_path, cases):
    """The rules of another release in the namespace stay silent when every alert of this release fires."""
    # In these cases, the other release has no target: its NibbleTargetDown would fire.
    rules = charts.rules(tool("helm"), "metrics.prometheusRule.disabled={NibbleTargetDown}", release="train")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "cases.yaml").write_text(cases_of(cases, tmp_path / "rules.yaml", lambda check: check.update(exp_alerts=[])))
    run(tool("promtool"), "test", "rules", tmp_path / "cases.yaml")


def test_o2_pod_selector_matches_only_its_release(tool):
    """In the metrics of Kubernetes, only the pod's name shows to which release a killed container belongs, and the name
    of one release may begin with that of another."""
    (expression,) = [rule["expr"] for group in charts.rules(tool("helm"), release="nibble")["groups"] for rule in group["rules"]
                     if rule.get("alert") == "NibbleWorkerOOM"]
    patterns = set(re.findall(r'pod=~"([^"]+)"', expression))
    assert len(patterns) == 1 and expression.count("pod=~") == expression.count("kube_pod_") == 2
    # FULLNAME-HASH-XXXXX, and FULLNAME-HASHXXXXX if the name would be too long (templates/prometheusrule.yaml).
    own = ["nibble-6c9f8b7d5c-x2x4z", "nibble-6c9f8b7d5x2x4z"]
    others = ["nibble-two-6c9f8b7d5c-x2x4z", "train-nibble-6c9f8b7d5c-x2x4z", "nibble-test", "nibble-two-test", "nibble"]
    pattern = patterns.pop()
    # The pod nibble-test has no container nibbled.
    assert [name for name in own + others if re.fullmatch(pattern, name)] == own + ["nibble-test"]


def test_o2_each_release_judges_only_itself(tool, tmp_path):
    """Two releases, with a grace of 25 s and 180 s: checkpoints of 18 s make only the alert of the first fire."""
    for release, grace in (("nibble", 25), ("train", 180)):
        rules = charts.rules(tool("helm"), f"server.jobGraceSeconds={grace}", release=release)
        for group in rules["groups"]:
            # promtool requires different names; the operator's Prometheus does not.
            group["name"] = f"{release}.{group['name']}"
        (tmp_path / f"{release}.yaml").write_text(yaml.safe_dump(rules))

    counts = {"10.24": 95, "20.48": 100, "+Inf": 100}
    name = "nibble_checkpoint_duration_seconds_bucket"
    for job, fires in (("nibble", True), ("train-nibble", False)):
        series = [{"series": f'{name}{{namespace="ml",job="{job}",le="{le}"}}', "values": f"0+{count}x120"} for le, count in counts.items()]
        alert = {"exp_labels": {"namespace": "ml", "job": job, "severity": "warning"},
                 "exp_annotations": {"summary": "Checkpoints take more than half the shutdown grace",
                                     "description": "The slowest checkpoints take 18.43s; a trainer has 25 s (--job_grace_s) to write "
                                                    "one at shutdown.",
                                     "runbook_url": "deploy/playbooks/NibbleCheckpointSlowVsGrace.md#steps"}}
        case = {"interval": "1m", "input_series": series,
                "alert_rule_test": [{"eval_time": "100m", "alertname": "NibbleCheckpointSlowVsGrace",
                                     "exp_alerts": [alert] if fires else []}]}
        document = {"rule_files": ["nibble.yaml", "train.yaml"], "evaluation_interval": "1m", "tests": [case]}
        (tmp_path / "cases.yaml").write_text(yaml.safe_dump(document))
        run(tool("promtool"), "test", "rules", tmp_path / "cases.yaml")


def anchors(path):
    """The anchors that renderers make from the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert_is_complete(rule):
    assert rule["alert"].startswith("Nibble") and "for" in rule
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == f"deploy/playbooks/{rule['alert']}.md"
    assert anchor in anchors(ROOT / page)


def test_playbooks_match_alerts_and_their_links_resolve():
    pages = sorted((ROOT / "deploy/playbooks").glob("*.md"))
    assert {page.stem for page in pages} == {rule["alert"] for rule in ALERTS}
    for page in pages:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            target, _, anchor = link.partition("#")
            assert anchor in anchors(page.parent / target), f"{page.name}: {link}"


def commands(*before):
    """Names of the subcommands in the program's help."""
    text = run(e2e.BIN / "nibble", *before, "--help").stdout
    return set(re.findall(r"^  ([a-z][a-z-]*)\s", text.partition("Subcommands:")[2], re.MULTILINE))


def test_commands_of_playbooks_exist():
    """`nibble WORD WORD` in a page is a command of the program."""
    top, below = commands(), {}
    # A line may end between two words of a command.
    asked = {" ".join(words.split()) for page in (ROOT / "deploy/playbooks").glob("*.md")
             for words in re.findall(r"`nibble\s+([a-z]+\s*[a-z]*)", page.read_text())}
    assert len(asked) > 5
    for words in asked:
        first, _, second = words.partition(" ")
        assert first in top, words
        if second:
            below.setdefault(first, commands(first))
            assert second in below[first], words


def test_records_are_named_by_level_metric_and_operation():
    assert RECORDS
    for rule in RECORDS:
        level, metric, operation = rule["record"].split(":")
        assert level in ("job", "model", "instance") and metric.startswith("nibble_") and operation
