# SPDX-License-Identifier: Apache-2.0
"""Mutants of the sink http: what acknowledges, what is sent again, what is refused, and what nobody may see."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SINK = "tests/component/sinks/test_http_sink.py::"
_DELIVERY = "tests/component/sinks/test_http_delivery.py::"
_OUTBOX = "tests/unit/sinks/test_http_outbox.py::"
_ANSWERS = "tests/unit/sinks/test_http_answers.py::"
_OPTIONS = "tests/unit/sinks/test_http_options.py::"

HTTP_SINK: Final = (
    Mutant(
        name="a-run-behind-one-that-failed-is-acknowledged",
        promise=1,
        file="sinks/http/outbox.py",
        old="        while self._ready and self._ready[0].accepted:\n            run = self._ready.popleft()\n",
        new=(
            "        while any(one.accepted for one in self._ready):\n"
            "            run = next(one for one in self._ready if one.accepted)\n"
            "            self._ready.remove(run)\n"
        ),
        tests=(f"{_OUTBOX}test_position_moves_over_accepted_runs_in_order",),
    ),
    Mutant(
        name="an-open-run-is-acknowledged",
        promise=1,
        file="sinks/http/outbox.py",
        old="        if self._open.lines:\n            self._open.ends[-1] = position\n        elif self._ready:\n",
        new="        if self._ready:\n",
        tests=(
            f"{_OUTBOX}test_gaps_are_acknowledged_with_the_record_before_them",
            f"{_SINK}test_gaps_move_the_position_without_a_request",
        ),
    ),
    Mutant(
        name="a-response-that-is-cut-acknowledges",
        promise=1,
        file="sinks/http/endpoint.py",
        old="                await _drop_content(response)\n                result",
        new="                result",
        tests=(f"{_SINK}test_response_that_is_cut_is_no_acknowledgement",),
    ),
    Mutant(
        name="a-wrong-address-refuses-records",
        promise=1,
        file="sinks/http/answers.py",
        old="    return AnswerKind.RECORD_REFUSED if status in _OF_A_RECORD else AnswerKind.WRONG_ADDRESS\n",
        new="    return AnswerKind.RECORD_REFUSED\n",
        tests=(
            f"{_ANSWERS}test_status_codes",
            f"{_DELIVERY}test_wrong_address_stops_whatever_the_policy",
        ),
    ),
    Mutant(
        name="a-conflict-of-keys-refuses-records",
        promise=1,
        file="sinks/http/answers.py",
        old="_RETRIED: Final = frozenset({408, 409, 425, 429})\n_OF_A_RECORD: Final = frozenset({400, 413, 422})\n",
        new="_RETRIED: Final = frozenset({408, 425, 429})\n_OF_A_RECORD: Final = frozenset({400, 409, 413, 422})\n",
        tests=(f"{_ANSWERS}test_status_codes", f"{_SINK}test_busy_server_gets_the_same_request_again"),
        dies_of="PermanentSinkError|consumerd.errors.PermanentSinkError",
    ),
    Mutant(
        name="redirects-are-followed",
        promise=0,
        file="sinks/http/endpoint.py",
        old="                allow_redirects=False,\n",
        new="",
        tests=(f"{_SINK}test_redirects_are_not_followed",),
    ),
    Mutant(
        name="a-request-without-the-claim",
        promise=3,
        file="sinks/http/sink.py",
        old="                claim.check()  # right before the request: after it, records may be the next owner's\n",
        new="",
        tests=(f"{_SINK}test_nothing_is_sent_without_the_claim", f"{_SINK}test_paused_claim_is_waited_for"),
        dies_of="ExceptionGroup|BaseExceptionGroup",
    ),
    Mutant(
        name="keys-without-the-incarnation",
        promise=0,
        file="sinks/http/outbox.py",
        old="    parts = (cluster_id, partition.topic, str(incarnation), str(partition.partition))\n",
        new="    parts = (cluster_id, partition.topic, str(partition.partition))\n",
        tests=(f"{_OUTBOX}test_key_names_cluster_topic_incarnation_partition_and_records",),
    ),
    Mutant(
        name="keys-without-the-truncation",
        promise=0,
        file="sinks/http/writer.py",
        old="        incarnation = self._claim.incarnation.truncated(start.truncation)\n",
        new="        incarnation = self._claim.incarnation\n",
        tests=(f"{_SINK}test_truncation_of_the_log_changes_the_keys",),
    ),
    Mutant(
        name="keys-without-the-number-within-a-message",
        promise=0,
        file="sinks/http/outbox.py",
        old='        return f"{self.offsets[row]}.{index}" if index else str(self.offsets[row])\n',
        new="        return str(self.offsets[row])\n",
        tests=(f"{_OUTBOX}test_key_tells_records_that_share_an_offset_apart",),
    ),
    Mutant(
        name="runs-end-with-batches",
        promise=0,
        file="sinks/http/writer.py",
        old="        self._outbox.reach(batch.next_offset)\n",
        new="        self._outbox.reach(batch.next_offset)\n        self._outbox.cut()\n",
        tests=(f"{_SINK}test_full_requests_are_sent_at_once_and_the_rest_by_flush",),
    ),
    Mutant(
        name="a-pause-is-one-partitions",
        promise=0,
        file="sinks/http/sink.py",
        old="            self._endpoint.check_pause()\n",
        new="",
        tests=(f"{_SINK}test_retry_after_keeps_every_partition_waiting",),
    ),
    Mutant(
        name="a-pause-is-not-waited-for",
        promise=0,
        file="delivery/calls.py",
        old="        await self._signals.rest(max(pause_s, asked_s))\n",
        new="        await self._signals.rest(pause_s)\n",
        tests=("tests/unit/delivery/test_failures.py::test_a_destination_that_asks_for_a_pause_gets_it",),
    ),
    Mutant(
        name="a-server-may-ask-for-a-year",
        promise=0,
        file="sinks/http/endpoint.py",
        old="        asked_s = min(asked_s, self._options.max_retry_after_ms / 1000)\n",
        new="",
        tests=(f"{_SINK}test_retry_after_keeps_every_partition_waiting",),
    ),
    Mutant(
        name="a-date-is-compared-with-our-clock",
        promise=0,
        file="sinks/http/answers.py",
        old="    return max(0.0, until - (now_s if sent is None else sent))\n",
        new="    return max(0.0, until - now_s)\n",
        tests=(f"{_ANSWERS}test_a_date_is_compared_with_the_servers_own_clock",),
    ),
    Mutant(
        name="a-refused-record-takes-its-request-along",
        promise=1,
        file="sinks/http/writer.py",
        old="                    if len(run) == 1:\n",
        new="                    if len(run) >= 1:\n",
        tests=(
            f"{_SINK}test_request_that_is_too_large_is_halved",
            f"{_SINK}test_refused_record_is_found",
            f"{_DELIVERY}test_refused_records_are_skipped_one_by_one",
        ),
        dies_of="consumerd.errors.RetriableSinkError|consumerd.errors.PermanentSinkError|TimeoutError",
    ),
    Mutant(
        name="what-is-before-a-refused-record-comes-again",
        promise=0,
        file="sinks/http/writer.py",
        old="        if batch is not None and batch.start == acknowledged and (row",
        new="        if batch is not None and (row",
        tests=(f"{_SINK}test_refused_record_is_found",),
        dies_of="consumerd.errors.PermanentSinkError",
    ),
    Mutant(
        name="a-partition-has-two-requests-under-way",
        promise=0,
        file="sinks/http/writer.py",
        old="        while runs := self._outbox.next_runs(self._at_once):\n",
        new="        while runs := self._outbox.next_runs(2):\n",
        tests=(f"{_SINK}test_one_request_of_a_partition_at_a_time_and_a_limit_for_all",),
    ),
    Mutant(
        name="memory-of-requests-has-no-bound",
        promise=4,
        file="sinks/http/writer.py",
        old="        if self._account() and not self._outbox.is_empty:\n",
        new="        if False:\n",
        tests=(f"{_SINK}test_memory_of_all_writers_is_bounded",),
        dies_of="consumerd.errors.RetriableSinkError",
    ),
    Mutant(
        name="memory-of-failed-requests-has-no-bound",
        promise=4,
        file="sinks/http/memory.py",
        old="total == 0 or total + needed <= self._limit)\n",
        new="True)\n",
        tests=(f"{_SINK}test_memory_is_bounded_while_the_server_is_away",),
    ),
    Mutant(
        name="a-token-is-read-once",
        promise=0,
        file="access/credential_file.py",
        old="            if _mark(found) != self._seen:\n",
        new="            if not self._seen:\n",
        tests=(
            f"{_OPTIONS}test_credential_is_read_again_when_its_file_changes",
            f"{_SINK}test_token_is_rotated_without_a_restart",
        ),
        dies_of="consumerd.errors.RetriableSinkError",
    ),
    Mutant(
        name="a-token-for-every-user",
        promise=0,
        file="access/credential_file.py",
        old="            if is_exposed(found.st_mode):\n",
        new="            if False:\n",
        tests=(f"{_OPTIONS}test_credential_that_everybody_may_read_is_refused",),
    ),
    Mutant(
        name="messages-show-the-whole-url",
        promise=0,
        file="sinks/http/endpoint.py",
        old="    parts = urlsplit(url)\n    return f\"{parts.scheme}://{parts.netloc.rpartition('@')[2]}\"\n",
        new="    return url\n",
        tests=(
            f"{_SINK}test_server_that_is_away_is_waited_for",
            f"{_SINK}test_redirects_are_not_followed",
            f"{_DELIVERY}test_server_that_is_away_is_shown_until_it_is_back",
        ),
    ),
    Mutant(
        name="a-proxy-of-the-environment-is-used-unasked",
        promise=0,
        file="sinks/http/sink.py",
        old="            proxies = getproxies_environment() if options.proxy_from_environment else {}\n",
        new="            proxies = getproxies_environment()\n",
        tests=(f"{_SINK}test_proxy_is_used_only_if_it_is_allowed",),
    ),
    Mutant(
        name="what-a-slow-batch-has-made-safe-is-not-committed",
        promise=0,
        file="sinks/http/writer.py",
        old="    def finished_position(self) -> int:\n",
        new="    def unused_position(self) -> int:\n",
        tests=(f"{_DELIVERY}test_request_that_is_not_answered_in_time_is_the_next_owners",),
        dies_of="TimeoutError|ExceptionGroup|BaseExceptionGroup",
    ),
    Mutant(
        name="a-call-that-makes-progress-hangs",
        promise=0,
        file="delivery/condition.py",
        old="            self._call = *self._call[:2], self._now()\n",
        new="            pass\n",
        tests=("tests/unit/delivery/test_failures.py::test_a_call_that_makes_progress_does_not_hang",),
    ),
)
