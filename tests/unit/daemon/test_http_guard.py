# SPDX-License-Identifier: Apache-2.0
"""The HTTP server with a token and a certificate: who is answered, and files that change or cannot be used."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
import trustme
from prometheus_client import CollectorRegistry

from consumerd.admin.doctor.surroundings import HttpAccess, ask_daemon, ask_metrics
from consumerd.daemon.http import make_application, serve
from consumerd.daemon.http_guard import ServerCertificate, TokenGuard
from consumerd.daemon.status import DaemonStatus
from consumerd.errors import ConfigError
from consumerd.telemetry.hooks import Hooks
from consumerd.telemetry.metrics import make_registry
from tests.unit.daemon.test_status_surface import STATUS, always

UNREADY = replace(STATUS, ready=False, not_ready=("orders/1 is held by lake_other-0",))


@asynccontextmanager
async def served(
    status: DaemonStatus = STATUS,
    *,
    guard: TokenGuard | None = None,
    certificate: ServerCertificate | None = None,
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[tuple[str, int]]:
    application = make_application(always(status), registry or CollectorRegistry(), guard)
    async with serve(application, "127.0.0.1", 0, certificate) as address:
        yield address


def write_secret(path: Path, text: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(text)
    return path


async def get(address: tuple[str, int], path: str, headers: Any = None, **options: Any) -> tuple[int, str]:
    scheme = "https" if "ssl" in options else "http"
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{scheme}://{address[0]}:{address[1]}{path}", headers=headers, **options) as answer,
    ):
        if answer.status == 401:
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        return answer.status, await answer.text()


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/status", "/nowhere"])
async def test_all_but_probes_need_the_token(path: str, tmp_path: Path) -> None:
    """Not even which paths there are is told."""
    guard = TokenGuard(write_secret(tmp_path / "token", b"right\n"), Hooks())
    async with served(guard=guard) as address:
        wrong: list[Any] = [
            None,
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer right2"},
            {"Authorization": "Bearer righ"},
            {"Authorization": "Bearer"},
            {"Authorization": "right"},
            {"Authorization": "Basic right"},
            {"Authorization": "Bearer r\u00efght"},
            [("Authorization", "Bearer wrong"), ("Authorization", "Bearer right")],
        ]
        assert [401] * len(wrong) == [(await get(address, path, one))[0] for one in wrong]
        assert await get(address, path, {"Authorization": "Bearer right"}) != (401, "")
        assert (await get(address, path, {"Authorization": "Bearer right"}))[0] == (404 if path == "/nowhere" else 200)


async def test_probes_answer_without_the_token_and_say_no_more_than_their_code(tmp_path: Path) -> None:
    """A kubelet has no token; the reasons name topics and hosts."""
    guard = TokenGuard(write_secret(tmp_path / "token", b"right"), Hooks())
    async with served(UNREADY, guard=guard) as address:
        assert await get(address, "/livez") == (200, "ok\n")
        assert await get(address, "/readyz") == (503, "not ready\n")
        reasons = await get(address, "/readyz", {"Authorization": "Bearer right"})
        assert reasons == (503, "orders/1 is held by lake_other-0\n")
    async with served(guard=guard) as address:
        assert await get(address, "/readyz") == (200, "ok\n")


async def test_another_token_in_the_file_counts_at_once_and_an_unusable_file_admits_nobody(tmp_path: Path) -> None:
    """Told once, and without the token."""
    file = write_secret(tmp_path / "token", b"first")
    guard = TokenGuard(file, Hooks())
    first, second = ({"Authorization": f"Bearer {one}"} for one in ("first", "second"))
    async with served(guard=guard) as address:
        assert (await get(address, "/metrics", first))[0] == 200
        file.write_bytes(b"second")
        assert [401, 200] == [(await get(address, "/metrics", one))[0] for one in (first, second)]
        with structlog.testing.capture_logs() as logged:
            file.chmod(0o644)
            assert [401, 401] == [(await get(address, "/metrics", second))[0] for _ in range(2)]
            assert (await get(address, "/livez"))[0] == 200
        (told,) = [one for one in logged if one["event"] == "http_token_unusable"]
        assert "everybody" in told["reason"]
        assert "second" not in str(told)
        file.chmod(0o600)
        assert (await get(address, "/metrics", second))[0] == 200
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody"):
        TokenGuard(file, Hooks()).check()


def issue(authority: trustme.CA, folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    issued = authority.issue_cert(name)
    chain = b"".join(one.bytes() for one in issued.cert_chain_pems)
    certificate = folder / "cert.pem"
    certificate.write_bytes(chain)
    return certificate, write_secret(folder / "key.pem", issued.private_key_pem.bytes())


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_a_renewed_certificate_is_shown_by_new_connections(tmp_path: Path) -> None:
    """Without a restart; a key that does not fit leaves the former pair in place, and is told."""
    old, new = trustme.CA(), trustme.CA()
    certificate = ServerCertificate(*issue(old, tmp_path), Hooks())
    async with served(certificate=certificate) as address:
        assert (await get(address, "/metrics", ssl=trusting(old)))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await get(address, "/metrics", ssl=trusting(new))
        with pytest.raises(aiohttp.ClientError):
            await get(address, "/metrics")
        issue(new, tmp_path)
        certificate.refresh()
        assert (await get(address, "/metrics", ssl=trusting(new)))[0] == 200
        with structlog.testing.capture_logs() as logged:
            (tmp_path / "key.pem").write_bytes(old.issue_cert("x").private_key_pem.bytes())
            for _ in range(2):
                certificate.refresh()
        assert [one["event"] for one in logged] == ["http_certificate_unusable"]
        assert (await get(address, "/metrics", ssl=trusting(new)))[0] == 200


async def test_a_client_that_only_connects_does_not_keep_probes_out(tmp_path: Path) -> None:
    """More silent connections than there are places."""
    authority = trustme.CA()
    certificate = ServerCertificate(*issue(authority, tmp_path), Hooks())
    async with served(certificate=certificate) as address:
        silent = [await asyncio.open_connection(*address) for _ in range(80)]
        try:
            assert await get(address, "/livez", ssl=trusting(authority)) == (200, "ok\n")
        finally:
            for _, writer in silent:
                writer.close()


def test_a_key_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    """At the start; a certificate is no secret."""
    certificate, key = issue(trustme.CA(), tmp_path)
    assert certificate.stat().st_mode & 0o004 or os.umask(0o022) != 0o022
    key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"http\.key_file: .*key\.pem can be read by everybody"):
        ServerCertificate(certificate, key, Hooks())


async def test_the_doctor_asks_with_token_and_certificate(tmp_path: Path) -> None:
    """It trusts the daemon's own certificate, by whomever and for whatever name it was issued."""
    files = issue(trustme.CA(), tmp_path, "consumerd.example")
    token = write_secret(tmp_path / "token", b"right")
    access = HttpAccess(certificate=files[0], token=token)
    async with served(
        guard=TokenGuard(token, Hooks()), certificate=ServerCertificate(*files, Hooks()), registry=make_registry()
    ) as where:
        metrics = await asyncio.to_thread(ask_metrics, where, access, timeout_s=10)
        daemon = await asyncio.to_thread(ask_daemon, where, access, timeout_s=10)
        denied = await asyncio.to_thread(ask_metrics, where, HttpAccess(certificate=files[0]), timeout_s=10)
        other = tmp_path / "other"
        other.mkdir()
        foreign = HttpAccess(certificate=issue(trustme.CA(), other)[0], token=token)
        fooled = await asyncio.to_thread(ask_metrics, where, foreign, timeout_s=10)

    assert ("", "") == (metrics.problem, daemon.problem)
    assert STATUS.group == daemon.group
    assert denied.problem.endswith("answers 401")
    assert "CERTIFICATE_VERIFY_FAILED" in fooled.problem.upper()
