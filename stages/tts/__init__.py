"""Text-to-speech: phrases in, labelled frames out."""

from stages.tts.kokoro import KokoroTTS
from stages.tts.piper import PiperTTS
from stages.tts.scripted import ScriptedTTS
from stages.tts.speaking import Pauses

__all__ = ["KokoroTTS", "Pauses", "PiperTTS", "ScriptedTTS"]
