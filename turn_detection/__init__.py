"""Turn detection: who speaks, whether the caller is done, and who has the floor."""

from turn_detection.barge_in import BargeInConfig
from turn_detection.detector import Endpointing, EndpointingStream
from turn_detection.endpointing import EndpointingConfig, State, TurnMachine
from turn_detection.energy import EnergyPause
from turn_detection.score import EndScore, PauseConfig
from turn_detection.scripted import ScriptedEndOfTurn, ScriptedVAD
from turn_detection.smart_turn import SmartTurn
from turn_detection.vad import SileroVAD, VoiceActivityModel, WebRtcVAD
from turn_detection.voice import VoiceConfig

__all__ = [
    "BargeInConfig",
    "EndScore",
    "Endpointing",
    "EndpointingConfig",
    "EndpointingStream",
    "EnergyPause",
    "PauseConfig",
    "ScriptedEndOfTurn",
    "ScriptedVAD",
    "SileroVAD",
    "SmartTurn",
    "State",
    "TurnMachine",
    "VoiceActivityModel",
    "VoiceConfig",
    "WebRtcVAD",
]
