"""Where callers are: in memory, in audio files, behind a WebSocket."""

from voicepipe.transports.memory import CallerTurn, Cue, MemoryTransport
from voicepipe.transports.wav import (
    RecordedTurn,
    WavTransport,
    call_transport,
    load_call,
    read_speech,
)

__all__ = [
    "CallerTurn",
    "Cue",
    "MemoryTransport",
    "RecordedTurn",
    "WavTransport",
    "call_transport",
    "load_call",
    "read_speech",
]
