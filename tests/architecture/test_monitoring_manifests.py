# SPDX-License-Identifier: Apache-2.0
"""The manifests for Prometheus's operator go with the pods, the rules and the shipped scrape configuration."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.architecture.queries import DEPLOY

MONITORING = DEPLOY / "kubernetes" / "monitoring"
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
POD_LABELS = {"app.kubernetes.io/name": "consumerd"}


def manifest(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load((MONITORING / f"{name}.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_the_component_lists_every_manifest() -> None:
    """One that is not listed is never applied."""
    kustomization = manifest("kustomization")

    assert kustomization["kind"] == "Component"
    assert {path.name for path in MONITORING.iterdir()} - {"kustomization.yaml"} == set(kustomization["resources"])


def test_the_operators_rules_are_the_shipped_ones() -> None:
    """Edited by hand they would lose the next change; run deploy/prometheus/make_rule.py instead."""
    script = DEPLOY / "prometheus" / "make_rule.py"
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout

    assert made == (MONITORING / "prometheusrule.yaml").read_text()
    assert manifest("prometheusrule")["spec"] == RULES


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("service", lambda spec: spec["selector"]),
        ("podmonitor", lambda spec: spec["selector"]["matchLabels"]),
        ("networkpolicy", lambda spec: spec["podSelector"]["matchLabels"]),
    ],
)
def test_manifests_select_the_pods_of_the_deployment(name: str, selector: Any) -> None:
    """A selector that matches nothing is no error anywhere."""
    pods = yaml.safe_load((DEPLOY / "kubernetes" / "base" / "deployment.yaml").read_text())["spec"]["template"]

    assert selector(manifest(name)["spec"]) == POD_LABELS
    assert POD_LABELS.items() <= pods["metadata"]["labels"].items()


def test_everything_goes_to_the_port_of_the_status_pages() -> None:
    """By its name, which the pods give it."""
    pods = yaml.safe_load((DEPLOY / "kubernetes" / "base" / "deployment.yaml").read_text())["spec"]["template"]
    (port,) = pods["spec"]["containers"][0]["ports"]
    (served,) = manifest("service")["spec"]["ports"]
    (allowed,) = manifest("networkpolicy")["spec"]["ingress"][0]["ports"]
    (scraped,) = manifest("podmonitor")["spec"]["podMetricsEndpoints"]
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus-kubernetes.yml").read_text())["scrape_configs"]
    kept = {one["source_labels"][0]: one["regex"] for one in job["relabel_configs"] if one.get("action") == "keep"}

    assert {served["targetPort"], allowed["port"], scraped["port"]} == {port["name"]}
    assert served["port"] == port["containerPort"]
    assert kept["__meta_kubernetes_pod_container_port_name"] == port["name"]
    assert kept["__meta_kubernetes_pod_label_app_kubernetes_io_name"] == POD_LABELS["app.kubernetes.io/name"]


def test_both_ways_into_kubernetes_give_the_same_job() -> None:
    """A PodMonitor's job is its namespace and name; the rules and silences of one work with the other."""
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus-kubernetes.yml").read_text())["scrape_configs"]
    (made,) = [one["replacement"] for one in job["relabel_configs"] if one.get("target_label") == "job"]

    assert made == f"$1/{manifest('podmonitor')['metadata']['name']}"
