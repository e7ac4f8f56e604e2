# SPDX-License-Identifier: Apache-2.0
"""What cannot be delivered, under each policy: never a record more than the unit, and never before it is recorded."""

import asyncio

import pytest

from consumerd.delivery.passing import blame_hole, describe_unit
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.delivery.stops import plan_stop
from consumerd.errors import ConfigError, CorruptMessageError, PermanentSinkError, RecordTooLarge, RetriableSinkError
from consumerd.model import Gap, GapReason, TopicPartition
from consumerd.wire.records import empty_batch
from tests.support.delivery import DeliveryRig, FakeSink
from tests.support.virtual_time import run
from tests.support.waiting import until

P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)

CORRUPT = CorruptMessageError("bad checksum", partition=P, offset=20, next_offset=23, raw=b"bytes")
TOO_LARGE = RecordTooLarge(P, 20, 1000, 2000, next_offset=23, raw=b"by")
BY_CAUSE = [("corrupt", CORRUPT, GapReason.CORRUPT, 5), ("oversized", TOO_LARGE, GapReason.SKIPPED, 2000)]


def settings(policy):
    return DeliverySettings(commit_interval_ms=1000, on_corrupt=policy, on_oversized=policy)


def told(logged, event):
    return [entry for entry in logged if entry["event"] == event]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CORRUPT, ": position 23 passes over it, offsets 20 to 22"),
        (CorruptMessageError("bad", offset=20, next_offset=21), ": position 21 passes over it, offset 20"),
        (
            CorruptMessageError("bad", offset=18, claimed_end=23),
            ": position 23 passes over it, offsets 18 to 22, as its header says, which may be damaged, too",
        ),
        (CorruptMessageError("bad", offset=20), ": it is not known where the damage ends"),
        (CorruptMessageError("no coordinates"), ""),
        (TOO_LARGE, ": position 23 passes over it, offsets 20 to 22, as its header says"),
        (RecordTooLarge(P, 20, 1000), ""),
    ],
)
def test_a_stop_says_what_a_position_behind_the_unit_would_leave_out(error, said):
    """An operator decides on it; to try one position after the other takes a stop each."""
    stop = plan_stop(error)

    assert stop.advice.startswith(str(error))
    assert stop.advice.endswith(f"`consumerd offsets set TOPIC/PARTITION=POSITION`{said}")


def test_a_stop_at_damage_advises_no_replica_where_logs_have_none():
    """In Kafka 0.7 an offset of an earlier log looks like damage, too."""
    assert "a replica whose copy is whole" in plan_stop(CORRUPT).advice
    advice = plan_stop(CORRUPT, replicated=False).advice
    assert "replica" not in advice
    assert "or the broker was wiped and its log is another one" in advice


