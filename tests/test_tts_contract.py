"""What every voice promises, held by all of them: the scripted one and the real ones."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from functools import cache
from pathlib import Path

import jiwer
import numpy as np
import pytest
from faster_whisper import WhisperModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.tts import KokoroTTS, PiperTTS, ScriptedTTS
from voicepipe.errors import ComponentError, UsageError
from voicepipe.frames import AudioFrame, Pcm
from voicepipe.models import path_of
from voicepipe.protocols import Phrase, TextToSpeech

PIPER, KOKORO = "piper-en_US-joe-medium", "kokoro-82m"

REPLIES = (
    "The capital of France is Paris.",
    "You could try roasted chicken with potatoes and a green salad.",
    "I would be happy to book a table for two people this evening.",
)

STRANGE = (
    "",
    " \n\t ",
    "\U0001f600",
    "...?!",
    "\x00\x07\x1b[31m",
    "**bold** and `code` \U0001f600!",
    "naïve façade, 你好, Привет.",
    "a" * 300,
)


@cache
def voice_named(name: str) -> TextToSpeech:
    match name:
        case "scripted":
            return ScriptedTTS(ms_per_char=10)
        case "piper":
            return PiperTTS(path_of(PIPER))
        case "piper with espeak":
            return PiperTTS(path_of(PIPER), pronouncer="espeak")
        case _:
            return KokoroTTS(path_of(KOKORO), n_threads=2)


REAL = [
    pytest.param(name, marks=pytest.mark.models)
    for name in ("piper", "piper with espeak", "kokoro")
]
"""The resampler after them is the same for all, so one of them stands for every rate."""


@pytest.fixture(scope="module", params=["scripted", *REAL])
def voice(request: pytest.FixtureRequest) -> TextToSpeech:
    return voice_named(request.param)


def spoken(voice: TextToSpeech, texts: Iterable[str], rate_hz: int = 16_000) -> list[AudioFrame]:
    async def phrases() -> AsyncIterator[Phrase]:
        for text in texts:
            yield Phrase(text)

    async def main() -> list[AudioFrame]:
        async with voice.open(phrases(), sample_rate_hz=rate_hz) as frames:
            return [frame async for frame in frames]

    return asyncio.run(main())


def check(frames: list[AudioFrame], text: str, rate_hz: int) -> None:
    """The contract of `TextToSpeech.open`."""
    assert "".join(frame.text for frame in frames) == text
    end = 0
    for frame in frames:
        assert frame.start_sample == end
        assert frame.sample_rate_hz == rate_hz
        assert frame.n_samples <= rate_hz // 50
        end = frame.end_sample


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("name", ["scripted", REAL[0]])
def test_contiguous_short_labelled_frames_at_any_rate(name: str, rate_hz: int) -> None:
    frames = spoken(voice_named(name), ["Yes, ", "it is."], rate_hz)
    check(frames, "Yes, it is.", rate_hz)
    assert 0.1 <= frames[-1].end_s < 4.0


def test_strange_text_is_spoken_or_passed_over(voice: TextToSpeech) -> None:
    frames = spoken(voice, STRANGE[:-1])
    check(frames, "".join(STRANGE[:-1]), 16_000)


@pytest.mark.parametrize("name", ["scripted", REAL[0], REAL[1]])
def test_a_text_without_a_space_cannot_stop_the_voice(name: str) -> None:
    voice = voice_named(name)

    async def phrases() -> AsyncIterator[Phrase]:
        yield Phrase("xqa" * 700)

    async def main() -> None:
        async with voice.open(phrases(), sample_rate_hz=16_000) as frames:
            async with asyncio.timeout(30):
                assert (await anext(frames)).n_samples > 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("name", ["scripted", REAL[0]])
def test_a_phrase_in_parts_has_the_labels_of_the_whole(name: str) -> None:
    voice = voice_named(name)
    whole = spoken(voice, ["Well, yes. I do."])
    parts = spoken(voice, ["Well, ", "yes. ", "I do."])
    check(whole, "Well, yes. I do.", 16_000)
    check(parts, "Well, yes. I do.", 16_000)
    assert next(f.text for f in whole if f.text) == "Well,"


def test_leaving_in_the_middle_leaves_nothing_running(voice: TextToSpeech) -> None:
    async def phrases() -> AsyncIterator[Phrase]:
        for _ in range(100):
            yield Phrase("Once upon a time. ")

    async def main() -> None:
        async with voice.open(phrases(), sample_rate_hz=16_000) as frames:
            await anext(frames)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    check(spoken(voice, ["Yes."]), "Yes.", 16_000)  # and the next reply is right


@pytest.mark.parametrize("name", ["scripted", REAL[0]])
def test_two_sessions_at_once_do_not_mix(name: str) -> None:
    texts = {"one": ["Yes, ", "it is."], "two": ["No, ", "it is ", "not."]}

    async def phrases(session: str) -> AsyncIterator[Phrase]:
        for text in texts[session]:
            yield Phrase(text)

    async def listen(session: str) -> None:
        voice = voice_named(name)
        async with voice.open(phrases(session), sample_rate_hz=16_000) as frames:
            check([frame async for frame in frames], "".join(texts[session]), 16_000)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for session in texts:
                group.create_task(listen(session))

    asyncio.run(main())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts=st.lists(st.one_of(st.text(max_size=20), st.sampled_from(STRANGE)), max_size=4))
def test_any_phrases_keep_the_contract(texts: list[str]) -> None:
    check(spoken(ScriptedTTS(ms_per_char=1), texts, 8_000), "".join(texts), 8_000)


@pytest.mark.models
@pytest.mark.parametrize("name", ["piper", "piper with espeak", "kokoro"])
def test_a_recognizer_understands_it_and_hears_the_words_where_the_labels_are(name: str) -> None:
    replies = REPLIES[:1] if name == "kokoro" else REPLIES  # it takes as long as its speech
    understood = []
    for reply in replies:
        frames = spoken(voice_named(name), [reply])
        heard = transcribed(np.concatenate([frame.samples for frame in frames]))
        understood.append(_words(" ".join(word for word, _ in heard)))
        labelled = [frame.start_s for frame in frames if frame.text]
        assert len(labelled) == len(reply.split())
        if len(heard) == len(labelled):
            off = np.array([start_s for _, start_s in heard]) - np.array(labelled)
            assert np.median(np.abs(off)) < 0.1
            assert np.abs(off[1:]).max() < 0.4
    assert jiwer.wer([_words(reply) for reply in replies], understood) <= 0.1


@cache
def recognizer() -> WhisperModel:
    return WhisperModel(
        str(path_of("whisper-tiny.en")), device="cpu", compute_type="int8", cpu_threads=2
    )


def transcribed(samples: Pcm) -> list[tuple[str, float]]:
    """Words with the time in s at which they begin."""
    audio = samples.astype(np.float32) / np.float32(32768)
    segments, _ = recognizer().transcribe(audio, beam_size=1, word_timestamps=True)
    return [(word.word, word.start) for segment in segments for word in segment.words or []]


def _words(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


@pytest.mark.parametrize("maker", [PiperTTS, KokoroTTS])
def test_a_missing_model_is_one_clear_line(
    maker: type[PiperTTS] | type[KokoroTTS], tmp_path: Path
) -> None:
    with pytest.raises(ComponentError, match="found 0: fetch it") as nothing:
        maker(tmp_path)
    with pytest.raises((ComponentError, UsageError)) as absent:
        maker(tmp_path / "absent.onnx")
    assert "\n" not in str(nothing.value) + str(absent.value)


@pytest.mark.models
def test_piper_voices_speak_english_without_the_gpl_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "piper", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "piper.phonemize_espeak", None)
    check(spoken(PiperTTS(path_of(PIPER)), ["Yes."]), "Yes.", 16_000)
    with pytest.raises(ComponentError, match="pip install piper-tts"):
        PiperTTS(path_of(PIPER), pronouncer="espeak")


@pytest.mark.models
def test_an_unknown_kokoro_voice_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"no voice 'nobody'.*use one of af_.*am_michael"):
        KokoroTTS(path_of(KOKORO), "nobody")


@pytest.mark.models
@pytest.mark.parametrize("size", [0, 1000, -1000])
def test_a_damaged_piper_voice_is_one_clear_line(tmp_path: Path, size: int) -> None:
    (model,) = path_of(PIPER).glob("*.onnx")
    settings_file = model.with_name(model.name + ".json")
    (tmp_path / settings_file.name).write_bytes(settings_file.read_bytes())
    (tmp_path / model.name).write_bytes(model.read_bytes()[:size])
    with pytest.raises(ComponentError, match="fetch it again") as damaged:
        PiperTTS(tmp_path)
    assert "\n" not in str(damaged.value)


@pytest.mark.models
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no Piper voice settings"),
        ("[]", "no Piper voice settings"),
        ("{}", "no Piper voice settings"),
        ('{"audio": {"sample_rate": 22050}, "espeak": null, "inference": {}}', "settings"),
    ],
)
def test_damaged_piper_settings_are_one_clear_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    (model,) = path_of(PIPER).glob("*.onnx")
    (tmp_path / model.name).symlink_to(model)
    (tmp_path / f"{model.name}.json").write_text(text, encoding="utf-8")
    with pytest.raises(ComponentError, match=complaint):
        PiperTTS(tmp_path)


@pytest.mark.models
def test_damaged_kokoro_files_are_one_clear_line(tmp_path: Path) -> None:
    voices = tmp_path / "voices"
    voices.mkdir()
    (voices / "af_heart.bin").write_bytes(b"\0" * 10)
    (tmp_path / "kokoro.onnx").write_bytes(b"nonsense")
    with pytest.raises(ComponentError, match=r"expected 130560 numbers"):
        KokoroTTS(tmp_path)
    style = path_of(KOKORO) / "voices" / "af_heart.bin"
    (voices / "af_heart.bin").write_bytes(style.read_bytes())
    with pytest.raises(ComponentError, match=r"kokoro.onnx: onnxruntime cannot load it"):
        KokoroTTS(tmp_path)
