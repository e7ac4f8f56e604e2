# SPDX-License-Identifier: Apache-2.0
"""Checks of the files and folders that settings name. Changes nothing."""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from consumerd.access.address import IdentitiesFile
from consumerd.access.credential_file import CredentialFile
from consumerd.access.secret_file import find_secret_fault
from consumerd.config.cluster_section import TlsSection, ZookeeperAuthSection, is_credential
from consumerd.config.origins import KeyPath, render_key
from consumerd.config.sasl_section import SaslSection, ZookeeperSaslSection
from consumerd.config.section import SettingFault
from consumerd.config.settings import HttpSection, Settings
from consumerd.errors import ConfigError
from consumerd.net.tls import load_own_certificate, make_context
from consumerd.sinks.http.options import HttpOptions
from consumerd.sinks.kafka.options import KafkaOptions, KafkaSaslOptions
from consumerd.sinks.options import ChainOptions
from consumerd.sinks.tls_options import TlsOptions

_SHOWN: Final = 100
"""Characters of a path that a message repeats, at most."""


def find_file_faults(settings: Settings, sinks: Mapping[str, object]) -> Iterator[SettingFault]:
    """Yield the problems with files and folders that settings name.

    Args:
        settings: Settings that are valid in themselves.
        sinks: Options of each sink by its name, in the model of its type.
    """
    for name in ("tls", "zookeeper_tls"):
        tls: TlsSection = getattr(settings.cluster, name)
        if tls.enabled:
            yield from _check_tls(("cluster", name), tls)
    for name, options in sinks.items():
        if isinstance(options, HttpOptions):
            yield from _check_http(("sinks", name), options)
        if isinstance(options, KafkaOptions) and options.tls is not None:
            yield from _check_tls(("sinks", name, "tls"), options.tls)
        if isinstance(options, KafkaOptions) and options.sasl is not None:
            yield from _check_sasl(("sinks", name, "sasl"), options.sasl)
    yield from _check_server(settings.http)
    for name in ("sasl", "zookeeper_sasl"):
        sasl: SaslSection | ZookeeperSaslSection | None = getattr(settings.cluster, name)
        if sasl is not None:
            yield from _check_sasl(("cluster", name), sasl)
    if settings.cluster.zookeeper_auth is not None:
        yield from _check_credential(settings.cluster.zookeeper_auth)
    yield from _check_identities(settings.cluster.find_identities())
    for path, folder in _list_folders(settings, sinks):
        if (fault := _find_folder_fault(folder)) is not None:
            yield SettingFault((path,), fault)
    for path, file in _list_files(settings):
        # a missing file is no fault here: the job creates it, or checks it at its start
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(file.stat().st_mode):
                yield SettingFault((path,), _describe_folder(file))


def _check_tls(section: KeyPath, tls: TlsSection | TlsOptions) -> Iterator[SettingFault]:
    names = ("ca_file", "certificate_file", "key_file")
    given = {name: path for name in names if (path := getattr(tls, name)) is not None}
    found = [
        SettingFault(((*section, name),), fault)
        for name, path in given.items()
        if (fault := (_find_secret_file_fault if name == "key_file" else _find_file_fault)(path)) is not None
    ]
    yield from found
    if found:
        return
    if tls.ca_file is not None:
        yield from _try_context((*section, "ca_file"), trusted=tls.ca_file)
    if tls.certificate_file is not None:
        yield from _try_context((*section, "certificate_file"), certificate=tls.certificate_file, key=tls.key_file)


def _check_sasl(
    section: KeyPath, sasl: SaslSection | ZookeeperSaslSection | KafkaSaslOptions
) -> Iterator[SettingFault]:
    for name in ("password_file", "keytab"):
        path: Path | None = getattr(sasl, name)
        if path is not None and (fault := _find_secret_file_fault(path)) is not None:
            yield SettingFault(((*section, name),), fault)


def _check_server(http: HttpSection) -> Iterator[SettingFault]:
    faults = {}
    for name, is_secret in (("certificate_file", False), ("key_file", True), ("token_file", True)):
        path: Path | None = getattr(http, name)
        if path is not None:
            faults[name] = (_find_secret_file_fault if is_secret else _find_file_fault)(path)
    yield from (SettingFault(("http", name), fault) for name, fault in faults.items() if fault is not None)
    if any(faults.values()):
        return
    if http.certificate_file is not None and http.key_file is not None:
        setting = "http.certificate_file"
        try:
            load_own_certificate(
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), setting, http.certificate_file, http.key_file
            )
        except ConfigError as error:
            yield SettingFault((setting,), f"{str(error).removeprefix(f'{setting}: ')}: expected PEM")
    if http.token_file is not None:
        try:
            CredentialFile("http.token_file", "bearer", http.token_file).read()
        except ConfigError as error:
            yield SettingFault(("http.token_file",), str(error).removeprefix("http.token_file: "))


