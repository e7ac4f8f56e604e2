# SPDX-License-Identifier: Apache-2.0
"""The alert rules ask for what there is, do what they say, and lead to a section that says what to do."""

from __future__ import annotations

import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from consumerd.daemon.readings import GAUGES
from consumerd.telemetry.metrics import MetricsHooks, Reading, write_metrics
from tests.alerts.test_faults import OF_JOBS, SCENARIOS
from tests.architecture.queries import DEPLOY, faults
from tests.support.tools import require_tool

PROMETHEUS = DEPLOY / "prometheus"
DOCS = DEPLOY.parent / "docs"
ALL_RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
RULES = [rule for rule in ALL_RULES if "alert" in rule]
NAMES = [rule["alert"] for rule in RULES]
#: where documents are published; ``runbook_url`` must work in a mail, so it is absolute
PUBLISHED = "https://github.com/consumerd/consumerd/blob/main/"
#: labels of one target, by who finds it; ``alerts.test.yml`` is written for the first
TARGETS = {
    "Compose and static targets": 'job="consumerd", instance="\\1"',
    "PodMonitor": 'namespace="data", job="data/consumerd", pod="consumerd-\\1", container="consumerd", '
    'endpoint="http", instance="\\1"',
    "pods by annotation": 'namespace="data", job="kubernetes-pods", pod="consumerd-\\1", instance="\\1"',
}


INHIBITION: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "alertmanager.yml").read_text())["inhibit_rules"]


def promtool(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    program = require_tool("promtool", "prometheus")
    return subprocess.run(
        [program, *arguments], cwd=PROMETHEUS, input=given, capture_output=True, text=True, check=False
    )


def anchors(page: Path) -> list[str]:
    """Return the anchors of a page's headings, as they are on the web."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("rule", ALL_RULES, ids=[rule.get("alert", rule.get("record")) for rule in ALL_RULES])
def test_an_alert_asks_for_series_and_labels_that_exist(rule: dict[str, Any]) -> None:
    """One that asks for others never fires."""
    assert faults(rule["expr"]) == []


def test_what_does_not_exist_is_found() -> None:
    """The check above would be worth nothing otherwise."""
    assert faults("sum by (topic) (consumerd_lag_records) > 0") == []
    assert faults("consumerd_lag > 0") == ["no series consumerd_lag"]
    assert faults('consumerd_ready{topic="orders"} == 0') == ["consumerd_ready has no label topic"]
    assert faults("sum by (sink) (consumerd_lag_records)") == ["no series in it has label sink"]
    assert faults("rate(consumerd_broker_request_seconds[5m])") == ["no series consumerd_broker_request_seconds"]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_leads_to_its_runbook(rule: dict[str, Any]) -> None:
    """Whoever is woken up needs to know what to do."""
    url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert url.startswith(PUBLISHED)
    page = url.removeprefix(PUBLISHED)
    text = (DEPLOY.parent / page).read_text()

    assert anchor == rule["alert"].lower()
    assert anchors(DEPLOY.parent / page).count(anchor) == 1
    section = text.split(f"### {rule['alert']}\n")[1].split("\n#")[0].strip()
    assert len(section.split()) > 20


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_says_how_bad_it_is_and_what_it_is(rule: dict[str, Any]) -> None:
    """Routes go by the severity, people by the rest."""
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_every_section_about_an_alert_has_its_alert() -> None:
    """A runbook for nothing is found by nobody."""
    sections = re.findall(r"^### (Consumerd\w+)$", (DOCS / "operations.md").read_text(), re.MULTILINE)
    listed = re.findall(
        r"^\| \[(Consumerd\w+)\]\(operations.md#(\w+)\)", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )

    assert sections == NAMES
    assert listed == [(name, name.lower()) for name in NAMES]


@pytest.mark.parametrize("page", ["operations.md", "metrics.md"])
def test_links_between_sections_lead_somewhere(page: str) -> None:
    """Runbooks refer to each other a lot."""
    dangling = [
        f"{file}#{anchor}"
        for file, anchor in re.findall(r"\]\(([\w.]*)#([\w-]+)\)", (DOCS / page).read_text())
        if anchor not in anchors(DOCS / (file or page))
    ]

    assert dangling == []


def test_every_alert_is_tried() -> None:
    """A rule that nobody has seen fire may not fire."""
    tested = (PROMETHEUS / "alerts.test.yml").read_text().split("\ntests:")[1]

    assert [name for name in NAMES if not re.search(rf'alertname(?:=|: ?)"?{name}\b', tested)] == []


def test_every_alert_fires_from_a_real_fault() -> None:
    """A rule over made-up series says nothing about what daemons say. The alerts that may come or not do not count."""
    caused = {alert for one in SCENARIOS.values() for alert in (one.page, *one.tickets, *one.notes, *one.muted)}

    assert (caused - {""}) | OF_JOBS.keys() == set(NAMES)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_says_what_it_is_about_and_what_to_do_first(rule: dict[str, Any]) -> None:
    """At three in the morning, before the runbook is open."""
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    subjects = ("$labels.instance", "$labels.topic }}/{{ $labels.partition", "$labels.group")

    assert [subject for subject in subjects if subject in summary]
    assert re.fullmatch(r".*\. First: .{10,}[.?].*", f". {description}")


@pytest.mark.parametrize("config", sorted(path.name for path in PROMETHEUS.glob("prometheus*.yml")))
def test_prometheus_takes_the_rules(config: str, tmp_path: Path) -> None:
    """Its own parser, over the settings that name them. Debian's is built without the discovery of pods."""
    text = (PROMETHEUS / config).read_text()
    found_by_files = text.replace("kubernetes_sd_configs: [{role: pod}]", "file_sd_configs: [{files: [pods.json]}]")
    (tmp_path / config).write_text(found_by_files)
    (tmp_path / "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
    done = promtool("check", "config", str(tmp_path / config))

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALL_RULES)} rules found" in done.stdout


