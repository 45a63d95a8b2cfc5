"""Playout: leases on one speaker, sample-exact, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine

import numpy as np
import pytest

from voicepipe.clock import run_virtual
from voicepipe.frames import AudioFrame
from voicepipe.playout import DUCK_GAIN, MAX_BUFFERED_S, Lease, LeaseWatch, Playout
from voicepipe.transports import MemoryTransport

RATE_HZ = 24_000
FRAME = RATE_HZ // 50
WORDS = [f"w{n} " for n in range(50)]  # one word each 20 ms: one second of reply


@dataclasses.dataclass
class Notes:
    """What a lease told its owner."""

    ready: int = 0
    sounding: list[tuple[float, bool]] = dataclasses.field(default_factory=list)
    underruns: list[float] = dataclasses.field(default_factory=list)

    def watch(self) -> LeaseWatch:
        def ready() -> None:
            self.ready += 1

        return LeaseWatch(
            ready, lambda t_s, on: self.sounding.append((t_s, on)), self.underruns.append
        )


def frame(level: int, text: str = "", n: int = FRAME) -> AudioFrame:
    return AudioFrame(np.full(n, level, np.int16), RATE_HZ, 0, text)


def reply_frames() -> list[AudioFrame]:
    """Fifty frames, each of its own level, so that every sample says where it came from."""
    return [frame(1000 + 10 * n, word) for n, word in enumerate(WORDS)]


async def fill(lease: Lease, frames: list[AudioFrame]) -> None:
    for one in frames:
        await lease.write(one)
    lease.close()


def in_call(
    scene: Callable[[Playout, MemoryTransport], Coroutine[None, None, None]],
) -> MemoryTransport:
    """Run `scene` in virtual time with an open transport; returns the transport."""

    async def main() -> MemoryTransport:
        transport = MemoryTransport([], output_rate_hz=RATE_HZ)
        async with transport.open():
            await scene(Playout(transport), transport)
        return transport

    return run_virtual(main())


def test_plays_every_sample_once_and_in_order() -> None:
    notes = Notes()

    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        await asyncio.sleep(0.5)
        lease = playout.lease(notes.watch(), held=False)
        async with asyncio.TaskGroup() as group:
            group.create_task(fill(lease, reply_frames()))
            group.create_task(lease.play())
        assert transport.now_s() == pytest.approx(1.5)
        assert lease.heard_text == "".join(WORDS)
        assert lease.stopped_s == pytest.approx(1.5)

    track = in_call(scene).agent.samples()
    spoken = np.concatenate([one.samples for one in reply_frames()])
    np.testing.assert_array_equal(track, np.concatenate([np.zeros(RATE_HZ // 2, np.int16), spoken]))
    assert notes == Notes(1, [(0.5, True), (1.5, False)])


def test_never_sends_further_ahead_than_the_lead() -> None:
    ahead: list[float] = []

    class Watching(MemoryTransport):
        async def play(self, frame: AudioFrame) -> None:
            ahead.append(frame.start_s - self.now_s())
            await super().play(frame)

    async def main() -> None:
        transport = Watching([], output_rate_hz=RATE_HZ)
        async with transport.open():
            lease = Playout(transport).lease(Notes().watch(), held=False)
            async with asyncio.TaskGroup() as group:
                group.create_task(fill(lease, reply_frames()))
                group.create_task(lease.play())

    run_virtual(main())
    assert max(ahead) <= MemoryTransport.lead_s + 1e-9
    assert ahead[-1] == pytest.approx(MemoryTransport.lead_s)


def test_a_held_lease_is_inaudible_until_released() -> None:
    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        lease = playout.lease(Notes().watch(), held=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(fill(lease, reply_frames()))
            group.create_task(lease.play())
            await asyncio.sleep(0.7)
            assert lease.ready
            assert not transport.agent.frames
            lease.release()
        assert transport.agent.frames[0].start_s == pytest.approx(0.7)

    in_call(scene)


def test_leading_silence_is_trimmed_but_its_text_is_kept() -> None:
    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        notes = Notes()
        lease = playout.lease(notes.watch(), held=False)
        late = np.zeros(FRAME, np.int16)
        late[200:] = 5000
        frames = [frame(0, "Well, "), frame(50, ""), AudioFrame(late, RATE_HZ, 0, "yes.")]
        async with asyncio.TaskGroup() as group:
            group.create_task(fill(lease, frames))
            group.create_task(lease.play())
        assert lease.heard_text == "Well, yes."
        assert transport.agent.frames[0].n_samples == FRAME - 200 + 120  # 5 ms before the onset
        began_s, on = notes.sounding[0]
        assert on
        assert began_s == pytest.approx(120 / RATE_HZ)

    in_call(scene)


@pytest.mark.parametrize("at_ms", range(10, 1000, 10))
def test_revoking_stops_at_once_and_knows_what_was_heard(at_ms: int) -> None:
    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        lease = playout.lease(Notes().watch(), held=False)
        async with asyncio.TaskGroup() as group:
            group.create_task(fill(lease, reply_frames()))
            group.create_task(lease.play())
            await asyncio.sleep(at_ms / 1000)
            lease.revoke()
        assert lease.stopped_s == pytest.approx(at_ms / 1000, abs=1e-4)
        assert lease.heard_text == "".join(WORDS[: (at_ms + 19) // 20])
        await asyncio.sleep(1.0)
        track = transport.agent.samples()
        assert len(track) == at_ms * RATE_HZ // 1000
        spoken = np.concatenate([one.samples for one in reply_frames()])
        np.testing.assert_array_equal(track, spoken[: len(track)])

    in_call(scene)


@pytest.mark.parametrize("at_ms", range(10, 1000, 70))
def test_hold_and_release_goes_on_from_the_last_heard_sample(at_ms: int) -> None:
    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        lease = playout.lease(Notes().watch(), held=False)
        async with asyncio.TaskGroup() as group:
            group.create_task(fill(lease, reply_frames()))
            group.create_task(lease.play())
            await asyncio.sleep(at_ms / 1000)
            lease.hold()
            await asyncio.sleep(0.3)
            assert lease.heard_text == "".join(WORDS[: (at_ms + 19) // 20])
            lease.release()
        assert lease.heard_text == "".join(WORDS)
        cut, gap = at_ms * RATE_HZ // 1000, 3 * RATE_HZ // 10
        spoken = np.concatenate([one.samples for one in reply_frames()])
        expected = np.concatenate([spoken[:cut], np.zeros(gap, np.int16), spoken[cut:]])
        np.testing.assert_array_equal(transport.agent.samples(), expected)

    in_call(scene)


def test_ducking_lowers_the_voice_without_a_click() -> None:
    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        lease = playout.lease(Notes().watch(), held=False)
        async with asyncio.TaskGroup() as group:
            group.create_task(fill(lease, [frame(10_000, "a") for _ in range(50)]))
            group.create_task(lease.play())
            await asyncio.sleep(0.4)
            lease.duck()
            await asyncio.sleep(0.2)
            lease.unduck()
        track = transport.agent.samples().astype(int)
        quiet = track[int(0.5 * RATE_HZ) : int(0.6 * RATE_HZ)]
        assert set(quiet) == {int(10_000 * DUCK_GAIN)}
        assert track[-1] == 10_000
        assert np.abs(np.diff(track)).max() < 50

    in_call(scene)


def test_a_writer_waits_when_the_buffer_is_full_and_leaves_when_it_is_revoked() -> None:
    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        lease = playout.lease(Notes().watch(), held=True)
        n_written = 0

        async def write() -> None:
            nonlocal n_written
            for _ in range(1000):
                await lease.write(frame(5000))
                n_written += 1

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(lease.play())
            await asyncio.sleep(1.0)
            assert n_written == MAX_BUFFERED_S * 50 + 1
            lease.revoke()
        assert not transport.agent.frames

    in_call(scene)


def test_late_audio_is_counted_as_an_underrun() -> None:
    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        notes = Notes()
        lease = playout.lease(notes.watch(), held=False)
        async with asyncio.TaskGroup() as group:
            group.create_task(lease.play())
            await lease.write(frame(5000))
            await asyncio.sleep(0.25)
            await lease.write(frame(5000))
            lease.close()
        assert notes.underruns == [pytest.approx(0.23)]

    in_call(scene)


def test_a_second_reply_follows_the_first_without_overlap() -> None:
    async def scene(playout: Playout, transport: MemoryTransport) -> None:
        for _ in range(2):
            lease = playout.lease(Notes().watch(), held=False)
            async with asyncio.TaskGroup() as group:
                group.create_task(fill(lease, reply_frames()))
                group.create_task(lease.play())
        assert len(transport.agent.samples()) == 2 * RATE_HZ

    in_call(scene)
