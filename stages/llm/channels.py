"""What of a model's text is meant to be heard, and what is thinking or a call of a tool.

A chat format marks its silent spans by text (`<think>...</think>`) or by control tokens, whose text
stands for them here. Markers come in any number of pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from voicepipe.errors import UsageError


class Channel(Enum):
    SPEECH = "speech"
    THINKING = "thinking"
    TOOL_CALL = "tool call"
    """What stands between the markers: JSON, or in gpt-oss the recipient and then JSON."""


Piece = tuple[Channel, str]


@dataclass(frozen=True, slots=True)
class Span:
    """Text from `opening` to the first of `closings`. Inside of it no other markers count, except
    for its own opening where `nests`: then as many closings must follow."""

    channel: Channel
    opening: str
    closings: tuple[str, ...]
    nests: bool = False


@dataclass(frozen=True, slots=True)
class ChatMarkers:
    """How a chat format marks channels. `silent` texts are glue that belongs to none, wherever
    they stand in speech. Raises UsageError when a marker is empty or begins another one."""

    spans: tuple[Span, ...]
    silent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for marker in self.in_speech:
            longer = [m for m in self.in_speech if m.startswith(marker) and m != marker]
            if not marker or longer:
                raise UsageError(
                    f"chat markers: {marker!r} is empty or begins {longer}: give markers whole"
                )

    @property
    def in_speech(self) -> tuple[str, ...]:
        """Closings too: one without an opening is not to be heard either."""
        markers = [m for span in self.spans for m in (span.opening, *span.closings)]
        return (*markers, *self.silent)


XML = ChatMarkers(
    (
        Span(Channel.THINKING, "<think>", ("</think>",), nests=True),
        Span(Channel.THINKING, "<thinking>", ("</thinking>",), nests=True),
        Span(Channel.TOOL_CALL, "<tool_call>", ("</tool_call>",)),
    )
)
"""Of Qwen, DeepSeek and Hermes."""

HARMONY = ChatMarkers(
    (
        Span(Channel.THINKING, "<|channel|>analysis<|message|>", ("<|end|>", "<|return|>")),
        Span(Channel.TOOL_CALL, "<|channel|>commentary", ("<|call|>", "<|end|>", "<|return|>")),
    ),
    ("<|start|>assistant", "<|channel|>final", "<|message|>", "<|constrain|>"),
)
"""Of gpt-oss (https://cookbook.openai.com/articles/openai-harmony)."""


class ChannelStream:
    """Splits a reply's text into channels while it comes.

    The pieces of a channel concatenate to its text, without markers. Text is held back only while
    it is the beginning of a marker. A span that is not closed lasts to the end. `begins_in` is for
    chat templates that open a span themselves, at the end of the prompt.
    """

    def __init__(self, markers: ChatMarkers = XML, begins_in: Span | None = None) -> None:
        self._openings = {span.opening: span for span in markers.spans}
        self._in_speech = markers.in_speech
        self._span = begins_in
        self._depth = 1
        self._held = ""

    def feed(self, text: str) -> list[Piece]:
        """The text that is certain by now: (channel, piece) in order, none of them empty."""
        text = self._held + text
        pieces: list[Piece] = []
        start = at = 0
        while at < len(text):
            marker = next((m for m in self._markers() if _agree(m, text, at)), "")
            if len(marker) > len(text) - at:
                break
            if marker:
                self._put(pieces, text[start:at])
                self._pass(marker)
                start = at = at + len(marker)
            else:
                at += 1
        self._put(pieces, text[start:at])
        self._held = text[at:]
        return pieces

    def finish(self) -> list[Piece]:
        """The text is over: more than a character of a marker is one that was cut off, and gone."""
        pieces: list[Piece] = []
        if len(self._held) == 1:
            self._put(pieces, self._held)
        self._held = ""
        return pieces

    def _markers(self) -> Sequence[str]:
        if self._span is None:
            return self._in_speech
        nested = (self._span.opening,) if self._span.nests else ()
        return (*nested, *self._span.closings)

    def _pass(self, marker: str) -> None:
        if self._span is None:
            self._span, self._depth = self._openings.get(marker), 1
        else:
            self._depth += 1 if marker == self._span.opening else -1
            if self._depth == 0:
                self._span = None

    def _put(self, pieces: list[Piece], text: str) -> None:
        channel = self._span.channel if self._span else Channel.SPEECH
        if text:
            pieces.append((channel, text))


class SpokenText:
    """The speech of a reply alone, without the white space behind what is silent."""

    def __init__(self, markers: ChatMarkers = XML, begins_in: Span | None = None) -> None:
        self._channels = ChannelStream(markers, begins_in)
        self._after_silence = begins_in is not None

    def feed(self, text: str) -> str:
        """What of the text is certain to be meant to be heard, maybe ""."""
        return self._spoken(self._channels.feed(text))

    def finish(self) -> str:
        """The rest."""
        return self._spoken(self._channels.finish())

    def _spoken(self, pieces: Sequence[Piece]) -> str:
        spoken = ""
        for channel, text in pieces:
            if channel is not Channel.SPEECH:
                self._after_silence = True
                continue
            heard = text.lstrip() if self._after_silence else text
            self._after_silence &= not heard
            spoken += heard
        return spoken


def _agree(marker: str, text: str, at: int) -> bool:
    """Whether `text` from `at` on is the marker or as much of it as there is."""
    return marker.startswith(text[at : at + len(marker)])
