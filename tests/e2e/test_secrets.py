# SPDX-License-Identifier: Apache-2.0
"""Secrets of a whole run: in no log, page, metric, output, file, command line or foreign environment.

``tests/spark/test_secrets.py`` has those of Spark's plans.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
import yaml

from consumerd.config.load import load_settings
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedProcess

SECRETS: Final[Mapping[str, str]] = {
    "kafka": "kafka-S3cret-of-lake",
    "other": "other-S3cret-of-admin",
    "wrong": "wrong-S3cret-of-lake",
    "token": "token-S3cret-of-http",
    "zookeeper": "zookeeper-S3cret-of-lake",
}
MARK: Final = "S3cret"
"""In every secret, and in nothing else."""


class Place:
    """A secured broker, and the files of secrets."""

    def __init__(self, folder: Path, broker: EmbeddedProcess) -> None:
        self.folder, self.broker = folder, broker

    def secret(self, name: str, text: str = "") -> str:
        path = self.folder / "secrets" / name
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text or SECRETS[name])
        return str(path)

    def settings(self, **sasl: object) -> dict[str, Any]:
        """Return settings with every kind of secret that a daemon may have here."""
        login = {"mechanism": "SCRAM-SHA-256", "username": "lake", "password_file": self.secret("kafka")} | sasl
        return settings_for(
            self.broker.zookeeper,
            "lake",
            topics=("orders",),
            sink={"type": "jsonl", "path": str(self.folder / "landing"), "roll_ms": 300},
            cluster={
                "sasl": {key: value for key, value in login.items() if value is not None},
                "zookeeper_auth": {
                    "scheme": "digest",
                    "credential_file": self.secret("zookeeper", f"lake:{SECRETS['zookeeper']}"),
                },
            },
            http={"listen": "127.0.0.1:0", "token_file": self.secret("token")},
            offsets={"on_missing": "earliest"},
        )

    def produce(self, count: int) -> None:
        """Write records as an administrator, by another client."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "admin",
                "sasl.password": SECRETS["other"],
            }
        )
        for number in range(count):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(30) == 0

    def leaks(self) -> list[str]:
        """Return the files besides those of secrets that have one."""
        files = [one for one in self.folder.rglob("*") if one.is_file() and one.parent.name != "secrets"]
        return [str(one) for one in files if MARK.encode() in one.read_bytes()]


pytestmark = pytest.mark.drawn


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    broker = EmbeddedProcess(tmp_path / "broker", "--topic", "orders")
    place = Place(tmp_path, broker)
    users = place.secret("users", f"lake:{SECRETS['kafka']}\nadmin:{SECRETS['other']}\n")
    rules = tmp_path / "acls"
    rules.write_text("allow User:lake Read Topic:orders\nallow User:admin All *\n")
    broker._arguments += ("--users", users, "--acls", str(rules))
    with broker:
        yield place


def ask(daemon: Daemon, path: str, token: str = "") -> str:
    request = urllib.request.Request(
        f"{daemon.url}{path}", headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode()) + str(answer.headers)


def look_at_processes() -> Iterator[str]:
    """Yield command line and environment of every process of this user but this one."""
    for process in Path("/proc").glob("[0-9]*"):
        if process.name != str(os.getpid()):
            for name in ("cmdline", "environ"):
                try:
                    yield (process / name).read_text(errors="replace")
                except OSError:
                    continue


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_secret_leaves_its_file(place: Place) -> None:
    """A daemon that works, one that is refused, and the commands beside them."""
    shown: list[str] = []
    place.produce(100)
    config = place.folder / "member.yaml"
    with Daemon(place.folder, "member", place.settings()) as member:
        member.wait(
            lambda: '"acknowledged": 100' in ask(member, "/api/v1/status", SECRETS["token"]), "all has landed", 60
        )
        shown += [ask(member, path, SECRETS["token"]) for path in ("/", "/metrics", "/api/v1/status", "/readyz")]
        shown += [ask(member, path) for path in ("/livez", "/readyz")]
        shown += look_at_processes()
        for command in (
            ["check-config"], ["lag"], ["groups"], ["doctor"], ["offsets", "show"], ["tail", "orders"],
        ):  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", "consumerd", *command, "--config", str(config)],
                capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            shown += [done.stdout, done.stderr]
        assert member.terminate() == 0
        shown.append(member.log())
    settings = load_settings(config=config, environment={})
    shown += [repr(settings), str(settings), repr(settings.cluster.locate(client_id="c", session_timeout_ms=6000))]
    with Daemon(place.folder, "refused", place.settings(password_file=place.secret("wrong"))) as refused:
        refused.wait(lambda: bool(refused.events("authentication_refused")), "the refusal is told", 60)
        shown += [ask(refused, path, SECRETS["token"]) for path in ("/", "/api/v1/status", "/metrics")]
        refused.terminate()
        shown.append(refused.log())
    shown.append(place.broker.log())

    assert [text[:2000] for text in shown if MARK in text] == []
    assert place.leaks() == []
    assert sum(len(text) for text in shown) > 50_000, "there was something to look at"


@pytest.mark.timeout(240)
def test_a_password_of_the_environment_is_shown_nowhere_else(place: Place) -> None:
    """Who may read a process's environment has it; its log, page and command line have not."""
    place.produce(10)
    settings = place.settings(password_file=None)
    environment = {"CONSUMERD_CLUSTER__SASL__PASSWORD": SECRETS["kafka"]}
    with Daemon(place.folder, "member", settings, environment=environment) as member:
        member.wait(
            lambda: '"acknowledged": 10' in ask(member, "/api/v1/status", SECRETS["token"]), "all has landed", 60
        )
        shown = [ask(member, path, SECRETS["token"]) for path in ("/", "/metrics", "/api/v1/status")]
        shown.append(Path(f"/proc/{member.process.pid}/cmdline").read_text())
        assert member.terminate() == 0
    assert [text[:2000] for text in [*shown, member.log()] if MARK in text] == []
    assert place.leaks() == []
    assert MARK not in yaml.safe_dump(settings)
