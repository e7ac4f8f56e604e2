# SPDX-License-Identifier: Apache-2.0
"""Settings of the sink http that cannot work are refused, and none shows a secret."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from consumerd.access.credential_file import CredentialFile
from consumerd.cli.main import main
from consumerd.errors import ConfigError
from consumerd.sinks.http.options import HttpOptions
from consumerd.sinks.tls_options import TlsOptions

URL = "https://host.example/hooks/PATHSECRET?sig=QUERYSECRET"


def test_an_address_is_enough() -> None:
    """Everything else has a default that works."""
    options = HttpOptions.model_validate({"url": URL})

    assert (options.batch_records, options.batch_bytes, options.batch_ms) == (500, 1 << 20, 1000)
    assert (options.max_in_flight_per_partition, options.proxy_from_environment) == (1, False)


def test_durations_and_sizes_have_units() -> None:
    """As in all settings."""
    options = HttpOptions.model_validate({"url": URL, "batch_ms": "5s", "batch_bytes": "2MiB", "timeout_ms": "1m"})

    assert (options.batch_ms, options.batch_bytes, options.timeout_ms) == (5000, 2 << 20, 60_000)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"url": "ftp://host/x"}, "expected a URL"),
        ({"url": "https:///x"}, "expected a URL"),
        ({"url": "https://host:99999/"}, "expected a URL"),
        ({"url": "https://host/a\nb"}, "control characters"),
        ({"url": "https://ho st/"}, "spaces"),
        ({"url": "https://ann:PATHSECRET@host/"}, "write them into a file"),
        ({"url": "https://host/#x"}, "fragment"),
        ({"headers": {"Content-Length": "1"}}, "set by the sink itself"),
        ({"headers": {"a b": "1"}}, "not the name of a header"),
        ({"headers": {"X-Key": "PATHSECRET\r\nX-Other: 1"}}, "one line"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "given twice"),
        ({"headers": {"idempotency-key": "1"}}, "idempotency_header"),
        ({"headers": {"Authorization": "x"}, "auth": {"scheme": "bearer", "credential_file": "/x"}}, "set by auth"),
        ({"url": "http://host/", "tls": {"ca_file": "/x"}}, "the url is not https"),
        ({"tls": {"certificate_file": "/x"}}, "give key_file, too"),
        ({"tls": {"key_file": "/x"}}, "give certificate_file, too"),
        ({"max_in_flight": 2, "max_in_flight_per_partition": 3}, "above max_in_flight"),
        ({"batch_records": 0}, "greater than 0"),
        ({"method": "GET"}, "POST"),
        ({"idempotency_header": "Host"}, "set by the sink itself"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, object], told: str) -> None:
    """With words that say what to do, and without the secret."""
    with pytest.raises(ValidationError) as caught:
        HttpOptions.model_validate({"url": URL, **given})

    (error,) = caught.value.errors(include_input=False)
    assert told in error["msg"]
    assert "SECRET" not in error["msg"]


def test_options_do_not_show_their_secrets() -> None:
    """In a log line or a traceback."""
    options = HttpOptions.model_validate({"url": URL, "headers": {"X-Api": "PATHSECRET"}})

    assert "SECRET" not in repr(options)
    assert "SECRET" not in str(options.model_dump())


def write(path: Path, **sink: object) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "cluster": {"zookeeper": "127.0.0.1:1"},
                "group": {"id": "g"},
                "subscriptions": [{"topics": ["orders"], "sink": "api"}],
                "sinks": {"api": {"type": "http", "url": URL, **sink}},
            }
        )
    )
    return path


def test_check_config_lists_the_settings_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its output goes into tickets."""
    token = tmp_path / "token"
    token.write_text("t")
    token.chmod(0o600)
    auth = {"scheme": "bearer", "credential_file": str(token)}
    path = write(tmp_path / "c.yaml", headers={"X-Api": "PATHSECRET"}, auth=auth)

    assert main(["check-config", "--config", str(path), "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert "SECRET" not in shown.out + shown.err
    values = {one["key"]: one["value"] for one in json.loads(shown.out)["settings"]}
    assert values["sinks.api.url"] == "(not shown)"
    assert values["sinks.api.auth.credential_file"] == str(token)
    assert values["sinks.api.batch_records"] == 500


@pytest.mark.parametrize(
    "sink", [{"url": "ftp://PATHSECRET/"}, {"url": 5}, {"headers": {"X-A": "PATHSECRET\n"}}, {"headers": "PATHSECRET"}]
)
def test_errors_of_settings_do_not_repeat_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sink: dict[str, object]
) -> None:
    """They go into logs of deployments."""
    assert main(["check-config", "--config", str(write(tmp_path / "c.yaml", **sink))]) == 2
    shown = capsys.readouterr()
    assert "sinks.api." in shown.out + shown.err
    assert "SECRET" not in shown.out + shown.err


def test_address_comes_from_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/http-sink.md says, for a URL that is a secret as a whole."""
    monkeypatch.setenv("CONSUMERD_SINKS__API__URL", "ftp://PATHSECRET/")

    assert main(["check-config", "--config", str(write(tmp_path / "c.yaml"))]) == 2
    shown = capsys.readouterr()
    assert "CONSUMERD_SINKS__API__URL" in shown.out + shown.err
    assert "SECRET" not in shown.out + shown.err


def test_credential_over_plain_text_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be right within a host; the name is the one of docs/operations.md."""
    token = tmp_path / "token"
    token.write_text("t")
    token.chmod(0o600)
    auth = {"scheme": "bearer", "credential_file": str(token)}
    for url, warned in (("http://127.0.0.1/", True), ("https://127.0.0.1/", False)):
        assert main(["check-config", "--config", str(write(tmp_path / "c.yaml", url=url, auth=auth))]) == 0
        shown = capsys.readouterr()
        assert ("credential-in-plain-text" in shown.out + shown.err) is warned


def test_unknown_key_of_a_section_is_told_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not with those of the sink."""
    assert main(["check-config", "--config", str(write(tmp_path / "c.yaml", tls={"cafile": "/x"}))]) == 2
    told = capsys.readouterr().err
    assert "sinks.api.tls.cafile: unknown key; did you mean ca_file?" in told
    assert "there is ca_file, certificate_file, check_hostname, key_file (" in told


def test_example_shows_every_option_with_its_default() -> None:
    """The options are comments in config.example.yaml, which has one sink that is used."""
    text = (Path(__file__).parents[3] / "config.example.yaml").read_text()
    block = text[text.index("  #   api:\n") : text.index("\n\n", text.index("  #   api:\n"))]
    (shown,) = yaml.safe_load("\n".join(line.removeprefix("  # ") for line in block.splitlines())).values()
    assert shown.pop("type") == "http"
    given = HttpOptions.model_validate(shown)
    defaults = HttpOptions.model_validate({"url": URL})

    assert shown.keys() == HttpOptions.model_fields.keys() - {"on_rejected"}
    for name in HttpOptions.model_fields.keys() - {"url", "headers", "auth", "tls"}:
        assert getattr(given, name) == getattr(defaults, name), name
    assert given.tls == TlsOptions()
    assert shown["tls"].keys() == TlsOptions.model_fields.keys()


def test_check_config_looks_at_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is found before the roll-out."""
    auth = {"scheme": "bearer", "credential_file": str(tmp_path / "token")}
    path = write(tmp_path / "c.yaml", auth=auth, tls={"ca_file": str(tmp_path / "ca.pem")})

    assert main(["check-config", "--config", str(path)]) == 2
    shown = capsys.readouterr()
    told = shown.out + shown.err
    assert "sinks.api.auth.credential_file" in told
    assert "sinks.api.tls.ca_file" in told
    assert told.count("does not exist") == 2


# -- the credential's file


def test_credential_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    """Rotated in place, or by a new file under the old name."""
    file = tmp_path / "token"
    file.write_text("one\n")
    file.chmod(0o640)
    credential = CredentialFile("sinks.api.auth", "bearer", file)

    assert credential.read() == "Bearer one"
    file.write_text("second\n")
    assert credential.read() == "Bearer second"
    other = tmp_path / "other"
    other.write_text("third!\n")
    other.chmod(0o600)
    other.replace(file)
    assert credential.read() == "Bearer third!"
    assert "third" not in repr(credential)


def test_basic_credential_is_user_and_password(tmp_path: Path) -> None:
    """RFC 7617, section 2, has this example."""
    file = tmp_path / "password"
    file.write_text("Aladdin:open sesame")
    file.chmod(0o600)

    assert CredentialFile("s", "basic", file).read() == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


@pytest.mark.parametrize(
    ("scheme", "content", "told"),
    [
        ("bearer", b"", "one line"),
        ("bearer", b"one\ntwo", "one line"),
        ("bearer", b"a b", "token"),
        ("bearer", "é".encode(), "token"),
        ("bearer", b"x" * 70_000, "one line"),
        ("basic", b"no-colon", "user:password"),
    ],
)
def test_file_without_a_credential_is_refused(tmp_path: Path, scheme: str, content: bytes, told: str) -> None:
    """By its name, never by what is in it."""
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(0o600)

    with pytest.raises(ConfigError, match=told) as caught:
        CredentialFile("sinks.api.auth.credential_file", scheme, file).read()  # type: ignore[arg-type]  # by parameter
    assert str(file) in str(caught.value)


def test_credential_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    """And taken again when that right is gone, although the content is the same."""
    file = tmp_path / "token"
    file.write_text("one")
    file.chmod(0o644)
    credential = CredentialFile("s", "bearer", file)

    with pytest.raises(ConfigError, match=r"everybody.*chmod o="):
        credential.read()
    file.chmod(0o600)
    assert credential.read() == "Bearer one"
    file.chmod(0o604)
    with pytest.raises(ConfigError, match="everybody"):
        credential.read()


def test_missing_credential_is_named(tmp_path: Path) -> None:
    """It may come back: a mounted secret is replaced by moving links."""
    credential = CredentialFile("s", "bearer", tmp_path / "token")
    with pytest.raises(ConfigError, match=f"{tmp_path / 'token'} cannot be read: {os.strerror(2)}"):
        credential.read()