@pytest.mark.parametrize(("cause", "error", "reason", "size"), BY_CAUSE)
@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_a_unit_that_cannot_be_read_leaves_a_gap_of_its_own_size(policy, cause, error, reason, size, logged):
    """The records on either side land, the gap lands with them, and everybody is told what is missing and why."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=5)
        async with DeliveryRig(sink=sink, settings=settings(policy)) as rig:
            rig.log(P, 0, 40).lasting_faults[20] = error
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            assert [*range(20), *range(23, 40)] == rig.landed(P)
            assert [Gap(20, 23, reason)] == sink.landed[P].gaps
            assert [(P, Gap(20, 23, reason))] == rig.hooks.named("gap_recorded")
            assert [(P, cause, policy == "quarantine")] == rig.hooks.named("unit_passed")
            if policy == "skip":
                assert [] == rig.quarantine.units
                return
            (unit,) = rig.quarantine.units
            assert (20, 23, 0, cause, str(error)) == (
                unit.offset,
                unit.next_offset,
                unit.index,
                unit.cause,
                unit.reason,
            )
            assert (error.raw, size) == (unit.raw, unit.size)

    run(scenario())
    (skipped,) = told(logged, "range_skipped")
    assert (20, 23, reason.value) == (skipped["start"], skipped["end"], skipped["reason"])
    assert "unknown" in skipped["records"]


@pytest.mark.parametrize("policy", ["stop", "skip", "quarantine"])
def test_a_codec_that_cannot_be_read_here_stops_whatever_the_policy(policy):
    """Nothing is wrong with those records: another member, or this one with the package, reads them."""

    async def scenario():
        async with DeliveryRig(settings=settings(policy)) as rig:
            missing = ConfigError("zstd: cannot be read, the package zstandard is not usable")
            log = rig.log(P, 0, 40)
            log.lasting_faults[20] = missing
            await rig.claim(P)
            await until(lambda: rig.status(P).reason is not None)
            assert 20 == rig.store.position(P)
            assert "zstandard" in rig.status(P).reason
            assert "missing library" in [reason for _, reason in rig.hooks.named("partition_stopped")]
            assert [] == rig.hooks.named("gap_recorded")
            del log.lasting_faults[20]
            await until(lambda: rig.store.position(P) == 40)
            assert list(range(40)) == rig.landed(P)

    run(scenario())


def test_nothing_beyond_a_unit_is_committed_before_the_sink_has_its_gap():
    """A crash in between must meet the unit again, not the offset behind it."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=30)
        async with DeliveryRig(sink=sink, settings=settings("skip")) as rig:
            log = rig.log(P, 0, 20)
            log.lasting_faults[20] = CORRUPT
            log.append(10)
            await rig.claim(P)
            await asyncio.sleep(20)
            assert (0, []) == (rig.store.position(P), rig.landed(P))
            rig.deliveries.statuses  # noqa: B018 - it is asked all the time
            await rig.deliveries.lost([P])
            assert [] == sink.landed[P].gaps
            await rig.claim(P, epoch=2)
            await until(lambda: rig.store.position(P) == 30)
            assert [Gap(20, 23, GapReason.CORRUPT)] == sink.landed[P].gaps
            assert [*range(20), *range(23, 30)] == rig.landed(P)

    run(scenario())


def test_the_unit_is_in_quarantine_before_the_position_moves():
    """Whatever dies after that, the bytes are there."""

    async def scenario():
        async with DeliveryRig(settings=settings("quarantine")) as rig:
            rig.log(P, 0, 40).lasting_faults[20] = CORRUPT
            seen = []
            rig.quarantine.before = lambda unit: seen.append((rig.status(P).position, unit.offset, rig.charged))
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            assert [(20, 20)] == [(position, offset) for position, offset, _ in seen]
            assert 2 * len(rig.quarantine.units[0].raw) == seen[0][2]  # its bytes, and those that writing takes
            assert 0 == rig.charged

    run(scenario())


def test_a_quarantine_that_fails_holds_its_partition_and_no_other():
    """A full disk there must not turn into a lost record."""

    async def scenario():
        async with DeliveryRig(settings=settings("quarantine")) as rig:
            rig.log(P, 0, 40).lasting_faults[20] = CORRUPT
            rig.log(Q, 0, 40)
            rig.quarantine.faults = [RetriableSinkError("disk full")] * 8
            await rig.claim(P)
            await rig.claim(Q)
            await until(lambda: rig.store.position(Q) == 40)
            await until(lambda: len(rig.quarantine.faults) < 4)
            assert (DeliveryState.FAILING, "disk full") == (rig.status(P).state, rig.status(P).reason)
            assert 20 == rig.status(P).position
            await until(lambda: rig.store.position(P) == 40)
            assert DeliveryState.RUNNING is rig.status(P).state
            assert 1 == len(rig.quarantine.units)

    run(scenario())


def test_a_drain_does_not_wait_for_a_quarantine_that_fails():
    """The next owner meets the unit again."""

    async def scenario():
        async with DeliveryRig(settings=settings("quarantine")) as rig:
            rig.log(P, 0, 40).lasting_faults[20] = CORRUPT
            rig.quarantine.faults = [RetriableSinkError("disk full")] * 10_000
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.FAILING)
            await rig.deliveries.drain([P], 3)
            assert 20 == rig.store.position(P)

    run(scenario())


def test_quarantine_without_a_place_stops_and_names_the_key():
    """Settings are checked at the start; an embedded use that forgets it must not lose the unit."""

    async def scenario():
        async with DeliveryRig(settings=settings("quarantine"), quarantine=False) as rig:
            rig.log(P, 0, 40).lasting_faults[20] = CORRUPT
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            assert "quarantine.path" in rig.status(P).reason
            assert 20 == rig.store.position(P)

    run(scenario())


# -- where the next unit begins is not known


