"""How signs are read: operators between amounts, and what else stands for words."""

# ruff: noqa: RUF001 - look-alike signs are the subject

from __future__ import annotations

import re
import unicodedata

from stages.tts.spoken.rewriting import Rule
from stages.tts.spoken.units import PER


def _greek(match: re.Match[str]) -> str:
    name = unicodedata.name(match.group()).rpartition(" ")[2].lower()
    return f" {'lambda' if name == 'lamda' else name} "


_COMPASS = {"N": "north", "E": "east", "S": "south", "W": "west"}
_LEFT = r"(?:(?<=[\d)%])|(?<=\b[A-Za-z]))"
"""Behind a number, a bracket or a variable."""

OPERATORS: list[Rule] = [
    # "1.000,50 €"
    (
        re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3}){1,4}),(\d{1,2})(?![\d,.]?\d)"),
        lambda m: f"{m.group(1).replace('.', '')}.{m.group(2)}",
    ),
    (re.compile(r"(?<![\d.,])(\d{1,6}),(\d{1,2})(?= ?€)"), r"\1.\2"),
    (re.compile(r"(?<=\d)[eE]([+-]?\d{1,4})\b"), r" times 10^\1"),
    (
        re.compile(
            r"(?<=[A-Za-z])/(s|sec|min|h|hr|d|mo|yr|second|minute|hour|day|week|month|year)\b"
        ),
        lambda m: f" per {PER.get(m.group(1), m.group(1))}",
    ),
    (re.compile(r"(?<![\w:;])(?:[:;][-o']?[)(DPp|/\\]|<3|\^_\^|[xX]D)(?!\w)"), " "),
    (re.compile(r"(?<=\w)\((s|es)\)"), r"\1"),
    (re.compile(r"\b(\w+)\(\)"), r"\1"),
    (re.compile(r"\b([A-Za-z])\((\w{1,3})\)"), r"\1 of \2"),
    (re.compile(r" ?(?:=>|->|→|⇒|⟶|➜|➔|➡) ?"), " to "),
    (re.compile(r" ?(?:<-|←|⇐) ?"), " from "),
    (re.compile(r" ?(?:!=|≠) ?"), " is not equal to "),
    (re.compile(r" ?(?:<=|≤) ?(?=[\w-])"), " is at most "),
    (re.compile(r" ?(?:>=|≥) ?(?=[\w-])"), " is at least "),
    # a comparison has a number or a variable on one side; "Settings > Privacy" is a way
    (re.compile(rf"{_LEFT} ?< ?(?=[\w(-])|(?<=\w) < (?=\d)"), " is less than "),
    (re.compile(rf"{_LEFT} ?> ?(?=[\w(-])|(?<=\w) > (?=\d)"), " is greater than "),
    (re.compile(r"(?<=\w) > (?=\w)"), ", "),
    (re.compile(r" ?={1,3} ?"), " equals "),
    (
        re.compile(rf"(?:{_LEFT} {{0,2}}[×*·∙]|(?<=\w) ×) {{0,2}}(?=[\w(√])(?<![A-Za-z][*·])"),
        " times ",
    ),
    (re.compile(r"(?<=[\w)%]) ?÷ ?"), " divided by "),
    (re.compile(r"(?<=\d) / (?=\d)"), " divided by "),
    (re.compile(r"(?<=\b\w) / (?=\w\b)"), " over "),
    (re.compile(r"(?<=[\w)%]) \+ (?=[\w($€£√])|(?<=[\d)]) ?\+ ?(?=[\d(])"), " plus "),
    (re.compile(r"(?<=\w)@(?=\d)"), " at "),
    (re.compile(r"√ ?"), " square root of "),
    (re.compile(r"&&"), " and "),
    (re.compile(r"\|\|"), " or "),
    # ranges such as "9:00-11:30", "9am-5pm" and "$5m-$10m"
    (re.compile(r"(?<=:\d\d) ?[-–] ?(?=\d{1,2}[: ])|(?<=\d)[-–](?=\d{1,2}:\d\d)"), " to "),
    (re.compile(r"(?<=\d)( ?[A-Za-z%°]{1,3})[-–](?=[$€£]?\d)"), r"\1 to "),
]

SIGNS: list[Rule] = [
    (re.compile(r"\b([CFcf])#(?!\w)"), lambda m: f"{m.group(1).upper()} sharp"),
    (re.compile(r"\b([A-Za-z])\+\+"), r"\1 plus plus"),
    (re.compile(r"\b([A-F])\+(?!\w)"), r"\1 plus"),
    (
        re.compile(r"\b([A-Z]{1,3}) ?& ?([A-Z])\b"),
        lambda m: f"{'-'.join(m.group(1))} and {m.group(2)}",
    ),
    (re.compile(r" ?& ?"), " and "),
    (re.compile(r"(?<!\w)@(?=\w)|(?<=\w) @ (?=\w)"), " at "),
    (re.compile(r"(?<!\w)#(?=[A-Za-z])"), " hashtag "),
    (re.compile(r"(?<!\w)--(?=[a-z])"), " dash dash "),
    (re.compile(r"(?<!\S)-(?=[a-z])"), " dash "),
    (re.compile(r" ?% ?"), " percent "),
    (re.compile(r"§ ?"), " section "),
    (re.compile(r"∞"), " infinity "),
    (re.compile(r" ?± ?"), " plus or minus "),
    (re.compile(r" ?≈ ?"), " is about "),
    (
        re.compile(r"° ?([NESW])\b"),
        lambda m: f" degrees {_COMPASS[m.group(1)]}",
    ),
    (re.compile(r"°"), " degrees "),
    # "Node.js", "main.py", but "end.Next"
    (re.compile(r"(?<=[a-z])\.(?=[A-Z][a-z])"), ". "),
    (re.compile(r"(?<=\w)\.(?=[A-Za-z])|(?<!\S)\.(?=[a-z]{2})"), " dot "),
    (re.compile(r"(?<![\u0370-\u03ff])[Α-Ωα-ω](?![\u0370-\u03ff])"), _greek),
]  # fmt: skip
