"""Takes the markup out of text that was written to be read: Markdown, HTML, LaTeX.

What marks structure for the eye becomes what marks it for the ear: the end of a heading, list item
or table row becomes the end of a sentence, cells and numbered items are set off by commas.
"""

# ruff: noqa: RUF001 - look-alike punctuation is the subject

from __future__ import annotations

import html
import re

_FENCE = re.compile(r"\s{0,8}(`{3,}|~{3,})")
_QUOTE = re.compile(r"(?:\s{0,8}>){1,8} ?")
_HEADING = re.compile(r"\s{0,8}#{1,6}\s+")
_BULLET = re.compile(r"\s{0,40}[-*+•‣◦▪●○–](?:\s+\[[ xX]?\])?\s+(?=\S)")
_ITEM = re.compile(r"\s{0,40}\(?(\d{1,3}|[a-zA-Z])[.)]\s+(?=\S)")
_DEFINITION = re.compile(r"\s{0,3}\[[^\]\s]{1,80}\]:\s")
_RULE_CHARS = frozenset("-*_=~ \t")
_TABLE_RULE_CHARS = frozenset("|-:+ \t")
_ENDS = ".!?:;,…。！？"

_BREAK_TAG = re.compile(
    r"<\s?/?(?:br|p|li|ul|ol|div|h[1-6]|tr|table|hr|section)\b[^<>]{0,200}>", re.I
)
_COMMENT = re.compile(r"<!--.{0,500}?(?:-->|$)|<\|[^|<>\s]{1,40}\|>", re.S)
_TAG = re.compile(
    r"</[a-zA-Z][\w:-]{0,40}\s?>"
    r"|<[a-zA-Z][\w:-]{0,40}(?:\s+[\w:-]{1,40}(?:=(?:\"[^\"<>]{0,300}\"|'[^'<>]{0,300}'|[^\s<>]{1,80}))?"
    r"){0,12}\s?/?>"
)
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^<>\s]{1,500})>")

_IMAGE = re.compile(r"!\[([^\[\]]{0,300})\]\([^()\s]{0,500}(?:\s\"[^\"]{0,200}\")?\)")
_LINK = re.compile(
    r"\[([^\[\]]{1,300})\](?:\((?:[^()\s]|\([^()\s]{0,100}\)){0,500}(?:\s\"[^\"]{0,200}\")?\)"
    r"|\[[^\[\]]{0,80}\])"
)
_FOOTNOTE = re.compile(r"\s?\[\^?\d{1,3}(?:\s?[,–-]\s?\d{1,3})*+\]|\s?\[\^[\w-]{1,40}\]")
_EMPHASIS = re.compile(
    r"(?<!\w)\*{2,3}|\*{2,3}(?!\d)|(?<![\w*])\*(?=[^\s*])|(?<=[^\s*])\*(?![\w*])|~~"
)
_UNDERLINE = re.compile(r"(?<![A-Za-z0-9])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?![A-Za-z0-9])")
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~$&%-])")

_MATH = re.compile(r"\\[\[(]|\\[\])]|\$\$|\$(?=\\)|(?<=[}\w])\$(?![\d\w])")
_FRAC = re.compile(r"\\[dt]?frac\s?\{([^{}]{1,80})\}\s?\{([^{}]{1,80})\}")
_SQRT = re.compile(r"\\sqrt\s?\{([^{}]{1,80})\}")
_TEXT = re.compile(
    r"\\(?:text|mathrm|mathbf|mathit|operatorname|left|right)\b\s?(?:\{([^{}]{0,80})\})?"
)
_COMMANDS = {
    "times": "×",
    "cdot": "×",
    "div": "÷",
    "pm": "±",
    "leq": "≤",
    "le": "≤",
    "geq": "≥",
    "ge": "≥",
    "neq": "≠",
    "ne": "≠",
    "approx": "≈",
    "to": "→",
    "rightarrow": "→",
    "infty": "∞",
    "degree": "°",
    "circ": "°",
    "quad": " ",
    "ldots": "…",
    "dots": "…",
}
_COMMAND = re.compile(r"\\([a-zA-Z]{1,20})\b")