@pytest.mark.parametrize("damage", [1, 2, 3, 7, 19])
def test_behind_a_unit_without_an_end_the_broker_is_asked_where_it_can_be_read_again(damage):
    """It seeks by an index of its own: what is passed over is what cannot be read, and not a record more."""

    async def scenario():
        async with DeliveryRig(settings=settings("skip")) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults = {
                at: CorruptMessageError("no size that can be", partition=P, offset=at) for at in range(20, 20 + damage)
            }
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            assert [*range(20), *range(20 + damage, 40)] == rig.landed(P)
            assert [(P, Gap(20, 20 + damage, GapReason.CORRUPT))] == rig.hooks.named("gap_recorded")

    run(scenario())


def test_damage_up_to_the_end_of_the_log_stops_until_something_readable_comes():
    """Nothing proves that the rest is unreadable rather than not yet written: no position is invented."""

    async def scenario():
        async with DeliveryRig(settings=settings("skip")) as rig:
            log = rig.log(P, 0, 30)
            log.lasting_faults = {
                at: CorruptMessageError("no size that can be", partition=P, offset=at) for at in range(20, 30)
            }
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            assert "cannot be passed over" in rig.status(P).reason
            assert [(P, "corrupt")] == rig.hooks.named("partition_stopped")
            assert 20 == rig.store.position(P)
            log.append(5)
            await until(lambda: rig.store.position(P) == 35)
            assert [*range(20), *range(30, 35)] == rig.landed(P)

    run(scenario())


def test_a_broker_that_does_not_answer_proves_nothing():
    """Silence behind a damaged unit is not damage: the partition waits where it is."""

    async def scenario():
        async with DeliveryRig(settings=settings("skip")) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults[20] = CorruptMessageError("no size that can be", partition=P, offset=20)
            log.silent_from = 21
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            assert 20 == rig.store.position(P)
            log.silent_from = None
            await until(lambda: rig.store.position(P) == 40)
            assert [*range(20), *range(21, 40)] == rig.landed(P)

    run(scenario())


def test_a_broker_that_is_away_for_a_moment_costs_no_record():
    """One silence during the search is asked about again."""

    async def scenario():
        async with DeliveryRig(settings=settings("skip")) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults[20] = CorruptMessageError("no size that can be", partition=P, offset=20)
            log.silent_from = 21
            await rig.claim(P)
            await asyncio.sleep(7)
            log.silent_from = None
            await until(lambda: rig.store.position(P) == 40)
            assert [*range(20), *range(21, 40)] == rig.landed(P)
            assert [] == rig.hooks.named("partition_stopped")

    run(scenario())


@pytest.mark.parametrize("silence_s", [12, 25, 300])
@pytest.mark.parametrize("damaged", [20, 21, 23])
def test_a_broker_that_is_away_in_the_middle_of_the_search_costs_no_record(silence_s, damaged):
    """An offset that nobody has answered for is not one that cannot be read."""

    async def scenario():
        async with DeliveryRig(settings=settings("skip")) as rig:
            log = rig.log(P, 0, 40)
            for at in range(20, damaged + 1):
                log.lasting_faults[at] = CorruptMessageError("no size that can be", partition=P, offset=at)
            log.silent_from = damaged + 1
            await rig.claim(P)
            await asyncio.sleep(silence_s)
            log.silent_from = None
            await until(lambda: rig.store.position(P) == 40)
            assert [*range(20), *range(damaged + 1, 40)] == rig.landed(P)

    run(scenario())


def test_news_in_the_middle_of_the_search_costs_no_record():
    """A look for a request cuts a try short, which says nothing of the log; and what is asked for goes first."""

    async def scenario():
        async with DeliveryRig(settings=settings("skip")) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults[20] = CorruptMessageError("no size that can be", partition=P, offset=20)
            log.silent_from = 21
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 20)
            for _ in range(5):
                await asyncio.sleep(0.3)
                for changed in rig.requests.watchers["t"]:
                    changed(P)
            log.silent_from = None
            await until(lambda: rig.store.position(P) == 40)
            assert [*range(20), *range(21, 40)] == rig.landed(P)
            assert [] == rig.hooks.named("partition_stopped")

    run(scenario())


