"""The one place where a configuration becomes objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np
from faster_whisper import WhisperModel

from budgets import Detectors
from stages.llm import LocalLLM, OpenAILLM, Sampling, ScriptedLLM, parse_addresses
from stages.stt import ScriptedSTT, WhisperSTT
from stages.tts import KokoroTTS, PiperTTS, ScriptedTTS
from turn_detection import (
    Endpointing,
    ScriptedEndOfTurn,
    ScriptedVAD,
    SileroVAD,
    SmartTurn,
    WebRtcVAD,
)
from voicepipe.budget import Budget
from voicepipe.config import AgentConfig
from voicepipe.errors import UsageError
from voicepipe.frames import Pcm
from voicepipe.models import path_of, state_root
from voicepipe.protocols import (
    LanguageModel,
    Observer,
    SpeechToText,
    TextToSpeech,
    Transport,
    TurnDetection,
)
from voicepipe.provenance import provenance
from voicepipe.recorder import recording
from voicepipe.session import Session, SessionConfig, Stages

T = TypeVar("T")

_SILERO = "silero-vad"
_LEXICON = "english-lexicon"


class Agent:
    """An agent with its models loaded: makes the session of each caller.

    Raises UsageError for an unknown stage (lists the known), ComponentError when a model cannot be
    had or loaded.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.stages = Stages(
            stt=_made("stt", config.stt, _STT, config),
            llm=_made("llm", config.llm, _LLM, config),
            tts=_made("tts", config.tts, _TTS, config),
            turn=_made("turn", config.turn, _TURN, config),
        )

    @property
    def session_config(self) -> SessionConfig:
        return SessionConfig(
            system=self.config.system,
            apology=self.config.apology,
            budget=Budget(self.config.target_ms),
        )

    def session(self, transport: Transport, observers: Sequence[Observer] = ()) -> Session:
        return Session(transport, self.stages, self.session_config, observers)


class RecordedSession:
    """A session that is recorded into `directory` while it runs."""

    def __init__(
        self, agent: Agent, directory: Path, transport: Transport, observers: Sequence[Observer]
    ) -> None:
        self._recording = recording(directory, transport, describe(agent.config))
        self._agent = agent
        self._observers = observers
        self._session: Session | None = None

    async def run(self) -> None:
        """As `Session.run`; raises ComponentError when the directory cannot be written."""
        with self._recording as (transport, recorder):
            self._session = self._agent.session(transport, [recorder, *self._observers])
            await self._session.run()

    def type_text(self, text: str) -> None:
        """As `Session.type_text`."""
        if self._session is None:
            raise UsageError("session: it does not run yet")
        self._session.type_text(text)


def describe(config: AgentConfig) -> dict[str, object]:
    """The effective configuration with its provenance, JSON-ready: what `config.json` holds."""
    threads = {"stt": config.stt_threads, "llm": config.llm_threads, "tts": config.tts_threads}
    return {"settings": asdict(config), "provenance": provenance(_model_names(config), threads)}


def listener() -> Callable[[Pcm], str]:
    """Transcribes the agent's 16 kHz audio back, for the report: stock faster-whisper, so that the
    STT under test does not judge."""
    model = WhisperModel(str(path_of("whisper-tiny.en")), compute_type="int8", cpu_threads=2)

    def listen(samples: Pcm) -> str:
        segments, _ = model.transcribe(
            samples.astype(np.float32) / 32768, language="en", condition_on_previous_text=False
        )
        return " ".join(segment.text.strip() for segment in segments)

    return listen


def report_detectors() -> Detectors:
    """What the report measures recordings with: Silero, refereed by webrtcvad."""
    silero = SileroVAD(path_of(_SILERO))
    return Detectors(speech=silero.open, referee=WebRtcVAD().open)


