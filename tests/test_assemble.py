"""From a configuration to an agent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest

from voicepipe.assemble import Agent, describe
from voicepipe.config import AgentConfig
from voicepipe.errors import UsageError
from voicepipe.model_catalogue import MODELS
from voicepipe.protocols import Phrase, TextToSpeech

SCRIPTED = AgentConfig(stt="scripted:", llm="scripted:", tts="scripted:", turn="scripted:")


def models_of(config: AgentConfig) -> set[str]:
    provenance = cast(dict[str, dict[str, object]], describe(config)["provenance"])
    return set(provenance["models"])


def test_make_demo_fetches_what_the_default_configuration_takes_and_nothing_more() -> None:
    assert models_of(AgentConfig()) == {model.name for model in MODELS if model.default}


@pytest.mark.parametrize(
    ("tts", "models"),
    [
        ("piper:en_US-joe-medium", {"piper-en_US-joe-medium", "english-lexicon"}),
        ("piper:/voices/en_GB-x.onnx", {"english-lexicon"}),
        ("piper:/voices/de_DE-x.onnx", set()),
        ("kokoro:af_heart", {"kokoro-82m", "english-lexicon"}),
    ],
)
def test_the_models_of_a_voice_are_named(tts: str, models: set[str]) -> None:
    assert models_of(replace(SCRIPTED, tts=tts)) == models


@pytest.mark.models
def test_the_default_voice_speaks_without_the_gpl_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "piper", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "piper.phonemize_espeak", None)
    agent = Agent(replace(SCRIPTED, tts=AgentConfig().tts))
    assert asyncio.run(seconds_of(agent.stages.tts, "It is half past nine.")) > 0.5


async def seconds_of(tts: TextToSpeech, text: str) -> float:
    async def phrases() -> AsyncIterator[Phrase]:
        yield Phrase(text)

    async with tts.open(phrases(), sample_rate_hz=16_000) as frames:
        return sum([frame.n_samples async for frame in frames]) / 16_000


def test_several_endpoints_are_taken_and_half_an_address_is_refused() -> None:
    Agent(replace(SCRIPTED, llm="openai:http://a/v1,http://b/v1#m"))
    with pytest.raises(UsageError, match="names no endpoint and model"):
        Agent(replace(SCRIPTED, llm="openai:http://a/v1"))
