# SPDX-License-Identifier: Apache-2.0
"""What stands in deploy/ and in the Dockerfile goes with the code: settings, routes, ports, times, sizes, versions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from prometheus_client import CollectorRegistry

from consumerd import __version__
from consumerd.config.load import load_settings
from consumerd.config.settings import Settings, SinkSettings
from consumerd.daemon.http import make_application
from tests.support.tools import require_tool
from tests.unit.daemon.test_status_surface import STATUS, always

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OF_SETUP = "CONSUMERD_REQUIRE_KERNEL"  # which setup.py reads, and nothing that runs
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
DOCUMENT = (ROOT / "docs" / "deployment.md").read_text()
UNIT = (DEPLOY / "systemd" / "consumerd.service").read_text()

#: what a process takes besides the budget; docs/operations.md, "Sizing memory"
BESIDES_BUDGET_BYTES = 150 * 2**20


def manifest(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load((KUBERNETES / f"{name}.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def pod() -> dict[str, Any]:
    spec = manifest("base/deployment")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container() -> dict[str, Any]:
    (one,) = pod()["containers"]
    assert isinstance(one, dict)
    return one


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"\b(CONSUMERD_\w+)=(\S+)", DOCKERFILE))


def kubernetes_settings() -> Settings:
    return load_settings(config=KUBERNETES / "overlays/shared-volume/config.yaml", environment=image_environment())


def compose_settings() -> Settings:
    return load_settings(config=DEPLOY / "consumerd.yaml", environment=image_environment())


def parse_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)(Mi?|Gi?)", text)
    assert match is not None, text
    return int(match[1]) * 2 ** (20 if match[2].startswith("M") else 30)


def parse_seconds(text: str) -> int:
    return int(re.fullmatch(r"(\d+)s?", text)[1])  # type: ignore[index]


def routes() -> set[str]:
    application = make_application(always(STATUS), CollectorRegistry())
    return {resource.canonical for resource in application.router.resources() if isinstance(resource, web.Resource)}


def unit_values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)


def all_settings() -> Iterator[tuple[str, Settings]]:
    yield "kubernetes", kubernetes_settings()
    yield "compose", compose_settings()


def test_the_settings_are_settings() -> None:
    """Keys and values go through the models; a key that was renamed fails here."""
    for name, settings in all_settings():
        assert settings.group.id == "lake", name
        assert settings.http.address == ("0.0.0.0", 9309), name


def test_settings_in_the_environment_exist() -> None:
    """A variable that nobody reads is an error of the whole file; see the manifests' comments too."""
    texts = [DOCKERFILE, *(path.read_text() for path in DEPLOY.rglob("*.y*ml"))]
    for name in {found for text in texts for found in re.findall(r"\bCONSUMERD_[A-Z_]+", text)} - {OF_SETUP}:
        model: Any = Settings
        for part in name.removeprefix("CONSUMERD_").removeprefix("DEFAULT__").lower().split("__"):
            if model == dict[str, SinkSettings]:
                break  # a sink's own options: tests/architecture/test_manifests.py reads them
            assert part in model.model_fields, name
            model = model.model_fields[part].annotation