def _made(
    kind: str, uri: str, makers: Mapping[str, Callable[[str, AgentConfig], T]], config: AgentConfig
) -> T:
    scheme, colon, name = uri.partition(":")
    if not colon or scheme not in makers:
        known = ", ".join(f"{known}:" for known in makers)
        raise UsageError(f"unknown {kind} {uri!r}: give one of {known} (scheme:name)")
    return makers[scheme](name, config)


def _folder(prefix: str, name: str) -> Path:
    """A local path as it is, anything else from the model store."""
    return Path(name) if os.sep in name else path_of(prefix + name)


def _whisper(name: str, config: AgentConfig) -> SpeechToText:
    return WhisperSTT(_folder("whisper-", name), n_threads=config.stt_threads)


def _local(name: str, config: AgentConfig) -> LanguageModel:
    return LocalLLM(
        _folder("", name),
        n_threads=config.llm_threads,
        sampling=Sampling(seed=config.seed),
        device=config.llm_device,
        draft_path=_folder("", config.llm_draft) if config.llm_draft else None,
        kv_folder=state_root(),
    )


def _openai(name: str, config: AgentConfig) -> LanguageModel:
    first, *others = parse_addresses(name)
    return OpenAILLM(
        first.base_url,
        first.model,
        others=others,
        api_key=os.environ.get("OPENAI_API_KEY"),
        warm_up=config.llm_warm_up,
    )


def _piper(name: str, config: AgentConfig) -> TextToSpeech:
    return PiperTTS(_folder("piper-", name), n_threads=config.tts_threads)


def _kokoro(name: str, config: AgentConfig) -> TextToSpeech:
    return KokoroTTS(path_of("kokoro-82m"), voice=name, n_threads=config.tts_threads)


def _smart_turn(name: str, config: AgentConfig) -> TurnDetection:
    model = SmartTurn(_folder("smart-turn-", name))
    return Endpointing(model, vad=SileroVAD(path_of(_SILERO)))


def _silence(name: str, config: AgentConfig) -> TurnDetection:
    return Endpointing(None, vad=SileroVAD(path_of(_SILERO)))


_STT: Mapping[str, Callable[[str, AgentConfig], SpeechToText]] = {
    "whisper": _whisper,
    "scripted": lambda name, _: ScriptedSTT([name or "What is this?"]),
}
_LLM: Mapping[str, Callable[[str, AgentConfig], LanguageModel]] = {
    "local": _local,
    "openai": _openai,
    "scripted": lambda name, config: ScriptedLLM(
        [name or "This is a scripted reply."], seed=config.seed
    ),
}
_TTS: Mapping[str, Callable[[str, AgentConfig], TextToSpeech]] = {
    "piper": _piper,
    "kokoro": _kokoro,
    "scripted": lambda _, config: ScriptedTTS(first_audio_ms=80, seed=config.seed),
}
_TURN: Mapping[str, Callable[[str, AgentConfig], TurnDetection]] = {
    "smart-turn": _smart_turn,
    "silence": _silence,
    "scripted": lambda _, __: Endpointing(ScriptedEndOfTurn(), vad=ScriptedVAD()),
}


def _model_names(config: AgentConfig) -> list[str]:
    """What `config` takes from the model store."""
    prefixes = {"whisper": "whisper-", "local": "", "piper": "piper-", "smart-turn": "smart-turn-"}
    names = set()
    for uri in (config.stt, config.llm, config.tts, config.turn):
        scheme, _, name = uri.partition(":")
        if scheme == "kokoro" or (scheme == "piper" and Path(name).name.startswith("en")):
            names.add(_LEXICON)
        if scheme == "kokoro":
            names.add("kokoro-82m")
        elif scheme in prefixes and os.sep not in name:
            names.add(prefixes[scheme] + name)
    if not config.turn.startswith("scripted:"):
        names.add(_SILERO)
    if config.llm_draft and os.sep not in config.llm_draft:
        names.add(config.llm_draft)
    return sorted(names)
