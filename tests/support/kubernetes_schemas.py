# SPDX-License-Identifier: Apache-2.0
"""Schemas of the Kubernetes API for the kinds that deploy/ uses, and a check of rendered manifests against them.

`tests/vectors/kubernetes/schemas.json` is a subset of two published sources, which it names with their releases:

- Kubernetes' OpenAPI documents, `api/openapi-spec/v3/*.json` of the module `k8s.io/kubernetes`;
- CustomResourceDefinitions of KEDA, `config/crd/bases` of the module `github.com/kedacore/keda/v2`, and of Prometheus's
  operator, `example/prometheus-operator-crd` of the module `github.com/prometheus-operator/prometheus-operator`.

Descriptions are left out. Objects are closed, so that a misspelt key is an error, as it is for `kubectl apply`. To take a newer
release, download the modules (`go mod download -json k8s.io/kubernetes@VERSION` prints the folder) and run

    python -m tests.support.kubernetes_schemas KUBERNETES_FOLDER KEDA_FOLDER OPERATOR_FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator

SCHEMAS: Final = Path(__file__).parents[1] / "vectors" / "kubernetes" / "schemas.json"

_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "api__v1": ("ConfigMap", "PersistentVolumeClaim", "Service"),
    "apis__apps__v1": ("Deployment", "StatefulSet"),
    "apis__autoscaling__v2": ("HorizontalPodAutoscaler",),
    "apis__batch__v1": ("CronJob",),
    "apis__networking.k8s.io__v1": ("NetworkPolicy",),
    "apis__policy__v1": ("PodDisruptionBudget",),
}
_DEFINED: Final = (
    "config/crd/bases/keda.sh_scaledobjects.yaml",
    "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
)
_METADATA: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_REF: Final = "#/components/schemas/"


def find_faults(manifest: Mapping[str, Any]) -> list[str]:
    """Return what the API server would refuse in a manifest, with the path of each; of a valid one, nothing."""
    known = _load()
    kind = f"{manifest.get('apiVersion')}/{manifest.get('kind')}"
    if kind not in known["kinds"]:
        return [f"no schema for {kind}: add it to tests/support/kubernetes_schemas.py"]
    schema = {"$ref": f"#/definitions/{known['kinds'][kind]}", "definitions": known["definitions"]}
    name = f"{manifest['kind']} {manifest.get('metadata', {}).get('name')}"
    return [
        f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in Draft202012Validator(schema).iter_errors(manifest)
    ]


@cache
def _load() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(SCHEMAS.read_text())
    return loaded


def extract(kubernetes: Path, *modules: Path) -> dict[str, Any]:
    """Return the subset: kinds, and the definitions that they need."""
    kinds: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    for document, names in _KINDS.items():
        text = (kubernetes / "api" / "openapi-spec" / "v3" / f"{document}_openapi.json").read_text()
        schemas = json.loads(text)["components"]["schemas"]
        for name, schema in schemas.items():
            for known in schema.get("x-kubernetes-group-version-kind", ()):
                if known["kind"] in names and name.endswith(f".{known['kind']}"):
                    version = "/".join(filter(None, (known["group"], known["version"])))
                    kinds[f"{version}/{known['kind']}"] = name
        wanted = [name for name in kinds.values() if name in schemas]
        while wanted:
            name = wanted.pop()
            if name not in definitions:
                definitions[name] = _close(schemas[name])
                wanted += _find_references(schemas[name])
    for file in (module / name for module in modules for name in _DEFINED if (module / name).exists()):
        crd = yaml.safe_load(file.read_text())["spec"]
        (version,) = crd["versions"]
        name = f"{crd['group']}.{version['name']}.{crd['names']['kind']}"
        definitions[name] = _close(version["schema"]["openAPIV3Schema"])
        definitions[name]["properties"]["metadata"] = {"$ref": f"#/definitions/{_METADATA}"}
        kinds[f"{crd['group']}/{version['name']}/{crd['names']['kind']}"] = name
    source = [one.as_posix().rpartition("/pkg/mod/")[2] for one in (kubernetes, *modules)]
    return {"source": source, "license": "Apache-2.0", "kinds": kinds, "definitions": definitions}


def _find_references(node: object) -> list[str]:
    if isinstance(node, list):
        return [one for child in node for one in _find_references(child)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"].removeprefix(_REF)] if isinstance(node.get("$ref"), str) else []
    return own + [one for child in node.values() for one in _find_references(child)]


def _close(schema: Any) -> Any:
    """Return a schema without descriptions and extensions, with references of ours, and with objects closed."""
    if isinstance(schema, list):
        return [_close(one) for one in schema]
    if not isinstance(schema, dict):
        return schema.replace(_REF, "#/definitions/") if isinstance(schema, str) else schema
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            closed[key] = {name: _close(one) for name, one in value.items()}
        elif not key.startswith("x-") and key not in ("description", "default", "format"):
            closed[key] = _close(value)
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not is_open:
        closed["additionalProperties"] = False
    return closed


def write(found: Mapping[str, Any]) -> str:
    """Return the subset as text, one definition a line, so that a newer release can be compared."""
    lines = [f'"{name}": {json.dumps(one, sort_keys=True)}' for name, one in sorted(found["definitions"].items())]
    head = {key: value for key, value in found.items() if key != "definitions"}
    return json.dumps(head, indent=1)[:-2] + ',\n "definitions": {\n' + ",\n".join(lines) + "\n }\n}\n"


if __name__ == "__main__":
    SCHEMAS.write_text(write(extract(*map(Path, sys.argv[1:]))))
