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
from consumerd.config.settings import Settings
from consumerd.daemon.http import make_application
from tests.support.tools import require_tool
from tests.unit.daemon.test_status_surface import STATUS, always

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OF_SETUP = "CONSUMERD_REQUIRE_KERNEL"  # which setup.py reads, and nothing that runs
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
UNIT = (DEPLOY / "systemd" / "consumerd.service").read_text()

#: what a process takes besides the budget; docs/operations.md, "Sizing memory"
BESIDES_BUDGET_BYTES = 150 * 2**20


def manifest(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load((KUBERNETES / f"{name}.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def pod() -> dict[str, Any]:
    spec = manifest("deployment")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container() -> dict[str, Any]:
    (one,) = pod()["containers"]
    assert isinstance(one, dict)
    return one


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"\b(CONSUMERD_\w+)=(\S+)", DOCKERFILE))


def kubernetes_settings(directory: Path) -> Settings:
    path = directory / "config.yaml"
    path.write_text(manifest("configmap")["data"]["config.yaml"])
    return load_settings(config=path, environment=image_environment())


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


def all_settings(directory: Path) -> Iterator[tuple[str, Settings]]:
    yield "kubernetes", kubernetes_settings(directory)
    yield "compose", compose_settings()


def test_every_manifest_is_yaml() -> None:
    """With a kind each, and listed for kustomize."""
    listed = manifest("kustomization")["resources"]

    assert {path.name for path in KUBERNETES.iterdir() if path.is_file()} - {"kustomization.yaml"} == set(listed)
    assert [name for name in listed if not manifest(name.removesuffix(".yaml"))["kind"]] == []


def test_the_settings_are_settings(tmp_path: Path) -> None:
    """Keys and values go through the models; a key that was renamed fails here."""
    for name, settings in all_settings(tmp_path):
        assert settings.group.id == "lake", name
        assert settings.http.address == ("0.0.0.0", 9309), name


def test_settings_in_the_environment_exist() -> None:
    """A variable that nobody reads is an error of the whole file; see the manifests' comments too."""
    texts = [DOCKERFILE, *(path.read_text() for path in DEPLOY.rglob("*.y*ml"))]
    for name in {found for text in texts for found in re.findall(r"\bCONSUMERD_[A-Z_]+", text)} - {OF_SETUP}:
        model: Any = Settings
        for part in name.removeprefix("CONSUMERD_").lower().split("__"):
            assert part in model.model_fields, name
            model = model.model_fields[part].annotation


def test_probes_ask_for_routes_that_are_served() -> None:
    """A probe of a path that is not there kills a process that works."""
    one = container()
    asked = {kind: one[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}

    assert asked == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert {*asked.values(), "/metrics"} <= routes()
    annotations = manifest("deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in routes()
    (checked,) = re.findall(r"127\.0\.0\.1:9309(/\w+)'", DOCKERFILE)
    assert checked == "/livez"


def test_ports_are_the_one_that_the_image_listens_on(tmp_path: Path) -> None:
    """The image, the manifests, the probes and the scrapes each name it."""
    (port,) = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    address = kubernetes_settings(tmp_path).http.address
    assert address is not None
    named = {one["name"]: one["containerPort"] for one in container()["ports"]}
    annotations = manifest("deployment")["spec"]["template"]["metadata"]["annotations"]
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = scrape["dns_sd_configs"]
    (published,) = COMPOSE["services"]["consumerd"]["ports"]

    assert {int(port)} == {
        address[1],
        int(image_environment()["CONSUMERD_HTTP__LISTEN"].rpartition(":")[2]),
        int(annotations["prometheus.io/port"]),
        found["port"],
        int(published.rpartition(":")[2]),
        *(named[container()[kind]["httpGet"]["port"]] for kind in ("startupProbe", "livenessProbe", "readinessProbe")),
    }
    first, last = published.split(":")[1].split("-")
    assert int(last) - int(first) + 1 == COMPOSE["services"]["consumerd"]["deploy"]["replicas"]


def test_there_is_time_to_stop(tmp_path: Path) -> None:
    """A process that is killed while it flushes leaves its claims to the session timeout."""
    grace = {
        "kubernetes": pod()["terminationGracePeriodSeconds"],
        "compose": parse_seconds(COMPOSE["services"]["consumerd"]["stop_grace_period"]),
        "systemd": parse_seconds(unit_values("TimeoutStopSec")[0]),
    }
    default = Settings.model_fields["shutdown"].default.timeout_ms / 1000
    for _, settings in all_settings(tmp_path):
        assert min(grace.values()) >= settings.shutdown.timeout_ms / 1000 + 5

    assert min(grace.values()) >= default + 5


def test_the_memory_limits_hold_the_budget(tmp_path: Path) -> None:
    """A container that is killed for its memory loses what is in flight, again and again."""
    needed = max(settings.fetch.memory_budget_bytes for _, settings in all_settings(tmp_path)) + BESIDES_BUDGET_BYTES
    resources = container()["resources"]

    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert parse_bytes(resources["limits"]["memory"]) >= needed
    assert parse_bytes(COMPOSE["services"]["consumerd"]["deploy"]["resources"]["limits"]["memory"]) >= needed
    assert (
        parse_bytes(unit_values("MemoryMax")[0])
        >= Settings.model_fields["fetch"].default.memory_budget_bytes + BESIDES_BUDGET_BYTES
    )


def test_files_go_where_a_volume_is(tmp_path: Path) -> None:
    """Everything else is read-only."""
    volumes = {one["name"]: one for one in pod()["volumes"]}
    mounts = {Path(one["mountPath"]): one for one in container()["volumeMounts"]}
    (sink,) = kubernetes_settings(tmp_path).sinks.values()
    landing = mounts[Path(str(sink.options["path"]))]
    claim = volumes[landing["name"]]["persistentVolumeClaim"]["claimName"]

    assert claim == manifest("persistentvolumeclaim")["metadata"]["name"]
    assert manifest("persistentvolumeclaim")["spec"]["accessModes"] == ["ReadWriteMany"]
    assert not landing.get("readOnly", False)
    (file,) = (one for one in container()["args"] if one.endswith(".yaml"))
    assert volumes[mounts[Path(file).parent]["name"]]["configMap"]["name"] == manifest("configmap")["metadata"]["name"]
    assert Path(file).name in manifest("configmap")["data"]

    (composed,) = compose_settings().sinks.values()
    targets = [Path(one.split(":")[1]) for one in COMPOSE["services"]["consumerd"]["volumes"]]
    assert any(Path(str(composed.options["path"])).is_relative_to(target) for target in targets)
    for service in COMPOSE["services"].values():
        for source in (one.split(":")[0] for one in service.get("volumes", ())):
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


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
    labels = manifest("deployment")["spec"]["template"]["metadata"]["labels"]

    assert manifest("deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("poddisruptionbudget")["spec"]["selector"]["matchLabels"] == labels
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
    unit.write_text(re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", UNIT, flags=re.MULTILINE))
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


def test_the_unit_runs_the_command_with_settings_where_the_documents_say() -> None:
    """And does not repeat what can only fail again."""
    assert unit_values("ExecStart") == ["/opt/consumerd/bin/consumerd run --config /etc/consumerd/config.yaml"]
    assert unit_values("RestartPreventExitStatus") == ["2"]


def test_files_that_comments_name_are_there() -> None:
    """They send people from one to the other."""
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.suffix in {".yaml", ".yml", ".service"}]
    named = {name for text in texts for name in re.findall(r"\b[\w.-]+\.(?:yaml|yml|json)\b", text)}

    assert [name for name in named - {"config.yaml"} if not [*ROOT.glob(name), *DEPLOY.rglob(name)]] == []
