# SPDX-License-Identifier: Apache-2.0
"""Debian's Prometheus and Alertmanager with the shipped rules, routes and scrape jobs, made faster.

All times of the rules, routes and scrapes are divided by ``SPEED``: an alert that waits for 5 minutes waits for 10 s. What
finds targets is replaced by files, and the shipped relabel rules run over them.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.kafka import free_port
from tests.support.tools import require_tool
from tests.support.waiting import wait_until

PROMETHEUS: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
SPEED: Final = 30
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCRAPE: Final = "500ms"
#: shipped scrape configuration by the kind of its targets
SCRAPES: Final = {
    "compose": "prometheus.yml",
    "systemd": "prometheus-systemd.yml",
    "kubernetes": "prometheus-kubernetes.yml",
}


def shorten(text: str) -> str:
    """Divide the durations of an expression or a setting, and its numbers of 60 and more, which are seconds."""
    text = re.sub(
        r"(?<![\w:.])(\d+)([smhd])\b", lambda found: f"{int(found[1]) * _SECONDS[found[2]] * 1000 // SPEED}ms", text
    )
    return re.sub(
        r"(?<![\w.\[])(\d{2,})(?![\w.])",
        lambda found: str(int(found[1]) / SPEED) if int(found[1]) >= 60 else found[1],
        text,
    )


def shorten_rules(text: str) -> str:
    """Return rule groups whose times are divided."""
    rules = yaml.safe_load(text)
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = shorten(rule["expr"])
            rule.update({key: shorten(rule[key]) for key in ("for", "keep_firing_for") if key in rule})
    return yaml.safe_dump(rules)


@dataclass(frozen=True, slots=True)
class Notified:
    """One alert of a notification: which receiver got it, and its labels."""

    receiver: str
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        """Return the alert's name."""
        return self.labels["alertname"]


@dataclass(frozen=True, slots=True)
class Target:
    """Something to be scraped, and the kind of discovery that finds it. ``name`` is a pod's."""

    address: str
    kind: str
    namespace: str = ""
    name: str = ""

    def as_group(self) -> dict[str, object]:
        """Return it as file-based discovery reads it, with the labels that its kind of discovery would give."""
        labels = {
            "__meta_kubernetes_namespace": self.namespace,
            "__meta_kubernetes_pod_name": self.name,
            "__meta_kubernetes_pod_container_name": "consumerd",
            "__meta_kubernetes_pod_container_port_name": "http",
            "__meta_kubernetes_pod_phase": "Running",
            "__meta_kubernetes_pod_label_app_kubernetes_io_name": "consumerd",
        }
        return {"targets": [self.address], "labels": labels if self.kind == "kubernetes" else {}}


@dataclass
class Monitoring:
    """A Prometheus and an Alertmanager that run, and what the receivers have got."""

    folder: Path
    prometheus: str
    alertmanager: str
    notified: list[Notified] = field(default_factory=list)
    _targets: list[Target] = field(default_factory=list)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def scrape(self, *targets: Target) -> None:
        """Have these scraped, too."""
        with self._writing:
            self._targets += targets
            self._write_targets()

    def _write_targets(self) -> None:
        for kind in (*SCRAPES, "node"):
            path = self.folder / f"{kind}.json"
            replacement = path.with_suffix(".new")
            replacement.write_text(json.dumps([one.as_group() for one in self._targets if one.kind == kind]))
            replacement.rename(path)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query. Raises HTTPError where it does not parse."""
        found = _get(f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        assert found["status"] == "success", found
        return list(found["data"]["result"])

    def now(self) -> float:
        """Return Prometheus's time."""
        (value,) = self.query("vector(time())")
        return float(value["value"][1])

    def wait_passed(self, seconds: float) -> None:
        """Wait until this much of Prometheus's time has passed."""
        end = self.now() + seconds
        wait_until(lambda: self.now() >= end, f"{seconds} s of Prometheus", seconds * 2 + 30, 0.5)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@contextmanager
