"""Speech to text: Whisper while the caller still speaks, and a scripted stand-in."""

from stages.stt.scripted import ScriptedSTT
from stages.stt.whisper import WhisperSTT

__all__ = ["ScriptedSTT", "WhisperSTT"]
