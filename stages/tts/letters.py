"""How an unknown English word is read from its letters, in Kokoro's alphabet.

A small set of ordered rules in the manner of Elovitz et al., "Automatic Translation of English
Text to Phonetics by Means of Letter-to-Sound Rules" (NRL Report 7948, 1976). It is the last resort,
for names and invented words: understandable, not correct.
"""

# ruff: noqa: RUF001 - phonemes are written in IPA

from __future__ import annotations

import re

_RULES: tuple[tuple[str, str], ...] = (
    (r"^kn", "n"),
    (r"^wr", "ɹ"),
    (r"^gn", "n"),
    (r"^ps", "s"),
    (r"^x", "z"),
    (r"^wh", "w"),
    (r"^y(?=[aeiou])", "j"),
    (r"tion|sion|cian", "ʃən"),
    (r"ture$", "ʧəɹ"),
    (r"ous$", "əs"),
    (r"cious|tious", "ʃəs"),
    (r"[ct]ial", "ʃᵊl"),
    (r"igh", "I"),
    (r"augh|ough", "ɔ"),
    (r"eigh", "A"),
    (r"tch|ch", "ʧ"),
    (r"sch", "sk"),
    (r"sh", "ʃ"),
    (r"ph", "f"),
    (r"th", "θ"),
    (r"gh", "ɡ"),
    (r"ck", "k"),
    (r"qu", "kw"),
    (r"ng$|ng(?=[^aeiouy])", "ŋ"),
    (r"nk", "ŋk"),
    (r"dge?(?=$)|dg(?=e)", "ʤ"),
    (r"ee|ea|ie(?!$)", "i"),
    (r"ai|ay|ei|ey(?!$)", "A"),
    (r"ey$", "i"),
    (r"oa|ow$|oe", "O"),
    (r"oo", "u"),
    (r"ou|ow", "W"),
    (r"oi|oy", "Y"),
    (r"au|aw", "ɔ"),
    (r"eu|ew|ue$", "u"),
    (r"ie$", "i"),
    (r"ar(?![aeiou])", "ɑɹ"),
    (r"or(?![aeiou])", "ɔɹ"),
    (r"[eiu]r(?![aeiou])", "ɜɹ"),
    (r"a(?=[^aeiouywx]e(?:$|s$|d$))", "A"),
    (r"i(?=[^aeiouywx]e(?:$|s$|d$))", "I"),
    (r"o(?=[^aeiouywx]e(?:$|s$|d$))", "O"),
    (r"u(?=[^aeiouywx]e(?:$|s$|d$))", "u"),
    (r"e(?=[^aeiouywx]e(?:$|s$|d$))", "i"),
    (r"(?<=[^aeiouy])le$", "ᵊl"),
    (r"(?<=.)e$", ""),
    (r"(?<=[td])ed$", "ᵻd"),
    (r"c(?=[eiy])", "s"),
    (r"g(?=[eiy])", "ʤ"),
    (r"([bcdfgklmnprstvz])(?=\1)", ""),
    (r"x", "ks"),
    (r"(?<=[^aeiouy])y$", "i"),
    (r"^y|(?<=[aeiou])y(?=[aeiou])", "j"),
    (r"y", "ɪ"),
    (r"a$", "ə"),
    (r"o$", "O"),
    (r"i$", "i"),
    (r"u$", "u"),
)
_RULE = [(re.compile(pattern), sound) for pattern, sound in _RULES]

_LETTER = dict(zip("abcdefghijklmnopqrstuvwz", "æbkdɛfɡhɪʤklmnɑpkɹstʌvwz", strict=True))

_VOWEL = re.compile(r"[AIOWYiuæɑɔɛɜɪʌ]")


def letters_to_sound(word: str) -> str:
    """The sound of `word` (a-z and apostrophes, lower case); the first full vowel is stressed."""
    sound, at = "", 0
    while at < len(word):
        for pattern, phonemes in _RULE:
            # a pattern's ^ and look-behind see the whole word: match at a position, do not slice
            found = pattern.match(word, at)
            if found and found.end() > at:
                sound, at = sound + phonemes, found.end()
                break
        else:
            sound, at = sound + _LETTER.get(word[at], ""), at + 1
    return _VOWEL.sub(lambda m: "ˈ" + m.group(), sound, count=1)