def run_monitoring(folder: Path) -> Iterator[Monitoring]:
    """Run both, on loopback."""
    programs = (
        require_tool("prometheus", "prometheus"),
        require_tool("prometheus-alertmanager", "prometheus-alertmanager"),
    )
    folder.mkdir(parents=True)
    ports = free_port(), free_port()
    prometheus, alertmanager = (f"http://127.0.0.1:{port}" for port in ports)
    monitoring = Monitoring(folder, prometheus, alertmanager)
    monitoring.scrape()
    with ExitStack() as stack:
        receiver = stack.enter_context(_receiving(monitoring.notified))
        (folder / "rules.yml").write_text(shorten_rules((PROMETHEUS / "alerts.yml").read_text()))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_prometheus_config(ports[1])))
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(_alertmanager_config(receiver)))
        stack.enter_context(_serving(
            folder / "prometheus.log", f"{monitoring.prometheus}/-/ready", programs[0],
            "--config.file=prometheus.yml", "--storage.tsdb.path=prometheus",
            f"--web.listen-address=127.0.0.1:{ports[0]}",
        ))  # fmt: skip
        stack.enter_context(_serving(
            folder / "alertmanager.log", f"{monitoring.alertmanager}/-/ready", programs[1],
            "--config.file=alertmanager.yml", "--storage.path=alertmanager", "--cluster.listen-address=",
            f"--web.listen-address=127.0.0.1:{ports[1]}",
        ))  # fmt: skip
        yield monitoring


def _prometheus_config(alertmanager_port: int) -> dict[str, object]:
    """Return the shipped scrape jobs with file-based targets, under names of their own."""
    jobs = []
    for kind, name in SCRAPES.items():
        (job,) = yaml.safe_load((PROMETHEUS / name).read_text())["scrape_configs"]
        kept = {key: value for key, value in job.items() if not key.endswith("_sd_configs") and key != "static_configs"}
        found = {"file_sd_configs": [{"files": [f"{kind}.json"]}]}
        jobs.append({**kept, **found, "job_name": f"{job['job_name']}-{kind}"})
    jobs.append({"job_name": "node", "file_sd_configs": [{"files": ["node.json"]}]})
    return {
        "global": {"scrape_interval": _SCRAPE, "scrape_timeout": _SCRAPE, "evaluation_interval": _SCRAPE},
        "rule_files": ["rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]}]},
        "scrape_configs": jobs,
    }


def _alertmanager_config(receiver: str) -> dict[str, object]:
    """Return the shipped routes and inhibition rules, with their times divided and receivers that note what comes."""
    shipped: dict[str, Any] = yaml.safe_load((PROMETHEUS / "alertmanager.yml").read_text())
    route = shipped["route"]
    for key in ("group_wait", "group_interval", "repeat_interval"):
        route[key] = shorten(route[key])
    for one in shipped["receivers"]:
        one["webhook_configs"] = [{"url": f"{receiver}/{one['name']}", "send_resolved": False}]
    return shipped


@contextmanager
def _receiving(notified: list[Notified]) -> Iterator[str]:
    """Serve receivers that note each alert that they are told of; gives their URL."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            notified.extend(Notified(self.path.strip("/"), one["labels"]) for one in told["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, name="receivers", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def _serving(log: Path, ready: str, program: str, *options: str) -> Iterator[None]:
    """Run a server in the log's folder until it is left."""
    with log.open("wb") as output:
        process = subprocess.Popen([program, *options], cwd=log.parent, stdout=output, stderr=subprocess.STDOUT)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(ready, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(answers, f"{program} is ready", 60)
        yield
    finally:
        process.terminate()
        process.wait(30)


def names(notified: Sequence[Notified], receiver: str) -> set[str]:
    """Return the names of alerts that a receiver was told of."""
    return {one.name for one in notified if one.receiver == receiver}
