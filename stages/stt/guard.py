"""Keeps out what Whisper says when nobody speaks, and what it says twice.

Whisper has learned from subtitles, and writes "Thank you." under silence. Such a text is dropped
only if the audio confirms that nobody spoke: a caller may well say "Thank you.".
"""

from __future__ import annotations

from collections.abc import Sequence

from stages.stt.words import Word

NO_SPEECH = 0.6
"""Whisper's own probability of silence. Measured: noise, clicks and tones ≥ 0.74, words ≤ 0.45."""

LOG_PROB = -1.9
"""Mean log-probability of a token below which a text is a guess. Noise -2.1 and less, words -1.6
and more."""

MIN_VOICED_S = 0.15
"""Speech that a doubtful text needs: less than the shortest word."""

VOICED_S_PER_CHAR = 0.03
"""And so much for each letter of a well-known phrase: half of what it takes to say it."""

PHRASES = frozenset(
    phrase.strip()
    for line in """
        you | thank you | thanks | thank you very much | thank you so much | thank you for watching
        thanks for watching | thank you for listening | thanks for listening | bye | bye bye
        goodbye | please subscribe | subscribe | like and subscribe | see you next time
        see you in the next video | ill see you next time | the end | music | applause | silence
        im gonna be right back | ill be right back | well be right back | im sorry | so | oh | uh
        um | hmm | mm | okay | yeah | transcription by castingwords
        subtitles by the amaraorg community
    """.strip().splitlines()
    for phrase in line.split("|")
)
"""What Whisper says of silence and noise, by "Careless Whisper" (Koenecke et al., 2024), the lists
its users keep, and our own noises; without apostrophes."""

MAX_WORDS_PER_S = 6.0
"""Nobody speaks faster for a whole sentence."""

MIN_REPEATS = {1: 4, 2: 3}
"""How often words must come in a row to be a loop, by their number; else twice."""


def without_loop(
    words: Sequence[Word], duration_s: float, *, whole: bool, after: Sequence[Word] = ()
) -> list[Word]:
    """`words` with each loop cut to its first round, if they are more than can be said in that time
    or the decoder was stopped before it had the `whole` text. A loop may have begun in the words
    `after` which they come."""
    n_before = len(after)
    if whole and n_before + len(words) <= MAX_WORDS_PER_S * max(duration_s, 0.5):
        return list(words)
    spoken = [word.spoken for word in (*after, *words)]
    for period in range(1, len(spoken) // 2 + 1):
        n_repeats = MIN_REPEATS.get(period, 2)
        for start in range(len(spoken) - period * n_repeats + 1):
            first = spoken[start : start + period]
            if all(
                spoken[start + i * period : start + (i + 1) * period] == first
                for i in range(1, n_repeats)
            ):
                return list(words[: max(0, start + period - n_before)])
    return list(words)


def voice_needed_s(words: Sequence[Word], *, no_speech: float, looped: bool) -> float:
    """Seconds of speech that a voice activity detector must find for `words` to be believed; 0 when
    there is no doubt. `looped`: there was a loop in them."""
    said = " ".join(word.spoken for word in words).strip()
    if said.replace("'", "") in PHRASES:
        return max(MIN_VOICED_S, VOICED_S_PER_CHAR * len(said))
    log_probs = [log_prob for word in words for log_prob in word.log_probs]
    unlikely = sum(log_probs) / max(1, len(log_probs)) < LOG_PROB
    doubtful = unlikely or looped or not said or no_speech >= NO_SPEECH
    return MIN_VOICED_S if doubtful else 0.0
