"""Turn detection as a session uses it: caller frames in, decisions out."""

from __future__ import annotations

from turn_detection.endpointing import Decisions, EndpointingConfig, State, TurnMachine
from turn_detection.recent_audio import RecentAudio
from turn_detection.vad import VoiceActivityModel
from turn_detection.voice import Voice
from voicepipe.events import Transcript
from voicepipe.frames import AudioFrame
from voicepipe.protocols import AgentState, EndOfTurnModel, ScoreRequest


class Endpointing:
    """Makes the turn detector of each session; a `voicepipe.protocols.TurnDetection`."""

    def __init__(
        self,
        model: EndOfTurnModel | None,
        *,
        vad: VoiceActivityModel | None = None,
        config: EndpointingConfig | None = None,
    ) -> None:
        """`model` scores pauses; without one, words and silence decide alone. `vad` tells speech
        from noise; without one, energy and webrtcvad do, which take much noise for speech."""
        self._model = model
        self._vad = vad
        self._config = config or EndpointingConfig()

    @property
    def end_of_turn_model(self) -> EndOfTurnModel | None:
        """To be asked, in a worker thread, whenever a detector returns a `ScoreRequest`."""
        return self._model

    @property
    def config(self) -> EndpointingConfig:
        return self._config

    def open(self) -> EndpointingStream:
        """The detector of one session."""
        return EndpointingStream(self._vad, self._config, asks=self._model is not None)


class EndpointingStream:
    """One session's turn detector: a `voicepipe.protocols.TurnDetector`.

    Energy, webrtcvad and the VAD run inline, ~0.3 ms a frame with Silero.
    """

    def __init__(
        self, vad: VoiceActivityModel | None, config: EndpointingConfig, *, asks: bool
    ) -> None:
        """`asks`: whether there is an end-of-turn model to send `ScoreRequest`s to."""
        self._audio = RecentAudio()
        self._voice = Voice(vad, config.voice)
        self._machine = TurnMachine(self._audio.since if asks else None, config)

    @property
    def state(self) -> State:
        """Who has the floor now."""
        return self._machine.state

    def hear(self, frame: AudioFrame) -> Decisions:
        """The next 10 ms of 16 kHz audio. Raises `UsageError` if it does not follow the last."""
        self._audio.append(frame)
        return self._machine.hear(frame.end_sample, self._voice.hear(frame))

    def transcribed(self, transcript: Transcript) -> Decisions:
        return self._machine.transcribed(transcript)

    def scored(self, request: ScoreRequest, probability: float) -> Decisions:
        return self._machine.scored(request, probability)

    def agent(self, state: AgentState) -> Decisions:
        return self._machine.agent(state)

    def pipeline_ready(self, ready: bool) -> Decisions:
        return self._machine.pipeline_ready(ready)
