"""Features, end-of-turn model and voice activity detectors against references and themselves."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from turn_detection import EnergyPause, ScriptedEndOfTurn, ScriptedVAD, SileroVAD, SmartTurn
from turn_detection.log_mel import log_mel
from turn_detection.recent_audio import RecentAudio
from turn_detection.vad import VoiceActivityModel, WebRtcVAD
from turn_detection.voice import Voice, VoiceEdge
from voicepipe.errors import ComponentError, UsageError
from voicepipe.frames import AudioFrame, Pcm
from voicepipe.models import path_of
from voicepipe.protocols import Float32

RATE_HZ = 16_000
FRAME = 160
VECTORS = Path(__file__).parent / "data" / "turn" / "log_mel.npz"
CALL = Path(__file__).parent.parent / "demos" / "calls"


def model_file(name: str) -> Path:
    (file,) = path_of(name).glob("*.onnx")
    return file


def speechlike(n_samples: int, seed: int) -> Float32:
    """Harmonics under syllables, and noise: from sines and integers, so the same everywhere."""
    t = np.arange(n_samples) / RATE_HZ
    pitch_hz = 110 + seed * 17 + 20 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / RATE_HZ
    voice = np.sum([np.sin(k * phase) / k for k in range(1, 12)], axis=0)
    voice *= np.maximum(0, np.sin(2 * np.pi * (2.5 + seed) * t)) ** 2
    step, offset = 6364136223846793005, 1442695040888963407 * seed % 2**64
    state = np.arange(n_samples, dtype=np.uint64) * np.uint64(step) + np.uint64(offset)
    noise = (state >> np.uint64(33)).astype(np.float64) / 2**31 - 0.5
    samples: Float32 = (0.2 * voice + 0.003 * noise).astype(np.float32)
    return samples


def click() -> Float32:
    samples = np.zeros(RATE_HZ, np.float32)
    samples[8000] = 1.0
    return samples


CASES = {
    "short": speechlike(9_600, 1),
    "turn": speechlike(52_345, 2),
    "full": speechlike(128_000, 3),
    "long": speechlike(150_001, 4),
    "empty": np.zeros(0, np.float32),
    "click": click(),
}


def pcm(samples: Float32) -> Pcm:
    return np.round(samples * 32767).astype(np.int16)


def frames(samples: Pcm, size: int = FRAME) -> list[AudioFrame]:
    """Whole frames of `size`; what is left over is not heard."""
    return [
        AudioFrame(samples[start : start + size], RATE_HZ, start)
        for start in range(0, len(samples) - size + 1, size)
    ]


def edges(samples: Pcm, vad: VoiceActivityModel | None) -> list[tuple[VoiceEdge, int]]:
    """The voice's edges, each with the sample at which it became known."""
    voice = Voice(vad)
    found = ((voice.hear(frame), frame.end_sample) for frame in frames(samples))
    return [(edge, now) for edge, now in found if edge is not None]


# -- features and model ------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_features_equal_those_of_the_extractor_the_model_was_trained_with(case: str) -> None:
    """The vectors are `WhisperFeatureExtractor(chunk_length=8)` of transformers 5.24 with
    `do_normalize=True`, on the same audio padded in front; 11 of its 800 frames."""
    vectors = np.load(VECTORS)
    features = log_mel(CASES[case])
    assert features.shape == (80, 800)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features[:, vectors["frames"]], vectors[case], atol=2e-5)


def test_features_do_not_depend_on_what_lies_before_the_last_8_s() -> None:
    long = CASES["long"]
    np.testing.assert_array_equal(log_mel(long), log_mel(long[-128_000:]))


@settings(max_examples=10, deadline=None)
@given(n_samples=st.integers(0, 130_000), seed=st.integers(1, 50))
def test_frames_of_padding_are_computed_once_and_yet_right(n_samples: int, seed: int) -> None:
    samples = speechlike(n_samples, seed)[-128_000:]
    padded = np.concatenate([np.zeros(128_000 - len(samples), np.float32), samples])
    np.testing.assert_allclose(log_mel(samples), log_mel(padded), atol=1e-6)


