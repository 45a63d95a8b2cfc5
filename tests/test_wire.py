"""The protocol of interfaces.md, message by message, and whatever else may come over a socket."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicepipe import events as ev
from voicepipe import wire
from voicepipe.wire import CallerAudio, End, Playback, Refused, Start, TypedText, Wire


def refused(protocol: Wire, message: str | bytes) -> str:
    answer = protocol.receive(message)
    assert isinstance(answer, Refused), answer
    assert answer.message
    return answer.code


def sent(message: str) -> dict[str, object]:
    parsed = json.loads(message, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert isinstance(parsed, dict)
    return parsed


def test_audio_needs_no_start_and_is_16_khz_then() -> None:
    protocol = Wire()
    audio = protocol.receive(np.array([1, -2, 32767, -32768], "<i2").tobytes())
    assert isinstance(audio, CallerAudio)
    assert audio.samples.tolist() == [1, -2, 32767, -32768]
    assert audio.samples.dtype == np.int16
    assert protocol.sample_rate_hz == 16_000


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
def test_start_sets_the_rate(rate_hz: int) -> None:
    protocol = Wire()
    started = protocol.receive(json.dumps({"type": "start", "sample_rate": rate_hz}))
    assert started == Start(rate_hz)
    assert protocol.sample_rate_hz == rate_hz


def test_start_may_name_the_session_and_bring_a_token() -> None:
    protocol = Wire()
    started = protocol.receive('{"type": "start", "session": "call-7.b", "token": "secret"}')
    assert started == Start(16_000, "call-7.b")
    assert protocol.session == "call-7.b"


@pytest.mark.parametrize(
    "rate", ["7999", "48001", "0", "-16000", "16000.5", '"16000"', "true", "null"]
)
def test_a_wrong_rate_is_refused_and_can_be_mended(rate: str) -> None:
    protocol = Wire()
    assert refused(protocol, f'{{"type": "start", "sample_rate": {rate}}}') == "bad_rate"
    assert refused(protocol, b"\0\0") == "not_started"  # at what rate?
    assert protocol.receive('{"type": "start", "sample_rate": 24000}') == Start(24_000)
    assert isinstance(protocol.receive(b"\0\0"), CallerAudio)


@pytest.mark.parametrize("name", ["../etc", "a/b", ".hidden", "x" * 65, 7, "a\n", "é"])
def test_a_session_name_that_is_no_file_name_is_refused(name: object) -> None:
    protocol = Wire()
    assert refused(protocol, json.dumps({"type": "start", "session": name})) == "bad_session"


@pytest.mark.parametrize("first", [b"\0\0", '{"type": "start"}', '{"type": "text", "text": "hi"}'])
def test_start_comes_first_or_not_at_all(first: str | bytes) -> None:
    protocol = Wire()
    assert not isinstance(protocol.receive(first), Refused)
    assert refused(protocol, '{"type": "start", "sample_rate": 8000}') == "late_start"
    assert protocol.sample_rate_hz == 16_000


def test_an_odd_number_of_bytes_is_refused_and_dropped() -> None:
    protocol = Wire()
    assert refused(protocol, b"\1\2\3") == "odd_bytes"
    audio = protocol.receive(b"\1\0")
    assert isinstance(audio, CallerAudio)
    assert audio.samples.tolist() == [1]  # nothing of the odd message shifts the next


def test_any_chunk_size_up_to_the_limit() -> None:
    protocol = Wire()
    for n_bytes in (0, 2, 640, 642, wire.MAX_MESSAGE_BYTES):
        audio = protocol.receive(bytes(n_bytes))
        assert isinstance(audio, CallerAudio)
        assert len(audio.samples) == n_bytes // 2
    assert refused(protocol, bytes(wire.MAX_MESSAGE_BYTES + 2)) == "too_large"
    assert refused(protocol, " " * (wire.MAX_MESSAGE_BYTES + 1)) == "too_large"


def test_playback_counts_what_was_heard() -> None:
    protocol = Wire()
    protocol.audio(np.zeros(320, np.int16))
    protocol.audio(np.zeros(320, np.int16))
    assert protocol.receive('{"type": "playback", "played_samples": 400}') == Playback(400)
    assert protocol.receive('{"type": "playback", "played_samples": 640}') == Playback(640)


@pytest.mark.parametrize("n", ["-1", "641", "1.5", '"3"', "null", "true", "[]", "1e3", "9" * 5000])
def test_impossible_playback_is_refused(n: str) -> None:
    protocol = Wire()
    protocol.audio(np.zeros(640, np.int16))
    code = refused(protocol, f'{{"type": "playback", "played_samples": {n}}}')
    assert code == ("bad_json" if len(n) > 1000 else "bad_playback")


def test_playback_never_falls() -> None:
    protocol = Wire()
    protocol.audio(np.zeros(640, np.int16))
    protocol.receive('{"type": "playback", "played_samples": 500}')
    assert refused(protocol, '{"type": "playback", "played_samples": 499}') == "bad_playback"
    assert refused(protocol, '{"type": "playback"}') == "bad_playback"


def test_typed_text() -> None:
    assert Wire().receive('{"type": "text", "text": " What time is it? "}') == TypedText(
        "What time is it?"
    )


@pytest.mark.parametrize("text", ['""', '"  "', "7", "null", '"\\ud800"', f'"{"x" * 4001}"'])
def test_text_that_cannot_be_a_turn_is_refused(text: str) -> None:
    assert refused(Wire(), f'{{"type": "text", "text": {text}}}') == "bad_text"


def test_end_is_the_last_thing_heard() -> None:
    protocol = Wire()
    assert protocol.receive('{"type": "end"}') == End()
    assert protocol.receive(b"\0\0") is None
    assert protocol.receive("not json") is None


@pytest.mark.parametrize(
    "message", ["", "{", "null", "[]", '"start"', "1", '{"type": NaN}', "[" * 100_000, "\ud800"]
)
def test_what_is_no_json_object_is_refused(message: str) -> None:
    assert refused(Wire(), message) == "bad_json"


@pytest.mark.parametrize("message", ["{}", '{"type": 1}', '{"type": null}'])
def test_a_message_needs_a_type(message: str) -> None:
    assert refused(Wire(), message) == "bad_message"


def test_unknown_types_and_fields_are_ignored() -> None:
    protocol = Wire()
    assert protocol.receive('{"type": "hologram", "depth": 3}') is None
    assert protocol.receive('{"type": "start", "sample_rate": 8000, "mood": "calm"}') == Start(8000)


def test_every_message_of_the_server() -> None:
    assert sent(wire.ready()) == {
        "type": "ready",
        "sample_rate": 16_000,
        "max_message_bytes": wire.MAX_MESSAGE_BYTES,
    }
    assert sent(wire.transcript("user", "hi", final=True)) == {
        "type": "transcript",
        "role": "user",
        "text": "hi",
        "final": True,
    }
    assert sent(wire.clear()) == {"type": "clear"}
    assert sent(wire.state("thinking")) == {"type": "state", "state": "thinking"}
    assert sent(wire.error("busy", "later", fatal=True)) == {
        "type": "error",
        "code": "busy",
        "message": "later",
        "fatal": True,
    }
    assert sent(wire.turn({"turn": 1, "rows": [{"stage": "stt", "ms": math.nan}]})) == {
        "type": "turn",
        "ledger": {"turn": 1, "rows": [{"stage": "stt", "ms": None}]},
    }


def test_an_event_is_sent_as_it_is_recorded() -> None:
    happened = ev.EagerEndOfTurn(t_media_s=1.5, text="né", speech_end_s=1.25)
    assert sent(wire.event(happened)) == {
        "type": "event",
        "event": {
            "t_media_s": 1.5,
            "t_loop_s": None,
            "type": "EagerEndOfTurn",
            "text": "né",
            "speech_end_s": 1.25,
            "probability": None,
        },
    }


def test_agent_audio_is_little_endian_pcm() -> None:
    assert Wire().audio(np.array([1, -2], np.int16)) == b"\x01\x00\xfe\xff"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["start", "playback", "text", "end", "ready", "x"]) | anything,
        "sample_rate": st.integers(7_990, 48_010) | anything,
        "session": anything,
        "played_samples": st.integers(-2, 2_000) | anything,
        "text": anything,
    },
)
messages = st.binary(max_size=64) | st.text(max_size=64) | fields.map(json.dumps)


@given(st.lists(messages, max_size=12))
def test_no_message_breaks_the_protocol(script: list[str | bytes]) -> None:
    protocol = Wire()
    n_sent = n_played = 0
    for message in script:
        protocol.audio(np.zeros(100, np.int16))
        n_sent += 100
        match protocol.receive(message):
            case Start(sample_rate_hz):
                assert 8_000 <= sample_rate_hz <= 48_000
            case CallerAudio(samples):
                assert samples.dtype == np.int16
                assert len(samples) * 2 == len(message)
            case Playback(n_samples):
                assert n_played <= n_samples <= n_sent
                n_played = n_samples
            case TypedText(text):
                assert text.encode().strip()
            case Refused(code, reason):
                assert sent(wire.error(code, reason))["code"] == code
        assert 8_000 <= protocol.sample_rate_hz <= 48_000
