"""voicepipe: a real-time voice agent framework built around a latency budget."""

from voicepipe.budget import Budget
from voicepipe.session import Session, SessionConfig, Stages

__all__ = ["Budget", "Session", "SessionConfig", "Stages"]