@pytest.mark.models
def test_smart_turn_answers_as_its_reference_pipeline_does() -> None:
    """Reference: the same weights behind transformers' features; see the vectors above."""
    model = SmartTurn(model_file("smart-turn-v3.2-cpu"))
    vectors = np.load(VECTORS)
    for case in ("short", "turn", "long"):
        assert model.probability(CASES[case]) == pytest.approx(
            float(vectors[f"p_{case}"]), abs=0.03
        )


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07" + bytes(1000)])
@pytest.mark.parametrize("make", [SmartTurn, SileroVAD])
def test_a_broken_model_file_is_one_clear_line(
    make: type[SmartTurn | SileroVAD], content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    with pytest.raises(ComponentError) as caught:
        make(file)
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message
    assert "voicepipe models fetch" in message


@pytest.mark.parametrize("make", [SmartTurn, SileroVAD])
def test_a_missing_model_file_is_named(make: type[SmartTurn | SileroVAD], tmp_path: Path) -> None:
    with pytest.raises(ComponentError, match=r"no file at .*nothing\.onnx"):
        make(tmp_path / "nothing.onnx")


@pytest.mark.models
def test_one_model_in_the_place_of_another_is_refused() -> None:
    with pytest.raises(ComponentError, match="another model"):
        SileroVAD(model_file("smart-turn-v3.2-cpu"))
    with pytest.raises(ComponentError, match="another model"):
        SmartTurn(model_file("silero-vad"))


# -- voice activity ----------------------------------------------------------------------------


def caller_clip(pattern: str) -> Pcm:
    file = sorted(CALL.glob(pattern))[0]
    samples, rate_hz = soundfile.read(file, dtype="int16")
    assert rate_hz == RATE_HZ
    clip: Pcm = np.concatenate([np.zeros(8000, np.int16), samples, np.zeros(16_000, np.int16)])
    return clip


@pytest.mark.models
@pytest.mark.parametrize("sizes", [(160,), (512,), (320, 160, 480), (1, 700, 33)])
def test_silero_gives_the_same_whatever_the_frames(sizes: tuple[int, ...]) -> None:
    samples = caller_clip("*question*.flac")
    model = SileroVAD(model_file("silero-vad"))
    whole = model.open()
    expected = [whole.hear(frame) for frame in frames(samples, 512)]
    stream, position, n = model.open(), 0, 0
    heard: dict[int, float] = {}
    while position < len(expected) * 512:
        piece = samples[position : position + sizes[n % len(sizes)]]
        probability = stream.hear(AudioFrame(piece, RATE_HZ, position))
        position, n = position + len(piece), n + 1
        heard[position // 512] = probability
    assert max(expected) > 0.9
    for n_chunks, probability in heard.items():
        if 0 < n_chunks <= len(expected):
            assert probability == pytest.approx(expected[n_chunks - 1], abs=1e-6)


@pytest.mark.models
def test_silero_streams_do_not_hear_each_other() -> None:
    samples = caller_clip("*question*.flac")
    model = SileroVAD(model_file("silero-vad"))
    alone = model.open()
    expected = [alone.hear(frame) for frame in frames(samples, 512)]
    one, two = model.open(), model.open()
    heard = []
    for frame, other in zip(frames(samples, 512), frames(samples[::-1].copy(), 512), strict=True):
        heard.append(one.hear(frame))
        two.hear(other)
    assert heard == expected


@pytest.mark.models
@pytest.mark.parametrize("kind", ["question", "request", "short", "bargein"])
def test_the_voice_is_found_where_the_recording_has_it(kind: str) -> None:
    samples = caller_clip(f"*{kind}*.flac")
    found = edges(samples, SileroVAD(model_file("silero-vad")))
    (first, noticed), (last, missed) = found[0], found[-1]
    loud = np.flatnonzero(np.abs(samples) > 32768 * 10 ** (-45 / 20))
    assert first.began
    assert abs(first.at - loud[0]) <= 0.04 * RATE_HZ
    assert noticed - loud[0] <= 0.2 * RATE_HZ
    assert not last.began
    assert abs(last.at - loud[-1]) <= 0.06 * RATE_HZ
    assert missed - loud[-1] <= 0.25 * RATE_HZ
    assert all(a.at < b.at and a.began != b.began for (a, _), (b, _) in pairwise(found))


@pytest.mark.models
@pytest.mark.parametrize("noise", ["white", "hum", "clicks"])
def test_noise_is_no_voice(noise: str) -> None:
    rng = np.random.default_rng(7)
    n = 6 * RATE_HZ
    sounds = {
        "white": rng.normal(0, 0.03, n),
        "hum": 0.2 * np.sin(2 * np.pi * 100 * np.arange(n) / RATE_HZ),
        "clicks": np.where(rng.random(n) < 0.0005, 0.9, 0.0),
    }
    samples = pcm(sounds[noise].clip(-1, 1).astype(np.float32))
    assert edges(samples, SileroVAD(model_file("silero-vad"))) == []


def tone(spans_s: list[tuple[float, float]], length_s: float, *, noise: float = 0.0) -> Pcm:
    """A 200 Hz tone at -12 dBFS in `spans_s`, over white noise of that standard deviation."""
    t = np.arange(round(length_s * RATE_HZ)) / RATE_HZ
    on = np.any([(start <= t) & (t < end) for start, end in spans_s], axis=0)
    sound = np.where(on, 0.35 * np.sin(2 * np.pi * 200 * t), 0.0)
    return pcm((sound + np.random.default_rng(3).normal(0, noise, len(t))).astype(np.float32))


def test_energy_places_edges_to_2_ms_and_bridges_short_gaps() -> None:
    samples = tone([(0.5037, 0.9012), (0.9412, 1.3003), (1.8, 2.0)], 2.5)
    energy = EnergyPause()
    starts = {}
    for frame in frames(samples):
        energy.hear(frame)
        starts[frame.end_sample] = energy.first_loud(earliest=0)
    assert starts[round(0.5 * RATE_HZ)] is None
    assert starts[round(1.3 * RATE_HZ)] == pytest.approx(0.5037 * RATE_HZ, abs=32)
    assert starts[round(2.0 * RATE_HZ)] == pytest.approx(1.8 * RATE_HZ, abs=32)
    assert energy.last_loud == pytest.approx(2.0 * RATE_HZ, abs=32)


def test_energy_takes_steady_noise_for_silence_after_two_seconds() -> None:
    samples = tone([(4.0, 4.5)], 6.0, noise=0.01)  # noise at -40 dBFS from the first sample on
    energy = EnergyPause()
    loud = {frame.start_s: energy.hear(frame) for frame in frames(samples)}
    assert loud[0.0]
    assert not any(is_loud for start_s, is_loud in loud.items() if 2.5 <= start_s < 3.99)
    assert all(is_loud for start_s, is_loud in loud.items() if 4.0 <= start_s < 4.49)
    assert energy.last_loud == pytest.approx(4.5 * RATE_HZ, abs=160)


def test_a_vad_that_is_stuck_on_does_not_keep_a_turn_open() -> None:
    samples = tone([(1.0, 2.0)], 4.0)
    found = edges(samples, ScriptedVAD([(0.0, 100.0)]))
    assert [edge.began for edge, _ in found][-1] is False
    last, known = found[-1]
    assert last.at == pytest.approx(2.0 * RATE_HZ, abs=32)
    assert known - last.at <= 0.31 * RATE_HZ


def test_a_vad_ends_speech_over_noise_that_never_ends() -> None:
    samples = tone([(0.5, 1.5)], 3.0, noise=0.1)
    found = edges(samples, ScriptedVAD([(0.5, 1.5)]))
    assert [edge.began for edge, _ in found] == [True, False]
    assert found[1][0].at == pytest.approx(1.5 * RATE_HZ, abs=160)


def test_a_scripted_vad_needs_no_sound() -> None:
    found = edges(np.zeros(3 * RATE_HZ, np.int16), ScriptedVAD([(0.5, 1.0), (1.5, 2.0)]))
    assert [(edge.began, edge.at / RATE_HZ) for edge, _ in found] == [
        (True, 0.5),
        (False, 1.0),
        (True, 1.5),
        (False, 2.0),
    ]


def test_webrtcvad_hears_speechlike_sound_and_not_silence() -> None:
    vad = WebRtcVAD().open()
    heard = [vad.hear(frame) for frame in frames(pcm(CASES["turn"]))]
    assert set(heard) <= {0.0, 1.0}
    assert np.mean(heard) > 0.3
    silent = WebRtcVAD().open()
    assert not any(silent.hear(frame) for frame in frames(np.zeros(RATE_HZ, np.int16)))


# -- small parts -------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 500), max_size=40),
    size=st.integers(500, 900),
    back=st.integers(-10, 5000),
)
def test_recent_audio_gives_back_what_came_in(sizes: list[int], size: int, back: int) -> None:
    recent = RecentAudio(seconds=size / RATE_HZ)
    everything = np.arange(sum(sizes)).astype(np.int16)
    position = 0
    for n in sizes:
        recent.append(AudioFrame(everything[position : position + n], RATE_HZ, position))
        position += n
    kept = recent.since(position - back)
    expected = everything[max(0, position - min(max(0, back), size)) :] / 32768
    np.testing.assert_allclose(kept, expected)
    assert kept.dtype == np.float32


def test_recent_audio_refuses_gaps_and_other_rates() -> None:
    recent = RecentAudio()
    recent.append(AudioFrame(np.zeros(160, np.int16), RATE_HZ, 0))
    with pytest.raises(UsageError, match="from sample 160"):
        recent.append(AudioFrame(np.zeros(160, np.int16), RATE_HZ, 320))
    with pytest.raises(UsageError, match="8000 Hz"):
        recent.append(AudioFrame(np.zeros(80, np.int16), 8000, 160))


def test_a_scripted_end_of_turn_model_follows_its_script() -> None:
    silence = np.zeros(100, np.float32)
    model = ScriptedEndOfTurn([0.1, 0.8])
    assert [model.probability(silence) for _ in range(3)] == [0.1, 0.8, 0.8]
    assert ScriptedEndOfTurn(lambda samples: len(samples) / 1000).probability(silence) == 0.1