@pytest.mark.parametrize("found_by", TARGETS)
def test_the_rules_fire_when_they_should_and_not_otherwise(found_by: str, tmp_path: Path) -> None:
    """Prometheus's own engine, over series that were made up, with the labels that each kind of target has."""
    text = (PROMETHEUS / "alerts.test.yml").read_text()
    relabelled = re.sub(r'job="consumerd", instance="(\w+)"', TARGETS[found_by], text)
    (tmp_path / "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
    (tmp_path / "alerts.test.yml").write_text(
        _only_what_has_answered(relabelled) if "annotation" in found_by else relabelled
    )
    done = promtool("test", "rules", str(tmp_path / "alerts.test.yml"))

    assert (found_by == "Compose and static targets") == (relabelled == text)
    assert done.returncode == 0, done.stdout + done.stderr


def _only_what_has_answered(tests: str) -> str:
    """Return tests for a job that is not ours alone: a target that never answered may be anybody's."""
    without = [line for line in tests.splitlines(keepends=True) if 'instance="never"' not in line]
    assert len(without) == len(tests.splitlines()) - 3
    return "".join(without)


def test_alertmanager_takes_the_routes_and_inhibition_rules() -> None:
    """Its own parser."""
    program = require_tool("amtool", "prometheus-alertmanager")
    done = subprocess.run(
        [program, "check-config", "alertmanager.yml"], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_inhibition_rules_name_alerts_that_exist_and_go_in_no_circle() -> None:
    """Two alerts that mute each other are both silent."""
    mutes: dict[str, set[str]] = {name: set() for name in NAMES}
    for rule in INHIBITION:
        sources, targets = (_alerts_of(rule[side]) for side in ("source_matchers", "target_matchers"))
        assert sources, rule
        assert targets, rule
        for source in sources - targets:
            mutes[source] |= targets
    order = TopologicalSorter(mutes)

    assert set(order.static_order()) == set(NAMES)


def test_an_alert_of_one_group_mutes_none_of_another() -> None:
    """Two groups of one job may consume the same topic: a page of one of them would be lost."""
    told_apart = {"instance", "group"}

    assert [rule for rule in INHIBITION if "job" in rule.get("equal", ()) and not told_apart & set(rule["equal"])] == []


def test_no_ticket_mutes_a_page() -> None:
    """Whoever is paged for the cause need not be paged for what follows; the other way round nobody is."""
    rank = {"critical": 2, "warning": 1, "info": 0}
    severity = {rule["alert"]: rank[rule["labels"]["severity"]] for rule in RULES}
    hidden = {
        (source, target)
        for rule in INHIBITION
        for source in _alerts_of(rule["source_matchers"])
        for target in _alerts_of(rule["target_matchers"])
        if severity[source] < severity[target]
    }

    assert hidden == set()


def _alerts_of(matchers: list[str]) -> set[str]:
    """Return the names of alerts that these matchers of an inhibition rule select."""
    found = set(NAMES)
    for matcher in matchers:
        label, operator, value = re.fullmatch(r'(\w+)(=~?)"(.*)"', matcher).groups()  # type: ignore[union-attr]
        if label not in {"alertname", "severity"}:
            continue
        pattern = value if operator == "=~" else re.escape(value)
        if label == "alertname" and "+" not in value:
            each = value.removeprefix("Consumerd").strip("()").split("|")
            assert {f"Consumerd{name}" for name in each} <= set(NAMES), matcher
        found &= {
            rule["alert"]
            for rule in RULES
            if re.fullmatch(pattern, rule["alert"] if label == "alertname" else rule["labels"]["severity"])
        }
    return found


def test_prometheus_finds_no_fault_with_the_series() -> None:
    """Names, units and help texts, by its own linter."""
    registry = CollectorRegistry()
    MetricsHooks(registry)
    readings = [Reading(spec, 1, tuple("x" for _ in spec.labels)) for spec in GAUGES]

    done = promtool("check", "metrics", given=write_metrics(registry, readings).decode())

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_rules_go_by_the_name_of_the_job() -> None:
    """``up`` is every target's; only the job says that it is one of ours."""
    (job,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    (pattern,) = re.findall(r'up\{job=~"([^"]+)"\}', (PROMETHEUS / "alerts.yml").read_text())

    assert re.fullmatch(pattern, job["job_name"])
    assert re.fullmatch(pattern, "team/consumerd-lake")
    assert not re.fullmatch(pattern, "kubernetes-pods")
