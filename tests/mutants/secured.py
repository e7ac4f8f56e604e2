# SPDX-License-Identifier: Apache-2.0
"""Mutants of SASL: what is believed of a server, what is sent to it, and what happens after a refusal."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SCRAM: Final = "tests/unit/sasl/test_scram.py"
_DIALER: Final = "tests/unit/net/test_sasl_dialer.py"
_POOL: Final = "tests/unit/net/test_pool.py"
_TICKETS: Final = "tests/unit/access/test_tickets.py"
_ZOOKEEPER: Final = "tests/component/zk/test_authentication.py"
_LOGIN: Final = "tests/unit/access/test_sasl_login.py"

_GUARD: Final = "tests/unit/daemon/test_http_guard.py"
_LASTING: Final = "tests/component/daemon/test_lasting_faults.py"
_TOLD: Final = "test_a_missing_right_is_told_within_half_a_minute_and_a_grant_is_noticed_within_seconds"

SECURED: Final = (
    Mutant(
        name="a-second-token-is-tried",
        promise=0,
        file="daemon/http_guard.py",
        old="        return len(given) == 1 and hmac.compare_digest(given[0].",
        new="        return len(given) >= 1 and hmac.compare_digest(given[-1].",
        tests=(f"{_GUARD}::test_all_but_probes_need_the_token",),
    ),
    Mutant(
        name="a-probe-tells-reasons-without-the-token",
        promise=0,
        file="daemon/http.py",
        old="        if guard is None or guard.admits(request):\n",
        new="        if guard is not None or guard.admits(request):\n",
        tests=(f"{_GUARD}::test_probes_answer_without_the_token_and_say_no_more_than_their_code",),
    ),
    Mutant(
        name="a-key-that-everybody-can-read-is-loaded",
        promise=0,
        file="access/address.py",
        old="        if (secret := self.key or self.certificate) is not None:\n",
        new="        if (secret := self.key) is not None:\n",
        tests=("tests/unit/access/test_address.py::test_a_key_that_everybody_can_read_is_refused",),
    ),
    Mutant(
        name="a-missing-right-at-the-start-is-tried-less-and-less",
        promise=0,
        file="delivery/calls.py",
        old="            pause_s = min(pause_s, DENIED_RETRY_S)  #",
        new="            pause_s = max(pause_s, DENIED_RETRY_S)  #",
        tests=(f"{_LASTING}::{_TOLD}",),
    ),
    Mutant(
        name="a-missing-right-is-fetched-less-and-less",
        promise=0,
        file="fetch/fetcher.py",
        old="            delay = min(delay, DENIED_RETRY_S)\n",
        new="            delay *= 30\n",
        tests=(f"{_LASTING}::{_TOLD}",),
    ),
    Mutant(
        name="a-server-without-the-password-is-believed",
        promise=0,
        file="sasl/scram.py",
        old="        if not hmac.compare_digest(self._decode(match[1]), signature):\n",
        new="        if not hmac.compare_digest(self._decode(match[1]), signature) and not match[1]:\n",
        tests=(f"{_SCRAM}::test_server_that_does_not_know_the_password_is_refused",),
    ),
    Mutant(
        name="iterations-without-an-upper-bound",
        promise=0,
        file="sasl/scram.py",
        old="        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:\n",
        new="        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS + 1:\n",
        tests=(f"{_SCRAM}::test_iterations_have_bounds",),
    ),
    Mutant(
        name="iterations-without-a-lower-bound",
        promise=0,
        file="sasl/scram.py",
        old="        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:\n",
        new="        if not 1 <= iterations <= MOST_ITERATIONS:\n",
        tests=(f"{_SCRAM}::test_iterations_have_bounds",),
    ),
    Mutant(
        name="a-replayed-nonce-is-taken",
        promise=0,
        file="sasl/scram.py",
        old="        if not nonce.startswith(self._nonce) or nonce == self._nonce:\n",
        new="        if not nonce.startswith(self._nonce):\n",
        tests=(f"{_SCRAM}::test_first_message_that_is_none_is_refused",),
    ),
    Mutant(
        name="a-digest-server-without-the-password-is-believed",
        promise=0,
        file="sasl/digest_md5.py",
        old='        if not hmac.compare_digest(fields.get("rspauth", "").encode(), self._expected):\n',
        new='        if not hmac.compare_digest(fields.get("rspauth", self._expected.decode()).encode(), self._expected):\n',
        tests=("tests/unit/sasl/test_digest_md5.py::test_server_that_does_not_know_the_password_is_refused",),
    ),
    Mutant(
        name="gssapi-waits-for-an-answer-to-its-last-token",
        promise=0,
        file="sasl/gssapi_client.py",
        old="        return Token(data=context.wrap(bytes([_NO_LAYER, 0, 0, 0])), answered=False)\n",
        new="        return Token(data=context.wrap(bytes([_NO_LAYER, 0, 0, 0])))\n",
        tests=("tests/unit/sasl/test_gssapi_client.py::test_empty_token_asks_for_the_offer_and_the_choice_ends_it",),
    ),
    Mutant(
        name="kerberos-accepted-without-a-first-request",
        promise=0,
        file="net/authentication.py",
        old="            if client.mechanism == GSSAPI:\n                await exchange.confirm()\n",
        new="",
        tests=(f"{_DIALER}::test_missing_rule_for_a_kerberos_principal_is_told",),
    ),
    Mutant(
        name="tokens-without-end",
        promise=0,
        file="net/authentication.py",
        old="        for _ in range(_MOST_TOKENS):\n",
        new="        for _ in range(2000):\n",
        tests=(f"{_DIALER}::test_endless_tokens_end",),
    ),
    Mutant(
        name="versions-asked-again-after-the-handshake",
        promise=0,
        file="net/sasl_dialer.py",
        old="            framing = choose_framing(versions)\n",
        new="            framing = choose_framing(versions)\n            await self._ask(connection)\n",
        tests=(f"{_DIALER}::test_broker_is_asked_for_its_versions_once",),
    ),
    Mutant(
        name="0.9-assumed-before-it-has-accepted",
        promise=0,
        file="net/sasl_dialer.py",
        old="                versions = assume_release(RELEASE_0_9)\n",
        new=(
            "                versions = assume_release(RELEASE_0_9)\n"
            "                self._memory.remember(address, versions, self._now())\n"
        ),
        also=(
            (
                "            connection.close()\n            self._memory.forget(address)\n",
                "            connection.close()\n",
            ),
        ),
        tests=(f"{_DIALER}::test_0_9_is_remembered_only_when_it_has_accepted",),
    ),
    Mutant(
        name="a-lifetime-used-to-its-end",
        promise=0,
        file="net/sasl_dialer.py",
        old="            connection.retire_after(_USED_LIFETIME * lifetime_s)\n",
        new="            connection.retire_after(lifetime_s)\n",
        tests=(f"{_DIALER}::test_connection_with_a_lifetime_is_retired_in_time",),
    ),
    Mutant(
        name="a-retired-connection-is-closed-with-its-requests",
        promise=0,
        file="net/pool.py",
        old="            self._retire(slot)\n            slot.drop()\n",
        new="            slot.drop()\n",
        tests=(f"{_POOL}::test_connection_at_the_end_of_its_lifetime_is_replaced_and_drained",),
        dies_of="ConnectionLost",
    ),
    Mutant(
        name="a-refused-identity-is-shown-again-at-once",
        promise=0,
        file="net/pool.py",
        old="            initial_s = _REFUSED_INITIAL_S if refused else self._backoff_initial_s\n",
        new="            initial_s = self._backoff_initial_s\n",
        tests=(f"{_POOL}::test_refused_identity_is_shown_again_after_seconds_to_a_minute",),
    ),
    Mutant(
        name="each-refusal-is-a-trouble",
        promise=0,
        file="net/sasl_dialer.py",
        old="        if is_new:\n",
        new="        if reason:\n",
        tests=(f"{_DIALER}::test_refusal_is_told_once_and_its_end_too",),
    ),
    Mutant(
        name="a-password-in-the-clear-without-a-word",
        promise=0,
        file="access/sasl_login.py",
        old="        if self.mechanism == PLAIN and not tls and not self.allow_plaintext_password:\n",
        new="        if self.mechanism == PLAIN and not tls and self.allow_plaintext_password:\n",
        tests=(f"{_LOGIN}::test_password_of_plain_needs_tls_or_a_word",),
    ),
    Mutant(
        name="a-password-that-everybody-can-read",
        promise=0,
        file="access/secret_file.py",
        old="    return bool(mode & (stat.S_IROTH | stat.S_IWOTH))\n",
        new="    return bool(mode & stat.S_IWOTH)\n",
        tests=(f"{_LOGIN}::test_file_that_everybody_can_read_is_refused",),
    ),
    Mutant(
        name="hdps-listener-is-not-found",
        promise=0,
        file="zk/znodes.py",
        old="                protocol=_PROTOCOL_ALIASES.get(protocol, protocol),\n",
        new="                protocol=protocol,\n",
        tests=("tests/unit/cluster/test_from_zookeeper.py::test_each_protocol_has_its_listener",),
    ),
    Mutant(
        name="connections-do-not-wait-for-the-first-ticket",
        promise=0,
        file="access/tickets.py",
        old="        if not self._gates:\n            return\n",
        new="        return\n",
        tests=(f"{_TICKETS}::test_connections_wait_for_the_first_ticket_and_for_no_longer_than_they_may",),
    ),
    Mutant(
        name="a-refused-ticket-is-replaced-each-time",
        promise=0,
        file="access/tickets.py",
        old="        if not self._gates or waited_s < self._rest_s:\n",
        new="        if not self._gates:\n",
        tests=(f"{_TICKETS}::test_ticket_that_a_server_refuses_is_replaced_at_once_and_then_ever_more_rarely",),
    ),
    Mutant(
        name="a-refused-ticket-is-shown-again",
        promise=0,
        file="net/authentication.py",
        old="        except AuthenticationFailed:\n            self._steps.note_refusal()\n",
        new="        except AuthenticationFailed:\n",
        tests=(f"{_DIALER}::test_refused_tickets_are_told_to_their_keeper",),
    ),
    Mutant(
        name="a-ticket-that-runs-out-is-told-at-its-end",
        promise=0,
        file="access/tickets.py",
        old="        if left_s < _WARN_BELOW * self._life_s:\n",
        new="        if left_s < 0.0:\n",
        tests=(f"{_TICKETS}::test_ticket_that_is_not_renewed_is_told_before_it_ends_and_once",),
        dies_of="ValueError",
    ),
    Mutant(
        name="a-login-of-java-with-its-password",
        promise=0,
        file="config/java_logins.py",
        old='        if "password" in options:\n',
        new='        if "Password" in options:\n',
        tests=("tests/unit/config/test_java_properties.py::test_a_password_in_a_login_is_refused_and_not_repeated",),
        dies_of="ValueError",
    ),
    Mutant(
        name="a-zookeeper-without-sasl-is-taken-for-one-with-it",
        promise=0,
        file="zk/authentication.py",
        old="            if answer is None:\n",
        new="            if answer is None:\n                return\n            if answer is None:\n",
        tests=(f"{_ZOOKEEPER}::test_server_without_sasl_is_told",),
    ),
    Mutant(
        name="a-resumed-session-is-not-authenticated",
        promise=3,
        file="zk/session.py",
        old="                await self._login.authenticate(connection, token)\n",
        new="                await self._login.authenticate(connection, None if self._lease else token)\n",
        tests=(f"{_ZOOKEEPER}::test_o6_sasl_comes_before_everything_else_on_every_connection",),
        dies_of=r"consumerd\.zk\.port\.NotPermitted",
    ),
    Mutant(
        name="a-zookeeper-that-refuses-is-asked-at-once",
        promise=0,
        file="zk/authentication.py",
        old="last[0] if last is not None and now < last[1] else None",
        new="last[0] if last is not None and now < 0 else None",
        tests=("tests/unit/zk/test_refusing_servers.py::test_pauses_grow_to_a_minute_and_begin_again_after_a_success",),
    ),
    Mutant(
        name="a-connection-that-ends-once-is-a-refusal",
        promise=0,
        file="zk/session.py",
        old="(error.certain or self._refusing.count(server) > 1)",
        new="(error.certain or self._refusing.count(server) > 0)",
        tests=(f"{_ZOOKEEPER}::test_connection_that_ends_during_sasl_is_a_refusal_the_second_time_only",),
        dies_of=r"consumerd\.zk\.authentication\.IdentityRefused",
    ),
    Mutant(
        name="claims-are-open-although-we-have-an-identity",
        promise=3,
        file="zk/node_acl.py",
        old='_OWNED: Final = frozenset({"owners", "offsets", "consumerd"})',
        new='_OWNED: Final = frozenset({"offsets", "consumerd"})',
        tests=(f"{_ZOOKEEPER}::test_nodes_carry_the_acls_of_the_profile",),
    ),
    Mutant(
        name="ids-are-closed-to-java-members-without-an-identity",
        promise=3,
        file="zk/node_acl.py",
        old="len(parts) > 3 and parts[3] in _OWNED",
        new="len(parts) > 3",
        tests=("tests/unit/zk/test_node_acl.py::test_each_node_has_the_acl_of_its_place",),
    ),
    Mutant(
        name="a-key-that-everybody-can-read-is-taken",
        promise=0,
        file="access/address.py",
        old="        if (secret := self.key or self.certificate) is not None:\n",
        new="        if (secret := self.key or self.certificate) is not None and not self.setting:\n",
        tests=(f"{_ZOOKEEPER}::test_secrets_that_everybody_can_read_are_refused_before_connecting",),
        dies_of=r"consumerd\.errors\.CoordinationError",
    ),
    Mutant(
        name="a-refused-claim-is-looked-into-later",
        promise=3,
        file="group/rights.py",
        old="        if self._waited:\n",
        new="        if not self._due.is_set():\n",
        tests=(
            "tests/unit/group/test_rights.py::test_a_claim_that_is_refused_soon_after_joining_gives_the_topic_up_at_once",
        ),
    ),
)
