# SPDX-License-Identifier: Apache-2.0
"""Manifests of deploy/ as kustomize renders them: valid for the Kubernetes API, and whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumerd import __version__
from consumerd.config.load import load_settings
from consumerd.config.settings import Settings
from consumerd.sinks.registry import load_sink
from tests.support.kubernetes_schemas import find_faults
from tests.support.tools import KUSTOMIZE, require_tool

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
SHARED, OWN = KUBERNETES / "overlays" / "shared-volume", KUBERNETES / "overlays" / "volume-per-replica"
SPARK = DEPLOY / "spark" / "kubernetes"
DOCUMENT = ROOT / "docs" / "deployment.md"
Manifest = dict[str, Any]


def kustomizations(kind: str) -> list[Path]:
    """Return the folders below deploy/ with a kustomization of this kind."""
    files = sorted(DEPLOY.rglob("kustomization.yaml"))
    return [one.parent for one in files if yaml.safe_load(one.read_text())["kind"] == kind]


FOLDERS = [one for one in kustomizations("Kustomization") if one.name != "base"]
COMPONENTS = kustomizations("Component")


def name_of(folder: Path) -> str:
    return str(folder.relative_to(DEPLOY))


def render(folder: Path) -> list[Manifest]:
    """Return what `kubectl apply -k` would apply."""
    program = require_tool("kustomize", command=KUSTOMIZE)
    built = subprocess.run([program, "build", str(folder)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return [one for one in yaml.safe_load_all(built.stdout) if one is not None]


def render_own(folder: Path, base: Path, **more: Any) -> list[Manifest]:
    """Return what a user's own kustomization over ``base`` gives."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(base.resolve(), folder.resolve())],
        **more,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return render(folder)


