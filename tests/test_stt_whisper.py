"""What only the real recogniser can get wrong: noises, long turns, load, damaged models."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stages.stt import WhisperSTT
from tests.stt_streams import (
    Clip,
    check,
    finals,
    items,
    joined,
    loaded,
    recorded,
    sound,
    transcribe,
    transcribed,
)
from voicepipe.clock import run_virtual
from voicepipe.errors import ComponentError, UsageError
from voicepipe.events import EndOfTurn, SpeechPaused, SpeechStarted
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.models import path_of
from voicepipe.protocols import SpeechInput
from voicepipe.wording import normalised

pytestmark = pytest.mark.models

RANDOM = np.random.default_rng(5)
TIME_S = np.arange(3 * CALLER_RATE_HZ) / CALLER_RATE_HZ


def whisper() -> WhisperSTT:
    return loaded("whisper-tiny.en")


def tones(*hz: float) -> np.ndarray:
    return sum((0.1 * np.sin(2 * np.pi * f * TIME_S) for f in hz), np.zeros(len(TIME_S)))


def melody() -> np.ndarray:
    """Notes of a quarter of a second with overtones."""
    note_s = TIME_S[: CALLER_RATE_HZ // 4]
    notes = [
        sum(0.1 * np.sin(2 * np.pi * hz * k * note_s) / k for k in (1, 2, 3)) * np.hanning(4000)
        for hz in (262, 330, 392, 523, 392, 330, 294, 349, 440, 349, 294, 262)
    ]
    return np.concatenate(notes)


def clicks(every_s: float) -> np.ndarray:
    signal = np.zeros(len(TIME_S))
    signal[:: round(every_s * CALLER_RATE_HZ)] = 0.8
    return signal


def knocks() -> np.ndarray:
    signal = 0.001 * RANDOM.standard_normal(len(TIME_S))
    for at in range(1000, len(signal) - 900, 5000):
        signal[at : at + 800] += np.exp(-np.arange(800) / 100) * RANDOM.standard_normal(800) / 2
    return signal


NOISES = {
    "silence": np.zeros(len(TIME_S)),
    "hiss": 0.01 * RANDOM.standard_normal(len(TIME_S)),
    "loud noise": 0.2 * RANDOM.standard_normal(len(TIME_S)),
    "clicks": clicks(0.19),
    "one click": clicks(9.0),
    "knocks": knocks(),
    "hum": tones(50, 100, 150),
    "beep": tones(440),
    "chord": tones(261, 329, 392),
    "telephone key": tones(697, 1209),
    "melody": melody(),
}


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("length_s", [0.3, 3.0])
def test_noise_that_was_taken_for_speech_says_nothing(name: str, length_s: float) -> None:
    given = items(sound(NOISES[name][: round(length_s * CALLER_RATE_HZ)]))
    transcripts = transcribe(whisper(), given)
    check(given, transcripts)
    assert {transcript.text for transcript in transcripts} == {""}


def test_noise_after_speech_adds_nothing_to_it() -> None:
    """A chair is moved while the caller waits for the answer."""
    clip, noise = recorded("02-question.flac"), np.zeros(CALLER_RATE_HZ, np.int16)
    scrape = (NOISES["knocks"][: CALLER_RATE_HZ // 2] * 20000).astype(np.int16)
    samples = np.concatenate([clip.samples, noise, scrape])
    start = len(samples) - len(scrape)
    both = Clip(samples, (*clip.speech, (start, len(samples))))
    first, second = finals(transcribe(whisper(), items(both)))
    assert normalised(first) == normalised(second) == normalised(clip.text)


@pytest.mark.parametrize("gain", [1.0, 0.1, 0.02])
def test_short_answers_are_no_noise_even_if_soft(gain: float) -> None:
    for name in ("01-short.flac", "05-short.flac", "16-short.flac"):
        clip = recorded(name)
        softer = Clip((clip.samples * gain).astype(np.int16), clip.speech)
        [text] = finals(transcribe(whisper(), items(softer)))
        assert normalised(text) == normalised(clip.text)


MONOLOGUE = [f"{name}.flac" for name in ("06-request", "14-question", "08-request", "15-request")]


@pytest.mark.parametrize("paced", [True, False])
def test_a_long_turn_without_a_pause_is_understood_whole(paced: bool) -> None:
    """Paced, its window is trimmed behind stable sentences; at once, it is too long for Whisper."""
    clip = joined([recorded(name) for name in MONOLOGUE * (1 if paced else 4)])
    assert len(clip.samples) > (7 if paced else 28) * CALLER_RATE_HZ
    given = items(clip)
    transcripts = transcribe(whisper(), given, paced=paced)
    check(given, transcripts)
    [text] = finals(transcripts)
    said, heard = normalised(clip.text).split(), normalised(text).split()
    assert len(set(said) - set(heard)) <= 2
    assert abs(len(said) - len(heard)) <= 3


def test_the_caller_s_confidence_falls_with_the_noise() -> None:
    clip = recorded("08-request.flac")
    noise = np.random.default_rng(3).normal(0, 2500, len(clip.samples))
    noisy = Clip(np.clip(clip.samples + noise, -32768, 32767).astype(np.int16), clip.speech)
    clear, drowned = (transcribe(whisper(), items(c))[-1].confidence for c in (clip, noisy))
    assert 0.7 < clear <= 1
    assert drowned < clear - 0.1


def test_a_final_does_not_wait_for_interims_of_others() -> None:
    async def main() -> list[str]:
        done: list[str] = []

        async def follow(name: str, given: Sequence[SpeechInput]) -> None:
            await transcribed(whisper(), given, paced=False)
            done.append(name)

        talk = items(joined([recorded(name) for name in MONOLOGUE * 3]))
        unending = [item for item in talk if not isinstance(item, SpeechPaused | EndOfTurn)]
        async with asyncio.TaskGroup() as group:
            group.create_task(follow("interims", unending))
            group.create_task(follow("final", items(recorded("05-short.flac"))))
        return done

    assert run_virtual(main()) == ["final", "interims"]


def test_the_multilingual_model_understands_the_language_it_is_given() -> None:
    given = items(recorded("02-question.flac"))
    [text] = finals(transcribe(loaded("whisper-base"), given))
    assert normalised(text) == normalised(recorded("02-question.flac").text)
    [text] = finals(transcribe(loaded("whisper-base", "de"), given))
    assert normalised(text).startswith("was ist")


def test_an_unknown_language_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match=r"does not know language 'de'; known: en$"):
        WhisperSTT(path_of("whisper-tiny.en"), language="de")


@pytest.mark.parametrize("missing", ["model.bin", "tokenizer.json", "config.json"])
def test_a_folder_that_lacks_a_file_says_which(tmp_path: Path, missing: str) -> None:
    folder = copied(tmp_path)
    (folder / missing).unlink()
    assert missing in problem_with(folder)


@pytest.mark.parametrize("damaged", ["model.bin", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_damaged_file_is_one_line(tmp_path: Path, damaged: str, kept: float) -> None:
    folder = copied(tmp_path)
    [file] = folder.glob(f"{damaged}*")
    content = file.read_bytes()
    file.write_bytes(content[: round(kept * len(content))])
    problem_with(folder)


def test_no_folder_at_all_is_one_line(tmp_path: Path) -> None:
    problem_with(tmp_path / "nowhere")


def copied(to: Path) -> Path:
    folder = to / "whisper-tiny.en"
    shutil.copytree(path_of("whisper-tiny.en"), folder)
    return folder


def problem_with(folder: Path) -> str:
    with pytest.raises(ComponentError) as raised:
        WhisperSTT(folder)
    message = str(raised.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def test_speech_started_is_looked_up_before_the_frames_that_came_with_it() -> None:
    """Half a second of pre-roll: no first word is lost when speech is noticed late."""
    clip = recorded("02-question.flac")
    given = items(clip)
    [onset] = [i for i, item in enumerate(given) if isinstance(item, SpeechStarted)]
    late = given.pop(onset)
    given.insert(onset + 30, late)
    [text] = finals(transcribe(whisper(), given))
    assert normalised(text) == normalised(clip.text)
