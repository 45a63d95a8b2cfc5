"""A rule replaces what a pattern finds; the parts of the spoken form are lists of rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str] | str]


def rewritten(text: str, rules: Iterable[Rule]) -> str:
    """`text` after all `rules`, in order."""
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text