def test_probes_ask_for_routes_that_are_served() -> None:
    """A probe of a path that is not there kills a process that works."""
    one = container()
    asked = {kind: one[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}

    assert asked == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert {*asked.values(), "/metrics"} <= routes()
    annotations = manifest("base/deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in routes()


def test_ports_are_the_one_that_the_image_listens_on() -> None:
    """The image, the manifests, the probes and the scrapes each name it."""
    (port,) = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    address = kubernetes_settings().http.address
    assert address is not None
    named = {one["name"]: one["containerPort"] for one in container()["ports"]}
    annotations = manifest("base/deployment")["spec"]["template"]["metadata"]["annotations"]
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = scrape["dns_sd_configs"]
    (published,) = COMPOSE["services"]["consumerd"]["ports"]

    assert {int(port)} == {
        address[1],
        int(image_environment()["CONSUMERD_DEFAULT__HTTP__LISTEN"].rpartition(":")[2]),
        int(annotations["prometheus.io/port"]),
        found["port"],
        published["target"],
        *(named[container()[kind]["httpGet"]["port"]] for kind in ("startupProbe", "livenessProbe", "readinessProbe")),
    }
    assert published["host_ip"] == "127.0.0.1"
    assert "published" not in published, "replicas cannot share a port, and old releases of Compose give no range out"


def test_the_mounted_file_wins_over_what_the_image_sets(tmp_path: Path) -> None:
    """The image listens for other machines; a file that says something else was ignored without a word."""
    path = tmp_path / "config.yaml"
    sections = "cluster: {zookeeper: zk}\ngroup: {id: g}\nsubscriptions: [{topics: [t], sink: s}]\nsinks: {s: {type: stdout}}\n"
    path.write_text(sections)
    assert load_settings(config=path, environment=image_environment()).http.listen == "0.0.0.0:9309"

    path.write_text(f"{sections}http: {{listen: 'off'}}\n")
    assert load_settings(config=path, environment=image_environment()).http.listen == "off"
    environment = {**image_environment(), "CONSUMERD_HTTP__LISTEN": "127.0.0.1:1"}
    assert load_settings(config=path, environment=environment).http.listen == "127.0.0.1:1"


def test_there_is_time_to_stop() -> None:
    """A process that is killed while it flushes leaves its claims to the session timeout."""
    grace = {
        "kubernetes": pod()["terminationGracePeriodSeconds"],
        "compose": parse_seconds(COMPOSE["services"]["consumerd"]["stop_grace_period"]),
        "systemd": parse_seconds(unit_values("TimeoutStopSec")[0]),
    }
    default = Settings.model_fields["shutdown"].default.timeout_ms / 1000
    for _, settings in all_settings():
        assert min(grace.values()) >= settings.shutdown.timeout_ms / 1000 + 5

    assert min(grace.values()) >= default + 5


def test_the_memory_limits_hold_the_budget() -> None:
    """A container that is killed for its memory loses what is in flight, again and again."""
    needed = max(settings.fetch.memory_budget_bytes for _, settings in all_settings()) + BESIDES_BUDGET_BYTES
    resources = container()["resources"]

    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert parse_bytes(resources["limits"]["memory"]) >= needed
    assert parse_bytes(COMPOSE["services"]["consumerd"]["deploy"]["resources"]["limits"]["memory"]) >= needed
    assert (
        parse_bytes(unit_values("MemoryMax")[0])
        >= Settings.model_fields["fetch"].default.memory_budget_bytes + BESIDES_BUDGET_BYTES
    )


def test_files_go_where_a_volume_is() -> None:
    """Everything else is read-only."""
    volumes = {one["name"]: one for one in pod()["volumes"]}
    mounts = {Path(one["mountPath"]): one for one in container()["volumeMounts"]}
    (sink,) = kubernetes_settings().sinks.values()
    landing = mounts[Path(str(sink.options["path"]))]

    assert landing["name"] == "landing", "the volume that the overlays add"
    assert not landing.get("readOnly", False)
    (file,) = (one for one in container()["args"] if one.endswith(".yaml"))
    (generated,) = manifest("overlays/shared-volume/kustomization")["configMapGenerator"]
    assert volumes[mounts[Path(file).parent]["name"]]["configMap"]["name"] == generated["name"]
    assert Path(file).name in generated["files"]

    (composed,) = compose_settings().sinks.values()
    targets = [Path(one.split(":")[1]) for one in COMPOSE["services"]["consumerd"]["volumes"]]
    assert any(Path(str(composed.options["path"])).is_relative_to(target) for target in targets)
    for service in COMPOSE["services"].values():
        for source in (one.split(":")[0] for one in service.get("volumes", ())):
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_compose_is_for_all_of_its_releases_from_2_0_on() -> None:
    """A range of host ports with replicas fails before 2.16, and `version` is warned of by new ones."""
    assert "version" not in COMPOSE
    for service in COMPOSE["services"].values():
        ports = service.get("ports", ())
        replicas = service.get("deploy", {}).get("replicas", 1)
        assert replicas == 1 or all("published" not in one for one in ports if isinstance(one, dict))
        assert not any("-" in str(one) for one in ports)
    needed = {name for name, service in COMPOSE["services"].items() if not service.get("profiles")}
    assert {"zookeeper", "kafka", "consumerd", "prometheus", "grafana"} == needed
    assert COMPOSE["services"]["consumerd"]["restart"] == "unless-stopped"


def test_prometheus_finds_the_alertmanager_of_the_profile() -> None:
    """By its name and the port that it listens on."""
    (manager,) = (one for one in COMPOSE["services"].values() if one.get("profiles") == ["alertmanager"])
    alerting = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["alerting"]
    ((found,),) = (one["dns_sd_configs"] for one in alerting["alertmanagers"])

    assert COMPOSE["services"][found["names"][0]] == manager
    assert [f"127.0.0.1:{found['port']}:{found['port']}"] == manager["ports"]


def test_nobody_is_root_and_nothing_can_be_written_but_the_volume() -> None:
    """What a daemon does not need it is not given."""
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    spec, one = pod()["securityContext"], container()["securityContext"]
    service = COMPOSE["services"]["consumerd"]

    assert spec["runAsNonRoot"] is True
    assert {int(user)} == {spec["runAsUser"], spec["runAsGroup"], spec["fsGroup"], int(service["user"])}
    assert one == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def test_selectors_select() -> None:
    """Labels are matched as text; a budget that matches no pod protects none."""
    labels = manifest("base/deployment")["spec"]["template"]["metadata"]["labels"]

    assert manifest("base/deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("base/poddisruptionbudget")["spec"]["selector"]["matchLabels"] == labels
    assert [one["labelSelector"]["matchLabels"] for one in pod()["topologySpreadConstraints"]] == [labels]


def test_images_are_of_this_version() -> None:
    """And those of others are pinned."""
    images = {name: service["image"] for name, service in COMPOSE["services"].items()}

    assert {images["consumerd"], container()["image"]} == {f"consumerd:{__version__}"}
    assert [image for image in images.values() if not re.search(r":v?\d+\.\d+\.\d+$", image)] == []


def test_the_image_runs_what_the_manifests_run() -> None:
    """Compose takes the image's command, Kubernetes gives its own."""
    (command,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)

    assert yaml.safe_load(command) == container()["args"]
    assert "/etc/consumerd/config.yaml" in command
    assert any(one.split(":")[1] in command for one in COMPOSE["services"]["consumerd"]["volumes"])


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """A key that it does not know is passed over in silence, and protects nothing."""
    program = require_tool("systemd-analyze", "systemd")
    unit = tmp_path / "consumerd.service"
    # its program is not installed here
    unit.write_text(re.sub(r"^(ExecStart(?:Pre)?=)\S+", r"\1/bin/true", UNIT, flags=re.MULTILINE))
    verified = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    ours = [line for line in verified.stderr.splitlines() if unit.name in line]

    assert (verified.returncode, ours) == (0, [])
    graded = subprocess.run(
        [program, "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert graded.returncode == 0, graded.stdout[-500:]


def test_the_documents_drop_in_is_understood(tmp_path: Path) -> None:
    """docs/deployment.md, "systemd": fewer readers, and another folder."""
    program = require_tool("systemd-analyze", "systemd")
    (block,) = re.findall(r"^```ini\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    unit = tmp_path / "consumerd.service"
    unit.write_text(re.sub(r"^(ExecStart(?:Pre)?=)\S+", r"\1/bin/true", UNIT, flags=re.MULTILINE))
    (tmp_path / "consumerd.service.d").mkdir()
    (tmp_path / "consumerd.service.d" / "override.conf").write_text(block)
    verified = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)

    assert (verified.returncode, [line for line in verified.stderr.splitlines() if unit.name in line]) == (0, [])
    assert set(re.findall(r"^(\w+)=", block, re.MULTILINE)) == {"UMask", "ReadWritePaths"}


def test_the_document_says_what_stands_in_the_files() -> None:
    """Times, sizes, ports, commands and versions of docs/deployment.md."""
    assert f"(`UMask={unit_values('UMask')[0]}`)" in DOCUMENT
    assert f"tried again every {unit_values('RestartSec')[0]} s" in DOCUMENT
    assert f"has stood still for {unit_values('WatchdogSec')[0]} s" in DOCUMENT
    assert f"A stop** has {unit_values('TimeoutStopSec')[0]} s" in DOCUMENT
    assert (
        f"`shutdown.timeout_ms` is above {Settings.model_fields['shutdown'].default.timeout_ms // 1000} s" in DOCUMENT
    )
    assert unit_values("ExecStartPre")[0] in DOCUMENT
    assert f"Pods run as user and group {pod()['securityContext']['runAsUser']}" in DOCUMENT
    assert set(re.findall(r"consumerd:(\d+\.\d+\.\d+)", DOCUMENT)) == {__version__}
    assert {1, 2} >= {len(re.findall(rf"127\.0\.0\.1:{port}\b", DOCUMENT)) for port in (3000, 9090, 9093)}
    lines = (DEPLOY / "docker-compose.yml").read_text().replace("\n# ", "\n")
    blocks = re.findall(r"^```sh\n(docker compose .*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    for command in blocks[0].splitlines()[:-1]:
        assert command.strip() in lines, "the file's own comment says the same"
    scaled = yaml.safe_load((KUBERNETES / "components" / "keda" / "scaledobject.yaml").read_text())["spec"]
    assert f"each {int(scaled['triggers'][0]['metadata']['threshold']):,} records of lag" in DOCUMENT


def test_the_unit_runs_the_command_with_settings_where_the_documents_say() -> None:
    """They are checked first, as the daemon reads them."""
    assert unit_values("ExecStart") == ["/opt/consumerd/bin/consumerd run --config /etc/consumerd/config.yaml"]
    assert unit_values("ExecStartPre") == [unit_values("ExecStart")[0].replace(" run ", " check-config ")]


def test_the_unit_is_notified_watched_and_restarted_after_every_failure() -> None:
    """Exit code 2 included: a port that is taken for a moment must not end a member for good."""
    assert unit_values("Type") == ["notify"]
    assert parse_seconds(unit_values("WatchdogSec")[0]) >= 30, "a page cache that is written back may take seconds"
    assert unit_values("Restart") == ["on-failure"]
    assert unit_values("RestartPreventExitStatus") == []
    assert unit_values("StartLimitIntervalSec") == ["0"]
    assert "AF_UNIX" in unit_values("RestrictAddressFamilies")[0].split(), "the notifications"


def test_other_users_may_read_what_the_unit_lands_and_nobody_else_may_write_it() -> None:
    """Spark's jobs have a user of their own."""
    (mask,) = (int(one, 8) for one in unit_values("UMask"))

    assert 0o666 & ~mask == 0o644
    assert 0o777 & ~mask == 0o755
    assert unit_values("StateDirectoryMode") in ([], ["0755"])


def test_files_that_comments_name_are_there() -> None:
    """They send people from one to the other."""
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.suffix in {".yaml", ".yml", ".service"}]
    named = {name for text in texts for name in re.findall(r"\b[\w.-]+\.(?:yaml|yml|json)\b", text)}

    assert [name for name in named - {"config.yaml"} if not [*ROOT.glob(name), *DEPLOY.rglob(name)]] == []
