"""Who may speak: at most one live turn (the caller may hear it) and one held one (inaudible).

What must take effect at once (release, hold, revoke) is synchronous. What has to wait for a task
to end - above all the next reply, which forks the conversation as the last one left it - happens
in order in `run`, the one place where turns begin and are concluded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from voicepipe import events as ev
from voicepipe.history import History
from voicepipe.pipeline import ReplyWatch
from voicepipe.playout import LeaseWatch, Playout
from voicepipe.protocols import AgentState, Conversation
from voicepipe.turn import Turn, TurnOutcome, Voice
from voicepipe.wording import same_words

MAX_STEPS = 256
"""Turns that may wait to begin or to be concluded; a session has two or three at most."""


@dataclass(frozen=True, slots=True)
class FloorWatch:
    """What the session is told; all synchronous."""

    publish: Callable[[ev.Event], None]
    agent_state: Callable[[AgentState], None]
    """Sound of the agent begins or ends to flow."""
    pipeline_ready: Callable[[bool], None]
    """A held reply was begun (False) or has audible audio (True)."""


class Floor:
    """The turns of one session. `run` is its task; everything else is called by the session."""

    def __init__(
        self,
        playout: Playout,
        conversation: Conversation,
        history: History,
        watch: FloorWatch,
    ) -> None:
        self._playout = playout
        self._conversation = conversation
        self._history = history
        self._watch = watch
        self._publish = watch.publish
        self._live: Turn | None = None
        self._held: Turn | None = None
        self._unfinished: list[Turn] = []
        self._tasks: dict[Turn, asyncio.Task[None]] = {}
        self._steps: asyncio.Queue[Turn | None] = asyncio.Queue(MAX_STEPS)
        self._n_turns = 0
        self._speaking = False

    @property
    def idle(self) -> bool:
        """Whether no reply is live or held."""
        return self._live is None and self._held is None

    # -- decisions, all synchronous ------------------------------------------------------------

    def prepare(self, text: str) -> None:
        """Weak evidence: make a reply to `text`, inaudibly. Replaces a held one."""
        self.discard()
        self.interrupt()
        self._watch.pipeline_ready(False)
        self._held = self._open(text, held=True)

    def commit(self, text: str) -> None:
        """The caller is done with `text`: release the held reply if it answers that, else make
        one now."""
        self.interrupt()
        turn = self._held
        if turn is None or self._is_over(turn) or not same_words(turn.text, text):
            self.discard()
            self._live = self._open(text, held=False)
            return
        self._held, self._live = None, turn
        turn.committed = True
        if turn.reply is not None:
            turn.reply.release()
        self._publish(ev.TurnReleased(t_media_s=self._now_s(), turn=turn.number))
        turn.lease.release()

    def discard(self) -> None:
        """The caller went on: the held reply is dropped."""
        if self._held is not None:
            self._end(self._held, "superseded")
            self._held = None

    def interrupt(self, *, since_s: float = math.nan) -> None:
        """The live reply is over; what was heard of it enters history. `since_s` is the media
        time of the caller's first voiced sample."""
        turn = self._live
        if turn is None:
            return
        if math.isnan(turn.barged_since_s):
            turn.barged_since_s = since_s
        self._live = None
        self._end(turn, "interrupted")
        self._tell(False, self._now_s())

    def reopen(self) -> None:
        """The caller went on after the end of the turn: flush the reply and take the turn back."""
        self.discard()
        if self._live is not None:
            self._live.reopened = True
            self.interrupt()
        else:
            self._history.reopen()
            self._conversation.reopen()

    def silence(self, *, since_s: float) -> None:
        """The caller seems to take the floor: no sound from here on, until `resume` or
        `interrupt`."""
        if self._live is not None:
            self._live.barged_since_s = since_s
            self._live.lease.hold()

    def resume(self) -> None:
        """It was nothing: full volume, and on from the last sample that was heard."""
        if self._live is not None:
            self._live.barged_since_s = math.nan
            self._live.lease.unduck()
            self._live.lease.release()

    def duck(self) -> None:
        if self._live is not None:
            self._live.lease.duck()

    # -- turns ---------------------------------------------------------------------------------

    def _open(self, text: str, *, held: bool) -> Turn:
        number = self._n_turns
        self._n_turns += 1

        lease = self._playout.lease(
            LeaseWatch(
                ready=lambda: self._ready(turn),
                sounding=lambda t_s, on: self._sounding(turn, t_s, on),
                underrun=self._underrun,
            ),
            held=held,
        )
        watch = ReplyWatch(
            first_token=lambda: self._publish(ev.FirstToken(t_media_s=self._now_s(), turn=number)),
            first_phrase=lambda phrase: self._publish(
                ev.FirstPhrase(t_media_s=self._now_s(), turn=number, text=phrase)
            ),
        )
        turn = Turn(number, text, lease, watch)
        self._unfinished.append(turn)
        self._publish(ev.TurnStarted(t_media_s=self._now_s(), turn=number, text=text, held=held))
        self._steps.put_nowait(turn)
        return turn

    def _end(self, turn: Turn, intent: ev.TurnStatus) -> None:
        """Silence it at once and have its task end; `run` concludes it."""
        if self._is_over(turn):
            return
        turn.intent = intent
        turn.lease.revoke()
        if turn in self._tasks:
            self._tasks[turn].cancel()

    def _is_over(self, turn: Turn) -> bool:
        """Whether it ended by itself and only waits to be concluded."""
        return turn in self._tasks and self._tasks[turn].done()

    def _ready(self, turn: Turn) -> None:
        self._publish(ev.AudioReady(t_media_s=self._now_s(), turn=turn.number))
        if turn is self._held:
            self._watch.pipeline_ready(True)

    def _sounding(self, turn: Turn, t_s: float, on: bool) -> None:
        if on and not turn.audible:
            turn.audible = True
            self._publish(ev.FirstAudio(t_media_s=t_s, turn=turn.number))
        silenced_for_now = turn is self._live and turn.lease.held
        if on or not silenced_for_now:
            self._tell(on, t_s)

    def _tell(self, speaking: bool, t_s: float) -> None:
        """Turn detection knows the agent as speaking also while a barge-in is unconfirmed."""
        if speaking != self._speaking:
            self._speaking = speaking
            self._watch.agent_state(AgentState(speaking, t_s))

    def _underrun(self, gap_s: float) -> None:
        detail = f"the reply paused for {gap_s * 1000:.0f} ms because its next sound came late"
        self._publish(ev.Fault(t_media_s=self._now_s(), kind="underrun", detail=detail))

    def _now_s(self) -> float:
        return self._playout.now_sample() / self._playout.rate_hz

    # -- the task ------------------------------------------------------------------------------

    async def run(self, voice: Voice) -> None:
        """Begin and conclude turns in order, until `close`. Cancelled or closed, it ends what
        still runs and concludes it."""
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    while (turn := await self._steps.get()) is not None:
                        if turn in self._tasks or turn not in self._unfinished:
                            self._conclude(turn)
                        else:
                            await self._begin(turn, group, voice)
                finally:
                    self.discard()
                    self.interrupt()
        finally:
            for turn in tuple(self._unfinished):
                self._conclude(turn)

    def close(self) -> None:
        """The caller is gone."""
        self._steps.put_nowait(None)

    async def _begin(self, turn: Turn, group: asyncio.TaskGroup, voice: Voice) -> None:
        for earlier in tuple(self._unfinished[: self._unfinished.index(turn)]):
            if earlier.intent == "superseded":
                continue  # leaves no trace, so nothing has to wait for it
            if earlier in self._tasks:
                await asyncio.wait([self._tasks[earlier]])
            self._conclude(earlier)
        if turn.intent is not None:
            self._conclude(turn)
            return
        reply = self._conversation.reply(turn.text, held=not turn.committed)
        task = group.create_task(turn.run(reply, voice))
        self._tasks[turn] = task
        task.add_done_callback(functools.partial(self._done, turn))

    def _done(self, turn: Turn, _: asyncio.Task[None]) -> None:
        self._steps.put_nowait(turn)

    def _conclude(self, turn: Turn) -> None:
        """The turn's task is over: write history once, and say how it ended. Idempotent."""
        if turn not in self._unfinished:
            return
        self._unfinished.remove(turn)
        self._tasks.pop(turn, None)
        if turn is self._live:
            self._live = None
        if turn is self._held:  # it failed before it was needed; `commit` makes another
            self._held = None
        outcome = turn.outcome
        self._remember(turn, outcome)
        if outcome.fault is not None:
            kind, detail = outcome.fault.kind, str(outcome.fault)
            self._publish(ev.Fault(t_media_s=self._now_s(), kind=kind, detail=detail))
        self._publish(
            ev.TurnFinished(
                t_media_s=self._now_s(),
                turn=turn.number,
                status=outcome.status,
                user_text=turn.text,
                text=outcome.text,
                heard_text=outcome.heard_text,
                error=str(outcome.fault or ""),
                stop_ms=outcome.stop_ms,
                **dataclasses.asdict(outcome.stats),
            )
        )

    def _remember(self, turn: Turn, outcome: TurnOutcome) -> None:
        """Conversation and history now hold what was said and heard - or nothing of the turn."""
        reply, heard = turn.reply, outcome.heard_text
        if not turn.committed or turn.reopened:
            if reply is not None:
                reply.drop()
            return
        if reply is not None and heard:
            reply.adopt()
            if heard != outcome.text:
                self._conversation.truncate(heard)
        else:
            if reply is not None:
                reply.drop()
            self._conversation.add_user_text(turn.text)
        self._history.turn(turn.text, heard)