def find(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    (found,) = [one for one in manifests if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    return found


def pods(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """Yield the workloads, each with the template of its pods."""
    for one in manifests:
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield one, one["spec"]["template"]
        if one["kind"] == "CronJob":
            yield one, one["spec"]["jobTemplate"]["spec"]["template"]


def containers(manifests: list[Manifest]) -> list[Manifest]:
    return [one for _, template in pods(manifests) for one in template["spec"]["containers"]]


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_what_is_applied_is_valid_for_the_api_server(folder: Path) -> None:
    """A key that it does not know is refused, or dropped in silence by an old kubectl."""
    assert [fault for one in render(folder) for fault in find_faults(one)] == []


@pytest.mark.parametrize("name", ["keda", "hpa"])
def test_the_statefulset_can_be_scaled_with_the_kind_patched(tmp_path: Path, name: str) -> None:
    """As docs/deployment.md says."""
    kind = {"keda": "ScaledObject", "hpa": "HorizontalPodAutoscaler"}[name]
    change = [{"op": "replace", "path": "/spec/scaleTargetRef/kind", "value": "StatefulSet"}]
    component = os.path.relpath(KUBERNETES / "components" / name, tmp_path.resolve())
    patches = [{"target": {"kind": kind}, "patch": yaml.safe_dump(change)}]
    rendered = render_own(tmp_path, OWN, components=[component], patches=patches)

    assert [fault for one in rendered for fault in find_faults(one)] == []
    assert find(rendered, kind)["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"
    assert "replicas" not in find(rendered, "StatefulSet")["spec"]


@pytest.mark.parametrize("component", COMPONENTS, ids=name_of)
def test_a_component_is_valid_beside_what_it_is_for(component: Path, tmp_path: Path) -> None:
    """As users list it, in a kustomization of their own."""
    rendered = render_own(tmp_path, SHARED, components=[os.path.relpath(component, tmp_path.resolve())])
    bare = render(SHARED)
    added = {one["kind"] for one in rendered} - {one["kind"] for one in bare}
    mounted = [volume for one in (rendered, bare) for _, pod in pods(one) for volume in pod["spec"]["volumes"]]

    assert added or len(mounted) > 2 * len([one for _, pod in pods(bare) for one in pod["spec"]["volumes"]]), (
        "it adds something"
    )
    assert [fault for one in rendered for fault in find_faults(one)] == []
    for target in (one["spec"]["scaleTargetRef"] for one in rendered if "scaleTargetRef" in one.get("spec", {})):
        scaled = find(rendered, target["kind"], target["name"])
        assert scaled["apiVersion"] == target["apiVersion"]
        assert "replicas" not in scaled["spec"], "applying it again would undo what the autoscaler has set"


def test_a_misspelt_key_a_wrong_type_and_an_unknown_kind_are_faults() -> None:
    """Else the tests above would pass whatever is written."""
    whole = yaml.safe_load((KUBERNETES / "base" / "deployment.yaml").read_text())
    (container,) = whole["spec"]["template"]["spec"]["containers"]
    assert find_faults(whole) == []
    container["readynessProbe"] = container.pop("readinessProbe")
    whole["spec"]["replicas"] = "three"

    faults = "\n".join(find_faults(whole))
    assert "Deployment consumerd: spec.replicas: 'three' is not of type 'integer'" in faults
    assert "'readynessProbe' was unexpected" in faults
    assert "no schema for v1/Secrets" in find_faults({"apiVersion": "v1", "kind": "Secrets"})[0]


@pytest.mark.parametrize("base", [SHARED, OWN], ids=name_of)
def test_secrets_are_mounted_for_the_daemons_group_alone(base: Path, tmp_path: Path) -> None:
    """With the default mode, 0644, every file would be refused."""
    component = KUBERNETES / "components" / "secrets"
    ((_, pod),) = pods(render_own(tmp_path, base, components=[os.path.relpath(component, tmp_path.resolve())]))
    (volume,) = [one for one in pod["spec"]["volumes"] if "secret" in one]
    (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]

    assert 0o440 == volume["secret"]["defaultMode"]
    assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsGroup"]
    assert mount["readOnly"] is True


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_what_a_pod_mounts_is_there(folder: Path) -> None:
    """A pod waits for ever for a claim or ConfigMap of another name."""
    rendered = render(folder)
    claims = {one["metadata"]["name"] for one in [*rendered, *render(SHARED)] if one["kind"] == "PersistentVolumeClaim"}
    maps = {one["metadata"]["name"] for one in rendered if one["kind"] == "ConfigMap"}
    for workload, template in pods(rendered):
        volumes = {one["name"]: one for one in template["spec"]["volumes"]}
        templates = {one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())}
        for one in template["spec"]["containers"]:
            assert {mount["name"] for mount in one["volumeMounts"]} == volumes.keys() | templates
        assert {one["configMap"]["name"] for one in volumes.values() if "configMap" in one} <= maps
        named = {
            one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "persistentVolumeClaim" in one
        }
        assert named <= claims


@pytest.mark.parametrize("folder", [KUBERNETES, SHARED, OWN], ids=name_of)
def test_selectors_select_the_pods(folder: Path) -> None:
    """Labels are matched as text."""
    rendered = render(folder)
    ((workload, template),) = pods(rendered)
    labels = template["metadata"]["labels"].items()
    selectors = [workload["spec"]["selector"]["matchLabels"]]
    selectors.append(find(rendered, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    selectors += [one["spec"]["selector"] for one in rendered if one["kind"] == "Service"]

    assert [one for one in selectors if not one.items() <= labels] == []


def test_the_folder_itself_comes_up_with_what_every_cluster_has() -> None:
    """`kubectl apply -k deploy/kubernetes`: the default class, ReadWriteOnce, an image that can be loaded by its name."""
    rendered = render(KUBERNETES)
    workload = find(rendered, "StatefulSet")
    (claim,) = workload["spec"]["volumeClaimTemplates"]

    assert rendered == render(OWN)
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "storageClassName" not in claim["spec"]
    assert [one for one in rendered if one["kind"] == "PersistentVolumeClaim"] == []
    assert workload["spec"]["serviceName"] == find(rendered, "Service")["metadata"]["name"]
    assert {one.get("imagePullPolicy") for one in containers(rendered)} == {None}, "a tag: what is loaded is used"


def rendered_settings(rendered: list[Manifest], tmp_path: Path, *changes: tuple[str, str]) -> Settings:
    """Return the settings of the pod consumerd-1, after changes of the text of its ConfigMap."""
    (container,) = containers(rendered)
    pod = {"metadata.name": "consumerd-1"}
    environment = {
        one["name"]: one.get("value") or pod[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container.get("env", ())
    }
    text = find(rendered, "ConfigMap")["data"]["config.yaml"]
    for old, new in changes:
        text = text.replace(old, new)
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return load_settings(config=file, environment=environment)


def test_replicas_with_volumes_of_their_own_are_told_so(tmp_path: Path) -> None:
    """Else one begins on its empty volume where another has written, and takes the rest for lost."""
    rendered = render(OWN)
    settings = rendered_settings(rendered, tmp_path)
    (sink,) = settings.sinks.values()

    assert settings.group.consumer_id == "consumerd-1"
    options = load_sink(sink.type).Options.model_validate(sink.options)
    assert getattr(options, "shared", None) is False
    assert "env" not in containers(render(SHARED))[0]


def test_a_replica_with_a_volume_of_its_own_may_call_its_sink_as_it_likes(tmp_path: Path) -> None:
    """Nothing outside of the settings names the sink."""
    renamed = ("sink: lake", "sink: raw"), ("sinks:\n  lake:", "sinks:\n  raw:")
    settings = rendered_settings(render(OWN), tmp_path, *renamed)

    assert list(settings.sinks) == ["raw"]
    assert settings.sinks["raw"].options["shared"] is False


def test_settings_of_the_overlays_differ_in_shared_alone() -> None:
    """What is mended in one of them is mended in both."""
    own, shared = (yaml.safe_load(find(render(one), "ConfigMap")["data"]["config.yaml"]) for one in (OWN, SHARED))

    assert own["sinks"]["lake"].pop("shared") is False
    assert own == shared


OVERLAYS_OWN = ("landing", "settings")


def test_overlays_differ_in_their_volumes_alone() -> None:
    """A probe or limit that is mended in one of them is mended in both."""

    def bare(folder: Path) -> tuple[Manifest, Manifest]:
        ((workload, template),) = pods(render(folder))
        (container,) = template["spec"]["containers"]
        container.pop("env", None)
        # the name of the ConfigMap ends with a hash of the settings
        template["spec"]["volumes"] = [one for one in template["spec"]["volumes"] if one["name"] not in OVERLAYS_OWN]
        return template, {key: workload["spec"][key] for key in ("replicas", "minReadySeconds")}

    assert bare(OWN) == bare(SHARED)


@pytest.mark.parametrize(
    ("base", "image"), [(KUBERNETES, "consumerd"), (SHARED, "consumerd"), (SPARK, "consumerd-spark")]
)
def test_an_image_of_ones_own_takes_one_line(tmp_path: Path, base: Path, image: str) -> None:
    """Nobody else has ours."""
    own = {"name": image, "newName": "registry.example/team/consumerd", "newTag": "7"}
    rendered = render_own(tmp_path, base, images=[own])

    assert {one["image"] for one in containers(rendered)} == {"registry.example/team/consumerd:7"}


def test_the_documents_own_overlay_renders(tmp_path: Path) -> None:
    """docs/deployment.md: an image, settings and scaling of one's own, beside a checkout."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "kustomization.yaml").write_text(block)
    (tmp_path / "config.yaml").write_text("group: {id: other}\n")
    shutil.copytree(DEPLOY, tmp_path / "consumerd" / "deploy")
    rendered = render(tmp_path)

    assert [fault for one in rendered for fault in find_faults(one)] == []
    assert {one["metadata"]["namespace"] for one in rendered} == {"lake"}
    assert {one["image"] for one in containers(rendered)} == {f"registry.example/consumerd:{__version__}"}
    assert find(rendered, "ConfigMap")["data"] == {"config.yaml": "group: {id: other}\n"}
    assert "/run/secrets/consumerd" in [one["mountPath"] for one in containers(rendered)[0]["volumeMounts"]]
    assert find(rendered, "ScaledObject")["spec"]["scaleTargetRef"]["kind"] == "Deployment"


def test_the_document_applies_folders_that_render_something() -> None:
    """And says of the workloads what they are."""
    applied = re.findall(r"^kubectl apply -k (\S+)$", DOCUMENT.read_text(), re.MULTILINE)

    assert {ROOT / one for one in applied} == {KUBERNETES, SHARED, SPARK}
    assert all(render(ROOT / one) for one in applied)
    (kind,) = {one.lower() for one in re.findall(r"rollout status (\w+)/consumerd", DOCUMENT.read_text())}
    assert kind == find(render(KUBERNETES), "StatefulSet")["kind"].lower()


@pytest.mark.parametrize("base", [SHARED, OWN], ids=name_of)
def test_settings_of_ones_own_roll_the_replicas(tmp_path: Path, base: Path) -> None:
    """They are read at the start; the name of the ConfigMap changes with them."""
    (tmp_path / "config.yaml").write_text("group: {id: other}\n")
    own = {"name": "consumerd", "behavior": "merge", "files": ["config.yaml"]}
    before, after = render(base), render_own(tmp_path, base, configMapGenerator=[own])
    ((_, old),), ((_, new),) = pods(before), pods(after)
    mounted = [
        next(one["configMap"]["name"] for one in template["spec"]["volumes"] if "configMap" in one)
        for template in (old, new)
    ]

    assert mounted == [find(one, "ConfigMap")["metadata"]["name"] for one in (before, after)]
    assert mounted[0] != mounted[1]
    assert find(after, "ConfigMap")["data"] == {"config.yaml": "group: {id: other}\n"}


@pytest.mark.parametrize("script", ["run", "full"])
def test_the_release_of_kustomize_that_ci_installs_is_the_one_that_tests_name(script: str) -> None:
    """And the schemas say where they are from."""
    (installed,) = re.findall(r"go install \S+kustomize\S+", (ROOT / ".ci" / script).read_text())
    schemas = (ROOT / "tests" / "vectors" / "kubernetes" / "schemas.json").read_text()

    assert installed == KUSTOMIZE
    assert re.search(r'"k8s\.io/kubernetes@v1\.\d+\.\d+"', schemas)
    assert re.search(r'"github\.com/kedacore/keda/v2@v2\.\d+\.\d+"', schemas)
    assert re.search(r'"github\.com/prometheus-operator/prometheus-operator@v0\.\d+\.\d+"', schemas)


def test_the_pods_script_is_a_shell_script() -> None:
    """kustomize takes it as it is."""
    shell = shutil.which("sh")
    assert shell is not None
    assert subprocess.run([shell, "-n", SPARK / "run-jobs.sh"], check=False).returncode == 0
