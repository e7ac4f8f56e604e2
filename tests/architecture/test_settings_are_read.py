# SPDX-License-Identifier: Apache-2.0
"""Each setting is read by something besides its own model: one that nothing reads would be accepted and change nothing."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

import consumerd
from consumerd.config.pipeline import Pipeline
from consumerd.config.section import Section
from consumerd.config.settings import Settings

_PACKAGE = Path(consumerd.__file__).parent
_READ_BY_ITS_OWN_MODEL = {
    "ClusterSection.generation": "ClusterSection.expected_generation returns it",
    "ClusterSection.client_id": "ClusterSection.locate puts it into the address",
    "ClusterSection.metadata_backoff_ms": "ClusterSection.locate puts it into the address",
    "TlsSection.check_hostname": "TlsSection.locate puts it into the address",
    "SaslSection.username": "SaslSection.locate puts it into the address",
    "SaslSection.password": "SaslSection.locate puts it into the address",
    "SaslSection.password_file": "SaslSection.locate puts it into the address",
    "SaslSection.keytab": "SaslSection.locate puts it into the address",
    "SaslSection.principal": "SaslSection.locate puts it into the address",
    "SaslSection.allow_plaintext_password": "SaslSection.locate puts it into the address",
    "ClusterSection.zookeeper_sasl": "ClusterSection.locate_zookeeper_login returns it",
    "ClusterSection.zookeeper_acl": "ClusterSection.locate puts it into the address",
    "ZookeeperTlsSection.ca_file": "TlsSection.locate puts it into the address",
    "ZookeeperTlsSection.key_file": "TlsSection.locate puts it into the address",
    "ZookeeperTlsSection.check_hostname": "TlsSection.locate puts it into the address",
    "ZookeeperSaslSection.mechanism": "ZookeeperSaslSection.locate puts it into the address",
    "ZookeeperSaslSection.username": "ZookeeperSaslSection.locate puts it into the address",
    "ZookeeperSaslSection.password": "ZookeeperSaslSection.locate puts it into the address",
    "ZookeeperSaslSection.password_file": "ZookeeperSaslSection.locate puts it into the address",
    "ZookeeperSaslSection.keytab": "ZookeeperSaslSection.locate puts it into the address",
    "ZookeeperSaslSection.principal": "ZookeeperSaslSection.locate puts it into the address",
    "ZookeeperSaslSection.service_name": "ZookeeperSaslSection.locate puts it into the address",
    "Decoding.fields": "Decoding.struct parses them",
    "GroupSection.heartbeat_interval_ms": "GroupSection.heartbeat_s reads it",
    "OffsetsSection.dual_commit": "OffsetsSection.places reads it",
    "HttpSection.listen": "HttpSection.address returns it",
    "ZookeeperAuthSection.scheme": "ZookeeperAuthSection.read returns it",
    "ZookeeperAuthSection.credential": "ZookeeperAuthSection.read returns it",
}


def _sections(model: type[BaseModel], seen: dict[type[BaseModel], set[str]]) -> dict[type[BaseModel], set[str]]:
    """Return each section below a model, with the names of the fields that hold it."""
    for name, info in model.model_fields.items():
        for kind in _classes(info.annotation):
            if issubclass(kind, Section):
                first = kind not in seen
                seen.setdefault(kind, set()).add(name)
                if first:
                    _sections(kind, seen)
    return seen


def _classes(annotation: object) -> Iterator[type]:
    if inspect.isclass(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def _name(node: ast.expr | None) -> str:
    """Return the last name of an expression: ``fetch`` of ``settings.fetch``, ``Tls`` of ``Tls | None``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.BinOp(left=left):
            return _name(left)
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return ""


def _reads() -> set[tuple[str, str]]:
    """Return what the code reads, as (section, field); a section is named by its class or by the field that holds it."""
    found = set()
    for path in _PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        aliases = {
            alias.asname: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname is not None
        }
        for scope in [
            tree,
            *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)),
        ]:
            holders: dict[str, str] = {}
            for node in ast.walk(scope):
                match node:
                    case ast.arg(arg=variable, annotation=ast.expr() as annotation):
                        holders[variable] = aliases.get(_name(annotation), _name(annotation))
                    case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Attribute(attr=name)):
                        holders[variable] = name
                    case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                        holders.update({_name(one): _name(value) for one, value in zip(targets, values, strict=False)})
                    case ast.NamedExpr(target=ast.Name(id=variable), value=ast.Attribute(attr=name)):
                        holders[variable] = name
                    case _:
                        pass
            for node in ast.walk(scope):
                if isinstance(node, ast.Attribute):
                    holder = _name(node.value)
                    found |= {(holder, node.attr), (holders.get(holder, ""), node.attr)}
    return found


def _fills() -> set[tuple[str, str]]:
    """Return the dataclasses that ``Section.fill`` makes of a section, as (the name that holds it, dataclass)."""
    calls = [
        node
        for path in _PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fill"
    ]
    return {(_name(call.func.value), _name(call.args[0])) for call in calls if isinstance(call.func, ast.Attribute)}


def _reads_of_themselves(kinds: set[str]) -> set[tuple[str, str]]:
    """Return what classes read of themselves, as (class, field): a property may return a setting in another unit."""
    return {
        (one.name, node.attr)
        for path in _PACKAGE.rglob("*.py")
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.ClassDef) and one.name in kinds
        for node in ast.walk(one)
        if isinstance(node, ast.Attribute) and _name(node.value) == "self"
    }


def _readers(kinds: set[str]) -> set[str]:
    return {"settings", "_settings", *kinds} if kinds else set()


def test_each_setting_is_read() -> None:
    """Read as an attribute of something that is named for the section, or annotated with its class.

    The values of a dataclass that ``fill`` makes are read as attributes of the dataclass, or of ``settings``.
    """
    fills = _fills()
    reads = _reads() | _reads_of_themselves({kind for _, kind in fills})
    made = {holder: {kind for one, kind in fills if one == holder} for holder, _ in fills}
    unread = {
        f"{section.__name__}.{field}"
        for root in (Settings, Pipeline)
        for section, holders in _sections(root, {root: {"settings", "pipeline"}}).items()
        for field in section.model_fields
        if not any((holder, name) in reads for holder in (section.__name__, *holders) for name in (field, "model_dump"))
        and not any((reader, field) in reads for holder in holders for reader in _readers(made.get(holder, set())))
    }
    assert unread == set(_READ_BY_ITS_OWN_MODEL)