def test_an_operator_is_heard_while_a_quarantine_fails():
    """Else its disk would have to be mended first, or the daemon be started again."""

    async def scenario():
        async with DeliveryRig(settings=settings("quarantine")) as rig:
            rig.log(P, 0, 40).lasting_faults[20] = CORRUPT
            rig.quarantine.faults = [RetriableSinkError("disk full")] * 10_000
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.FAILING)
            rig.requests.put(P, 30)
            await until(lambda: rig.store.position(P) == 40)
            assert [*range(20), *range(30, 40)] == rig.landed(P)
            assert DeliveryState.RUNNING is rig.status(P).state

    run(scenario())


def test_news_of_nothing_while_a_quarantine_fails_costs_no_record():
    """A look that finds no request goes back to where the refused record stands."""

    async def scenario():
        async with DeliveryRig(on_rejected="quarantine") as rig:
            rig.sink.poison = {20, 24}
            rig.log(P, 3, 40)
            rig.quarantine.faults = [RetriableSinkError("disk full")] * 8
            await rig.claim(P)
            reasons = set()
            while rig.store.position(P) != 40:
                for changed in rig.requests.watchers["t"]:
                    changed(P)
                reasons.add(rig.status(P).reason)
                await asyncio.sleep(0.2)
            assert {None, "disk full"} == reasons
            assert [*range(3, 20), *range(21, 24), *range(25, 40)] == rig.landed(P)
            assert [20, 24] == [unit.offset for unit in rig.quarantine.units]

    run(scenario())


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_records_between_damaged_units_are_read(policy):
    """Each of the units has an unknown end; what stands between them is not damaged."""
    damaged = [20, 24, 30, 31, 33]

    async def scenario():
        async with DeliveryRig(settings=settings(policy)) as rig:
            log = rig.log(P, 0, 60)
            for first, end in ((20, 23), (24, 25), (30, 31), (31, 32), (33, 38)):
                raw = f"unit {first}".encode()
                for at in range(first, end):
                    log.lasting_faults[at] = CorruptMessageError("no size", partition=P, offset=at, raw=raw)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 60)
            gone = {20, 21, 22, 24, 30, 31, 33, 34, 35, 36, 37}
            assert [offset for offset in range(60) if offset not in gone] == rig.landed(P)
            # what stands side by side is one unit as far as anybody can tell
            if policy == "quarantine":
                assert [one for one in damaged if one != 31] == [unit.offset for unit in rig.quarantine.units]

    run(scenario())


@pytest.mark.parametrize("end", [None, 25])
@pytest.mark.parametrize("later", ["corrupt", "oversized"])
def test_a_unit_behind_a_damaged_one_is_dealt_with_by_its_own_policy(later, end):
    """Passed over as the other kind, an operator's "stop" would mean nothing."""
    corrupt = CorruptMessageError(
        "no size", partition=P, next_offset=end if later == "corrupt" else None, raw=b"damage"
    )
    large = RecordTooLarge(P, 22, 1000, 2000, next_offset=end if later == "oversized" else None)
    first, second = (large, corrupt) if later == "corrupt" else (corrupt, large)
    policies = DeliverySettings(
        commit_interval_ms=1000,
        on_corrupt="stop" if later == "corrupt" else "skip",
        on_oversized="stop" if later == "oversized" else "skip",
    )

    async def scenario():
        async with DeliveryRig(settings=policies) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults = {20: first, 21: first, 22: second, 23: second, 24: second}
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            await asyncio.sleep(100)
            assert 22 == rig.store.position(P)
            assert [(P, later)] == rig.hooks.named("partition_stopped")
            assert list(range(20)) == rig.landed(P)

    run(scenario())