def without_lines(text: str) -> str:
    """One line of text for the lines of `text`: block markup gone, its structure kept as
    punctuation. Looks at each character a bounded number of times."""
    spoken: list[str] = []
    soft = False  # the last line is prose, which may go on in the next
    for line, is_code in _outside_code(text.splitlines()):
        bare, is_block = (line.strip(), True) if is_code else _plain_line(line)
        if not bare:
            soft = False
            continue
        if spoken:
            goes_on = soft and not is_block and (bare[0].islower() or bare[0].isdigit())
            spoken.append(" " if goes_on or spoken[-1][-1] in _ENDS else ". ")
        spoken.append(bare)
        soft = not is_block
    return "".join(spoken)


def _outside_code(lines: list[str]) -> list[tuple[str, bool]]:
    """The lines, each with whether it is code. A fenced block of one line is read out; of a longer
    one a listener is only told that it is there."""
    found: list[tuple[str, bool]] = []
    fence = ""
    code: list[str] = []
    for line in [*lines, None]:
        if fence:
            if line is None or line.strip().startswith(fence):
                found.append((code[0] if len(code) == 1 else "code block" if code else "", True))
                fence = ""
            elif line.strip():
                code.append(line)
        elif line is not None and (start := _FENCE.match(line)):
            fence, code = start.group(1), []
            inner = line[start.end() :].rstrip()
            if inner.endswith(fence):  # ```code``` on one line
                found.append((inner.removesuffix(fence), True))
                fence = ""
        elif line is not None:
            found.append((line, False))
    return found


def _plain_line(line: str) -> tuple[str, bool]:
    """The words of a line, and whether it is a block of its own (not a line of prose)."""
    quote = _QUOTE.match(line)
    if quote:
        line = line[quote.end() :]
    stripped = line.strip()
    signs = stripped.replace(" ", "")
    if len(signs) >= 3 and (_RULE_CHARS.issuperset(signs) or _TABLE_RULE_CHARS.issuperset(signs)):
        return "", True
    if _DEFINITION.match(line) and "://" in line:
        return "", True
    if stripped.startswith("|"):
        cells = [cell.strip() for cell in stripped.strip("|").split("|")]
        return ", ".join(cell for cell in cells if cell), True
    if heading := _HEADING.match(line):
        return line[heading.end() :].rstrip("# \t"), True
    if bullet := _BULLET.match(line):
        return line[bullet.end() :].strip(), True
    if item := _ITEM.match(line):
        mark = "," if item.group(1).isdigit() else "."
        return f"{item.group(1)}{mark} {line[item.end() :].strip()}", True
    return stripped, False


def with_line_breaks(text: str) -> str:
    """`text` with the HTML tags that begin a new line replaced by line breaks."""
    return _BREAK_TAG.sub("\n", text)


def without_inline(text: str) -> str:
    """`text` without inline markup: tags, entities, links, emphasis, code signs, LaTeX."""
    text = _COMMENT.sub(" ", text)
    text = _AUTOLINK.sub(r"\1", text)
    text = _TAG.sub(" ", text)
    text = html.unescape(text)
    text = _IMAGE.sub(r"\1", text)
    text = _LINK.sub(r"\1", text)
    text = _FOOTNOTE.sub("", text)
    text = _without_latex(text)
    text = _ESCAPED.sub(r"\1", text)
    text = _EMPHASIS.sub("", text)
    text = _UNDERLINE.sub("", text)
    return text.replace("`", "")


def _without_latex(text: str) -> str:
    if "\\" not in text and "$" not in text:
        return text
    text = _MATH.sub(" ", text)
    text = _FRAC.sub(r" \1 / \2 ", text)
    text = _SQRT.sub(r" √\1 ", text)
    text = _TEXT.sub(r"\1", text)
    return _COMMAND.sub(lambda m: _COMMANDS.get(m.group(1), m.group()), text)
