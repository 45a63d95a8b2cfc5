"""Where callers are: in memory, in audio files, behind a WebSocket."""

from voicepipe.transports.memory import CallerTurn, Cue, MemoryTransport
from voicepipe.transports.wav import WavTransport, call_transport, load_call, read_speech

__all__ = [
    "CallerTurn",
    "Cue",
    "MemoryTransport",
    "WavTransport",
    "call_transport",
    "load_call",
    "read_speech",
]
