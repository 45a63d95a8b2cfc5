"""Language models: on this machine, at an OpenAI-compatible endpoint, or scripted."""

from stages.llm.endpoints import Address, parse_addresses
from stages.llm.local import LocalLLM
from stages.llm.remote import OpenAILLM
from stages.llm.reply_text import ReplyLength
from stages.llm.sampling import Sampling
from stages.llm.scripted import ScriptedCalls, ScriptedLLM

__all__ = [
    "Address",
    "LocalLLM",
    "OpenAILLM",
    "ReplyLength",
    "Sampling",
    "ScriptedCalls",
    "ScriptedLLM",
    "parse_addresses",
]
