"""The real session behind the real server, with scripted stages: a client with its own clock."""

from collections.abc import Sequence

import numpy as np
from websockets.asyncio.client import connect

from budgets import TurnLedgers
from stages.llm import ScriptedLLM
from tests.conversation import REPLY, says, scripted
from tests.served import becomes_idle, others, timed, until, url
from tests.ws_client import AUDIBLE, Heard, converse
from voicepipe import Session
from voicepipe.call import MakeSession
from voicepipe.protocols import Observer, Transport
from voicepipe.server import serve
from voicepipe.transports import Cue


def agent(*replies: str) -> MakeSession:
    stages = scripted(["What is the time?", "No, I meant the date"], llm=ScriptedLLM(replies))

    def make_session(transport: Transport, observers: Sequence[Observer]) -> Session:
        return Session(transport, stages, observers=observers)

    return make_session


def heard_gap_s(heard: Heard, turn: int) -> float:
    """From the end of a clip to the first audible sample after it, on the client's tape."""
    end = heard.said_at[turn][1]
    loud = np.abs(heard.agent[end:].astype(int)) >= AUDIBLE
    return float(np.argmax(loud)) / heard.sample_rate_hz


def test_the_clients_clock_agrees_with_the_sessions_ledger() -> None:
    """Both turns within what a busy machine may do, the better one within 30 ms."""

    async def main() -> None:
        turns = [says(0.8, Cue("agent_silence", 300)), says(0.8, Cue("agent_silence", 300))]
        async with serve(agent("Yes, it is."), port=0, ledger_of=TurnLedgers) as port:
            heard = await converse(url(port), turns, patience_s=5.0, hang_up_s=0.3)
        ledgers = [message["ledger"] for message in heard.of_type("turn")]
        reported_ms = [ledger["perceived"] for ledger in ledgers if isinstance(ledger, dict)]
        gaps_ms = np.abs([heard_gap_s(heard, k) * 1000 - ms for k, ms in enumerate(reported_ms)])
        assert len(gaps_ms) == 2
        assert gaps_ms.min() <= 30
        assert gaps_ms.max() <= 150
        assert [(m["role"], m["text"]) for m in heard.of_type("transcript") if m["final"]] == [
            ("user", "What is the time?"),
            ("agent", "Yes, it is."),
            ("user", "No, I meant the date"),
            ("agent", "Yes, it is."),
        ]

    timed(main())


def test_a_barge_in_clears_the_client_and_the_rest_is_never_heard() -> None:
    async def main() -> None:
        turns = [
            says(0.8, Cue("agent_silence", 300)),
            says(1.2, Cue("agent_speech", 800)),
        ]
        async with serve(agent(REPLY, "The first."), port=0) as port:
            heard = await converse(url(port), turns, patience_s=5.0, hang_up_s=0.3)
        assert heard.of_type("clear")
        said = [m for m in heard.of_type("transcript") if m["role"] == "agent" and m["final"]]
        interrupted, answered = (str(m["text"]) for m in said)
        assert REPLY.startswith(interrupted)
        assert 0 < len(interrupted) < len(REPLY)
        assert answered == "The first."
        cleared = min(t_s for t_s, message in heard.messages if message["type"] == "clear")
        stale = heard.agent[round(cleared * heard.sample_rate_hz) + 1 : heard.said_at[1][1]]
        assert len(stale) > 0.1 * heard.sample_rate_hz  # long before the caller is done
        assert not stale.any()

    timed(main())


def test_a_client_that_vanishes_mid_reply_leaves_no_session_behind() -> None:
    async def main() -> None:
        async with serve(agent(REPLY), port=0) as port:
            before = others()
            client = await connect(url(port))
            await client.send('{"type": "text", "text": "Hello"}')
            while not isinstance(await client.recv(), bytes):
                pass
            client.transport.abort()
            await becomes_idle(before)

    timed(main())


def test_a_typed_turn_is_answered() -> None:
    async def main() -> None:
        async with serve(agent(REPLY), port=0) as port, connect(url(port)) as client:
            await client.send('{"type": "text", "text": "Hello"}')
            assert (await until(client, "transcript"))["text"] == "Hello"
            said = await until(client, "transcript")
            assert (said["role"], said["final"]) == ("agent", False)
            assert REPLY.startswith(str(said["text"]))

    timed(main())
