"""Abbreviations, acronyms and Roman numerals: what is written in fewer letters than it is said."""

# ruff: noqa: RUF001 - look-alike quotation marks are the subject

from __future__ import annotations

import re

from stages.tts.spoken.numbers import cardinal, ordinal
from stages.tts.spoken.rewriting import Rule

_WITH_A_NAME = {
    "Dr": "Doctor",
    "Drs": "Doctors",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Mx": "Mix",
    "Messrs": "Misters",
    "Prof": "Professor",
    "Gen": "General",
    "Col": "Colonel",
    "Sgt": "Sergeant",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Cmdr": "Commander",
    "Adm": "Admiral",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Pres": "President",
    "Gov": "Governor",
    "Sen": "Senator",
    "Rep": "Representative",
    "Mt": "Mount",
    "Ft": "Fort",
    "St": "Saint",
}
_NEED_NO_DOT = r"Dr|Mr|Mrs|Ms|Mx|Prof"
_STREETS = {
    "St": "Street",
    "Ave": "Avenue",
    "Blvd": "Boulevard",
    "Rd": "Road",
    "Ln": "Lane",
    "Dr": "Drive",
    "Ct": "Court",
    "Pl": "Place",
    "Hwy": "Highway",
    "Apt": "Apartment",
}
_WITH_A_NUMBER = {
    "no": "number",
    "nos": "numbers",
    "fig": "figure",
    "figs": "figures",
    "eq": "equation",
    "sec": "section",
    "ch": "chapter",
    "vol": "volume",
    "p": "page",
    "pp": "pages",
    "pg": "page",
    "ext": "extension",
    "tel": "telephone",
    "ca": "about",
    "c": "about",
    "approx": "approximately",
    "art": "article",
}
_ANYWHERE = {
    "e.g": "for example",
    "i.e": "that is",
    "etc": "et cetera",
    "vs": "versus",
    "approx": "approximately",
    "est": "established",
    "dept": "department",
    "govt": "government",
    "assoc": "association",
    "intl": "international",
    "misc": "miscellaneous",
    "temp": "temperature",
    "avg": "average",
    "max": "maximum",
    "min": "minimum",
    "incl": "including",
    "esp": "especially",
    "jr": "Junior",
    "sr": "Senior",
    "inc": "Inc",
    "ltd": "Limited",
    "corp": "Corporation",
    "co": "Company",
    "bros": "Brothers",
    "univ": "University",
    "et al": "and others",
    "cf": "compare",
    "viz": "namely",
    "ph.d": "PhD",
    "a.k.a": "also known as",
    "w.r.t": "with respect to",
}
_WANT_MORE = frozenset(
    ("vs", "cf", "viz", "a.k.a", "w.r.t", "approx", "est", "esp", "incl", "max", "min", "avg")
)
_IN_NAMES = frozenset(("jr", "sr", "inc", "ltd", "corp", "co", "bros", "univ"))
_PLAIN = {
    "vs": "versus",
    "etc": "et cetera",
    "w/": "with",
    "w/o": "without",
    "b/c": "because",
    "btw": "by the way",
    "fyi": "for your information",
    "a/c": "A-C",
    "y/o": "years old",
    "n/a": "not applicable",
    "N/A": "not applicable",
    "AKA": "also known as",
    "aka": "also known as",
    "ETA": "E-T-A",
}
_STARTERS = frozenset(
    (
        *("It", "The", "Then", "This", "That", "We", "You", "He", "She", "They", "But", "And"),
        *("So", "If", "In", "On", "At", "What", "There", "Here", "Let", "Is", "Do", "Can", "My"),
        *("Our", "I", "For", "When", "How", "Why", "Please", "Yes", "No", "Now"),
    )
)
"""Words that begin a sentence rather than go on with a name."""
_NOT_NAMES = _STARTERS | frozenset(("From", "To", "Of", "Near", "Visit", "Like", "Around"))

_READ_AS_WORDS = frozenset(
    (
        *("RAM", "ROM", "PIN", "ZIP", "LAN", "WAN", "SIM", "RAG", "RIP", "CAD"),
        *("NOT", "YES", "IF", "NEW", "TIP", "FEW", "OWN", "TOO", "OUT", "OFF", "AGO", "AIR", "ASK"),
        *("BAD", "BIG", "BIT", "BOX", "BUY", "CAR", "CUT", "DAY", "DRY", "EAT", "END", "FAR"),
        *("FUN", "GAS", "HOT", "ICE", "JOB", "KEY", "LET", "LOT", "LOW", "MAN", "OIL", "OLD"),
        *("PAY", "RED", "RUN", "SAD", "SAY", "SEE", "SIX", "SKY", "SUN", "TAX", "TOP", "TRY"),
        *("WAR", "WAY", "WEB", "WET", "WIN", "YET", "AH", "OH", "HEY", "HI"),
    )
)
"""Acronyms that are words by now, and short words written large for emphasis: voices read most
words of three capitals letter by letter."""

_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}
_ROMAN = r"(?=[IVXL]+\b)(?:L?X{1,3}|X?L)?(?:IX|IV|V?I{0,3})(?<=[IVXL])"
_COUNTED = (
    "War|Part|Chapter|Volume|Act|Scene|Phase|Type|Class|Section|Article|Book|Level|Stage|Appendix"
    "|Figure|Table|Title|Bowl|Grade|Episode|Season|Step|Unit|Apollo|Mark|Rocky|Vatican"
)
_RULERS = (
    "Henry|Louis|Elizabeth|Charles|George|Edward|William|Richard|James|Paul|Pius|Leo|Benedict"
    "|Francis|Philip|Alexander|Nicholas|Peter|Catherine|Frederick|Napoleon|Mary|John|Gregory"
    "|Innocent|Urban|Clement|Ramses|Ferdinand|Wilhelm|Gustav|Ivan|Otto|Mehmed"
)