def _try_context(
    path: KeyPath, *, trusted: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> Iterator[SettingFault]:
    setting = render_key(path)
    try:
        make_context(setting, trusted=trusted, certificate=certificate, key=key, check_hostname=True)
    except ConfigError as error:
        yield SettingFault((path,), f"{str(error).removeprefix(f'{setting}: ')}: expected PEM")


def _check_http(section: KeyPath, options: HttpOptions) -> Iterator[SettingFault]:
    if options.tls is not None:
        yield from _check_tls((*section, "tls"), options.tls)
    if options.auth is None:
        return
    path = (*section, "auth", "credential_file")
    if (fault := _find_file_fault(options.auth.credential_file)) is not None:
        yield SettingFault((path,), fault)
        return
    setting = render_key(section)
    try:
        options.auth.locate(setting).read()
    except ConfigError as error:
        yield SettingFault((path,), str(error).removeprefix(f"{setting}.credential_file: "))


def _check_identities(identities: IdentitiesFile | None) -> Iterator[SettingFault]:
    if identities is None:
        return
    if (fault := _find_file_fault(identities.file)) is not None:
        yield SettingFault((identities.setting,), fault)
        return
    try:
        identities.read()
    except ConfigError as error:
        yield SettingFault((identities.setting,), str(error).removeprefix(f"{identities.setting}: "))


def _check_credential(auth: ZookeeperAuthSection) -> Iterator[SettingFault]:
    path = auth.credential_file
    if path is None:
        return
    key = "cluster.zookeeper_auth.credential_file"
    if (fault := _find_secret_file_fault(path)) is not None:
        yield SettingFault((key,), fault)
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        text = ""
    if not is_credential(text):
        yield SettingFault(
            (key,), f"{path} does not hold user:password: write both on one line, with a colon between them"
        )


def _find_file_fault(path: Path) -> str | None:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} does not exist: check the path, and that it is mounted here"
    except OSError as error:
        return _describe_error(path, error)
    if is_folder:
        return _describe_folder(path)
    if not os.access(path, os.R_OK):
        return f"{path} cannot be read: give this user (uid {os.geteuid()}) the right"
    return None


def _find_secret_file_fault(path: Path) -> str | None:
    return _find_file_fault(path) or find_secret_fault(path)


def _describe_folder(path: Path) -> str:
    return f"{path} is a folder; expected a file: write its name, too"


def _find_folder_fault(path: Path) -> str | None:
    """Return why a path cannot be a folder, or None.

    A path that does not exist is no fault: the folder is created, or mounted later.
    """
    for part in (path, *path.parents):
        try:
            mode = part.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return _describe_error(part, error)
        if stat.S_ISDIR(mode):
            return None
        return f"{part} is a file; expected a folder: write another path, or remove the file"
    return None


def _describe_error(path: Path, error: OSError) -> str:
    shown = str(path)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return f"{shown} cannot be looked at: {error.strerror}: check the path, and the rights of uid {os.geteuid()}"


def _list_folders(settings: Settings, sinks: Mapping[str, object]) -> Iterator[tuple[KeyPath, Path]]:
    for name, options in sinks.items():
        if isinstance(options, ChainOptions):
            yield ("sinks", name, "path"), options.path
    pipeline = settings.pipeline
    for index, root in enumerate(pipeline.landing.roots):
        yield ("pipeline", "landing", "roots", index), root
    tables = {
        ("path",): pipeline.path,
        ("bronze", "path"): pipeline.bronze.path,
        ("silver", "path"): pipeline.silver.path,
        ("silver", "quarantine"): pipeline.silver.quarantine,
        ("silver", "latest"): pipeline.silver.latest,
        ("stats", "path"): pipeline.stats.path,
    }
    for path, place in tables.items():
        # URLs are checked by the job
        if place is not None and not place.startswith("file:") and "://" not in place:
            yield ("pipeline", *path), Path(place)
    for key, folder in (
        (("quarantine", "path"), settings.quarantine.path),
        (("pipeline", "metrics", "folder"), pipeline.metrics.folder),
    ):
        if folder is not None:
            yield key, folder


def _list_files(settings: Settings) -> Iterator[tuple[KeyPath, Path]]:
    pipeline = settings.pipeline
    files = {
        ("audit", "html"): pipeline.audit.html,
        ("audit", "json_file"): pipeline.audit.json_file,
        ("erase", "keys_file"): pipeline.erase.keys_file,
        ("erase", "report"): pipeline.erase.report,
    }
    for path, file in files.items():
        if file is not None:
            yield ("pipeline", *path), file
    for topic, how in pipeline.silver.topics.items():
        for side, decoding in (("key", how.key), ("value", how.value)):
            at = ("pipeline", "silver", "topics", topic, side)
            if decoding.schema_file is not None:
                yield (*at, "schema_file"), decoding.schema_file
            for schema_id, file in decoding.writer_schemas.items():
                yield (*at, "writer_schemas", schema_id), file
