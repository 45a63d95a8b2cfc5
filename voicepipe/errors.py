"""The errors a user sees. Each message is one line: what, where, and what to do about it."""

from __future__ import annotations


class VoicepipeError(Exception):
    """Base of every error that voicepipe raises on purpose; the text is meant for the user."""

    exit_code = 1


class UsageError(VoicepipeError):
    """The caller of the code or of the command line asked for something that does not exist."""

    exit_code = 2


class ComponentError(VoicepipeError):
    """A component (model, device, server, endpoint) could not start or stopped working."""

    exit_code = 3