def _roman(text: str) -> int:
    values = [_ROMAN_VALUES[c] for c in text]
    return sum(
        -v if any(later > v for later in values[i + 1 :]) else v for i, v in enumerate(values)
    )


def _text_ends(match: re.Match[str]) -> bool:
    return not match.string[match.end() :].strip(" \"')”’")


def _ends_sentence(match: re.Match[str]) -> bool:
    following = re.match(r"\s*([A-Z]\w*)", match.string[match.end() : match.end() + 40])
    is_part_of_name = match.group(1).lower() in _IN_NAMES
    if following is None:
        return _text_ends(match)
    return following.group(1) in _STARTERS if is_part_of_name else True


def _anywhere(match: re.Match[str]) -> str:
    short = match.group(1)
    after_digit = match.string[: match.start()].rstrip()[-1:].isdigit()
    if (short.isupper() and len(short) > 1) or (short == "min" and after_digit):
        return match.group()
    words = _ANYWHERE[short.lower()]
    if match.group(1)[0].isupper() and words[0].islower():
        words = words[0].upper() + words[1:]
    if match.group(2) or short.lower() in ("e.g", "i.e"):
        return words + ","
    return words + ("." if short.lower() not in _WANT_MORE and _ends_sentence(match) else "")


def _street(match: re.Match[str]) -> str:
    name, short = match.group(1), match.group(2)
    if name in _NOT_NAMES:
        return match.group()
    return f"{name} {_STREETS[short]}{'.' if _text_ends(match) else ''}"


def _numbered(match: re.Match[str]) -> str:
    words = _WITH_A_NUMBER[match.group(1).lower()]
    return words.capitalize() if match.group(1)[0].isupper() else words


def _letters(match: re.Match[str]) -> str:
    """ "U.S." and "J.R.R.": the dots say that letters are read, and hyphens say it to a voice."""
    letters = match.group().replace(".", "")
    if not letters.isupper() and len(letters) > 2:
        return match.group().replace(".", " ")
    return "-".join(letters.upper()) + ("." if _text_ends(match) else "")


def _initial(match: re.Match[str]) -> str:
    return match.group() if match.group(2) in _STARTERS else f"{match.group(1)} "


ABBREVIATIONS: list[Rule] = [
    (re.compile(r"(?<=\w) v\. (?=[A-Z])"), " versus "),
    (
        re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, _ANYWHERE))})\.(,)?(?!\w)", re.I),
        _anywhere,
    ),
    (
        re.compile(
            r"\b([A-Z][a-z]+|\d{1,3}(?:st|nd|rd|th)) (St|Dr|Ct|Pl)\."
            r"(?! [A-ZÀ-Ö][a-zà-ÿ]+ ?[,.A-Z])"
        ),
        _street,
    ),
    (
        re.compile(r"\b(Ave|Blvd|Rd|Ln|Hwy|Apt)\.(?!\w)"),
        lambda m: _STREETS[m.group(1)] + ("." if _text_ends(m) else ""),
    ),
    (
        re.compile(rf"\b({'|'.join(_WITH_A_NAME)})\. ?(?=[A-Z])"),
        lambda m: _WITH_A_NAME[m.group(1)] + " ",
    ),
    (re.compile(r"\b(Mrs?|Ms|Dr)\.(?= (?:and|&|or) )"), lambda m: _WITH_A_NAME[m.group(1)]),
    (re.compile(r"\bSt\.(?!\w)"), lambda m: "Street" + ("." if _text_ends(m) else "")),
    (re.compile(rf"\b({_NEED_NO_DOT})(?= [A-Z])"), lambda m: _WITH_A_NAME[m.group(1)]),
    (
        re.compile(rf"\b({'|'.join(_WITH_A_NUMBER)})\. ?(?=\d)", re.I),
        lambda m: _numbered(m) + " ",
    ),
    (
        re.compile(r"(?<![\w.])(?:[A-Z]\. ?){2,4}(?=[A-Z][a-z])"),
        lambda m: "-".join(re.findall(r"[A-Z]", m.group())) + " ",
    ),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]\.){2,8}(?!\w)"), _letters),
    (re.compile(r"(?<![\w.])([A-Z])\. ?(?=([A-Z][a-z]+))"), _initial),
]

WORDS: list[Rule] = [
    (
        re.compile(rf"(?<![\w/])(?<!slash )({'|'.join(map(re.escape, _PLAIN))})(?![\w/])"),
        lambda m: _PLAIN[m.group(1)],
    ),
    (
        re.compile(rf"\b({_COUNTED}) (?!L\b)({_ROMAN})\b(?<!(?<!War) I(?= [a-z]))"),
        lambda m: f"{m.group(1)} {cardinal(_roman(m.group(2)))}",
    ),
    (
        re.compile(rf"\b({_RULERS}) (?![IL]\b)({_ROMAN})\b(?!')"),
        lambda m: f"{m.group(1)} the {ordinal(_roman(m.group(2)))}",
    ),
    (
        re.compile(r"\b(?:I{2,3}|IV|VI{1,3}|IX|XI{1,3}|XIV|XVI{0,3}|XIX|XX|XXI)\b"),
        lambda m: cardinal(_roman(m.group())) if m.group() not in ("IV", "VI", "XX") else m.group(),
    ),
    (
        re.compile(r"\b[A-Z]{2,3}\b"),
        lambda m: m.group().lower() if m.group() in _READ_AS_WORDS else m.group(),
    ),
    # the letter A, which voices take for the article when a word follows
    (re.compile(r"(?<=[a-z] )A(?= [a-z])|\bA(?= (?:plus|minus|four)\b)"), "A-"),
]
"""For when all else is in words."""