def test_a_broker_that_has_lost_its_way_behind_a_damaged_unit_is_asked_what_else_it_has():
    """It goes on with the next segment; an index of its own leads back into this one, where later records are whole."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=5)
        async with DeliveryRig(sink=sink, settings=settings("skip")) as rig:
            log = rig.log(P, 0, 80)
            log.lasting_faults[20] = CORRUPT
            log.holes = dict.fromkeys(range(23, 37), 70)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 80)
            assert [*range(20), *range(37, 80)] == rig.landed(P)
            assert [Gap(20, 23, GapReason.CORRUPT), Gap(23, 37, GapReason.CORRUPT)] == sink.landed[P].gaps

    run(scenario())


@pytest.mark.parametrize(("next_offset", "expected"), [(None, None), (20, None), (3, None), (21, 21)])
def test_an_end_that_does_not_move_the_position_is_none(next_offset, expected):
    """Else the same unit would be passed over for ever."""
    error = CorruptMessageError("bad", partition=P, offset=30, next_offset=next_offset)
    unit = describe_unit(error, 20)

    assert expected == unit.next_offset
    assert unit.next_offset is None or unit.offset < unit.next_offset


@pytest.mark.parametrize("reason", list(GapReason))
def test_a_hole_right_behind_a_damaged_unit_is_blamed_on_the_damage(reason):
    """A broker that loses its way in a segment goes on with the next: what it leaves out was not compacted away."""
    gaps = (Gap(20, 25, reason), Gap(27, 28, GapReason.COMPACTION))
    whole = empty_batch(P, 20, 30, gaps)
    blamed = GapReason.CORRUPT if reason is GapReason.COMPACTION else reason

    assert (Gap(20, 25, blamed), gaps[1]) == blame_hole(whole).gaps
    assert (gaps[1],) == blame_hole(empty_batch(P, 26, 30, gaps[1:])).gaps
    assert () == blame_hole(empty_batch(P, 26, 30)).gaps


def test_what_a_broker_leaves_out_behind_a_damaged_unit_is_told():
    """Else it would pass for compaction, of which nobody is told."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=5)
        async with DeliveryRig(sink=sink, settings=settings("skip")) as rig:
            log = rig.log(P, 0, 40)
            log.lasting_faults[20] = CORRUPT
            log.holes = dict.fromkeys(range(23, 30), 30) | {35: 37}
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 40)
            gaps = [Gap(20, 23, GapReason.CORRUPT), Gap(23, 30, GapReason.CORRUPT), Gap(35, 37, GapReason.COMPACTION)]
            assert gaps == sink.landed[P].gaps
            assert [*range(20), *range(30, 35), *range(37, 40)] == rig.landed(P)

    run(scenario())


# -- records that the sink refuses


@pytest.mark.parametrize(
    ("cause", "reason"),
    [("rejected", GapReason.SKIPPED), ("corrupt", GapReason.CORRUPT)],
)
@pytest.mark.parametrize("poison", [[0], [9], [5], [3, 4, 5], [0, 9], list(range(10)), [7, 12, 29]])
@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_what_a_sink_refuses_costs_these_records_alone(policy, poison, cause, reason):
    """First, last, neighbours, all of a batch: the rest lands, in order, once."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=5)
        async with DeliveryRig(sink=sink, settings=settings(policy), on_rejected=policy) as rig:
            log = rig.log(P, 0, 30)
            if cause == "rejected":
                sink.poison = set(poison)
            else:
                log.bad_headers = set(poison)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            assert [offset for offset in range(30) if offset not in poison] == rig.landed(P)
            assert [Gap(at, at + 1, reason) for at in poison] == sink.landed[P].gaps
            assert [(P, cause, policy == "quarantine")] * len(poison) == rig.hooks.named("unit_passed")
            assert [] == rig.hooks.named("partition_stopped")
            if policy == "quarantine":
                kept = [(unit.offset, unit.next_offset, unit.cause) for unit in rig.quarantine.units]
                assert [(at, at + 1, cause) for at in poison] == kept
                assert all(unit.record.offset == unit.offset for unit in rig.quarantine.units)

    run(scenario())


def test_a_refusal_of_nothing_in_particular_stops_whatever_the_policy():
    """A path, a setting: there is no record to pass over, and passing over all would be a disaster."""

    async def scenario():
        async with DeliveryRig(on_rejected="skip") as rig:

            async def trap(step, _writer, batch):
                if step == "write" and batch.start == 20:
                    raise PermanentSinkError("the path is another group's")

            rig.sink.trap = trap
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            assert 20 == rig.store.position(P)
            await asyncio.sleep(100)
            assert [(P, False)] == rig.hooks.named("sink_failed")  # told once, however often it is looked at

    run(scenario())


def test_a_refused_record_stops_by_default_and_says_which_setting_would_not():
    """The default loses nothing."""

    async def scenario():
        async with DeliveryRig() as rig:
            rig.sink.poison = {25}
            rig.log(P, 0, 40)
            await rig.claim(P)
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            assert "on_rejected" in rig.status(P).reason
            assert list(range(20)) == rig.landed(P)

    run(scenario())


def test_a_sink_that_drops_what_it_held_gets_the_rest_of_a_batch_again():
    """Between the halves of a batch a file may fail: nothing of the first half is lost, nothing refused is delivered."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=5)
        async with DeliveryRig(sink=sink, settings=settings("skip"), on_rejected="skip") as rig:
            sink.poison = {5}
            failures = [1]

            async def trap(step, writer, batch):
                if step == "write" and batch.start == 5 and failures:
                    failures.pop()
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            sink.trap = trap
            rig.log(P, 0, 30)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            assert [offset for offset in range(30) if offset != 5] == rig.landed(P)
            assert [Gap(5, 6, GapReason.SKIPPED)] == sink.landed[P].gaps

    run(scenario())


def test_a_refused_record_is_passed_over_only_once_what_comes_before_it_was_taken():
    """Else it is told twice: what the sink dropped is read again, and the record with it."""

    async def scenario():
        sink = FakeSink(buffered=True, keeps_chains=True, roll_s=5)
        async with DeliveryRig(sink=sink, settings=settings("quarantine"), on_rejected="quarantine") as rig:
            sink.poison = {5}
            kept = []

            async def trap(step, writer, batch):
                if step == "write" and (batch.start, batch.next_offset) == (0, 5) and not kept:
                    kept.append(list(rig.quarantine.units))
                    writer.drop()
                    raise RetriableSinkError("disk full", resume_position=writer.safe)

            sink.trap = trap
            rig.log(P, 0, 30)
            await rig.claim(P)
            await until(lambda: rig.store.position(P) == 30)
            assert [[]] == kept
            assert [offset for offset in range(30) if offset != 5] == rig.landed(P)
            assert [(P, "rejected", True)] == rig.hooks.named("unit_passed")
            assert [5] == [unit.offset for unit in rig.quarantine.units]

    run(scenario())


# -- Kafka 0.7: no high watermark limits what a header claims


@pytest.mark.parametrize(
    ("later", "is_passed"),
    [
        pytest.param({}, True, id="records at the claimed end"),
        pytest.param({23: RecordTooLarge(P, 23, 1000, 2000, next_offset=25)}, True, id="a second one, then records"),
        pytest.param({23: RecordTooLarge(P, 23, 1000, 2000)}, False, id="a second one of unknown size"),
        pytest.param({23: RecordTooLarge(P, 23, 1000, 2000, next_offset=90)}, False, id="a second one beyond the end"),
        pytest.param({23: CorruptMessageError("bad", offset=23, next_offset=24)}, False, id="no message there"),
    ],
)
def test_the_size_of_an_oversized_message_is_believed_if_records_follow_it(later, is_passed):
    """A damaged length could pass over the rest of the log: nothing else in Kafka 0.7 tells that it is wrong."""

    async def scenario():
        async with DeliveryRig(settings=DeliverySettings(on_oversized="skip", recheck_ms=500)) as rig:
            log = rig.log(P, 0, 40)
            log.reports_end = False
            log.lasting_faults |= {20: TOO_LARGE, **later}
            await rig.claim(P)
            if is_passed:
                await until(lambda: rig.store.position(P) == 40)
                assert Gap(20, 23, GapReason.SKIPPED) in rig.sink.landed[P].gaps
                return
            await until(lambda: rig.status(P).reason is not None)
            assert 20 == rig.store.position(P)
            assert "no readable record was found after it; this is retried" in rig.status(P).reason
            for offset in later:
                del log.lasting_faults[offset]  # the log goes on, or the broker reads its disk again
            await until(lambda: rig.store.position(P) == 40)

    run(scenario())


def test_an_oversized_message_at_the_end_of_the_log_waits_for_the_next_one():
    """Nothing confirms its end yet, and nothing is lost by waiting."""

    async def scenario():
        async with DeliveryRig(settings=DeliverySettings(on_oversized="skip", recheck_ms=500)) as rig:
            log = rig.log(P, 0, 23)
            log.reports_end = False
            log.lasting_faults[20] = TOO_LARGE
            await rig.claim(P)
            await until(lambda: rig.status(P).reason is not None)
            assert 20 == rig.store.position(P)
            log.append(5)
            await until(lambda: rig.store.position(P) == 28)

    run(scenario())
