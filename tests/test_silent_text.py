import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicepipe.silent_text import Kind, ReplyScanner, without_silent


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("Plain text.", "Plain text."),
        ("<think>Hmm. Is it?</think>Yes.", "Yes."),
        ("<THINK>Hmm.</Think>Yes.", "Yes."),
        ("A <think>b</think> c <thinking>d</thinking> e", "A  c  e"),
        ("<think>never closed. Really", ""),
        ("thoughts of a template that opens them</think>\n\nYes.", "\n\nYes."),
        ('<tool_call>{"name": "f"}</tool_call>Done.', "Done."),
        ('<function=f>{"a": 1}</function>Done.', "Done."),
        ('Let me see. {"name": "f", "arguments": {"a": ["}", "\\""]}} Done.', "Let me see.  Done."),
        ('[{"name": "f"}, {"name": "g"}]', "[, ]"),
        ('{\n  "name": "f"\n}', ""),
        ('{"name": "cut o', ""),
        ('Calling <|python_tag|>f(x="a")', "Calling "),
        ('[TOOL_CALLS] [{"name": "f"}]', ""),
        ('{"quoted"} is no object', '{"quoted"} is no object'),
        ("The set {a, b} and x < y > z", "The set {a, b} and x < y > z"),
        ("<b>bold</b> and <unknown>tags</unknown>", "<b>bold</b> and <unknown>tags</unknown>"),
        ("<<think>a</think>>", "<>"),
        ("See [the docs](https://x.y) now", "See [the docs](https://x.y) now"),
        ("{}", ""),
    ],
)
def test_what_is_heard(text: str, heard: str) -> None:
    assert without_silent(text) == heard


def kinds(text: str) -> str:
    scanner = ReplyScanner()
    signs = {Kind.SPOKEN: ".", Kind.UNSPOKEN: "u", Kind.SILENT: "s"}
    found = ""
    for char in text:
        scanner.step(char)
        found += signs[scanner.kind]
    return found


def inside(text: str) -> str:
    """The characters that must not be cut off from the one before."""
    scanner = ReplyScanner()
    found = ""
    for char in text:
        scanner.step(char)
        found += char if scanner.inside else "-"
    return found


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("a `b c` d", "---b c`--"),
        ("a ``b ` c`` d", "---`b ` c``--"),
        ("a [b c](d e) f", "---b c](d e)--"),
        ("a [b] (c)", "---b]----"),
        ("[[a b](c)", "--a b](c)"),
        ("a ` b\nc", "--- b--"),
        ("x\n```py\na b\n\nc\n``` d", "---``py\na b\n\nc\n```--"),
        ("a < b", "-----"),
    ],
)
def test_spans_stay_whole(text: str, whole: str) -> None:
    assert inside(text) == whole


def test_a_link_target_and_a_code_block_are_not_read_letter_by_letter() -> None:
    assert kinds("[ab](c)d") == "....uu.."
    assert kinds("```\nx\n```d") == "...uuuuuu."
    assert kinds("<think>a</think>d") == "......" + "s" * 10 + "."


def test_an_opener_without_end_holds_nothing_back_for_long() -> None:
    for opener in ("[", "`", "<"):
        scanner = ReplyScanner()
        for char in opener + "word " * 100:
            scanner.step(char)
        assert not scanner.open


pieces = st.sampled_from(
    [
        "<think>",
        "</think>",
        '{"a": ',
        '"}',
        "}",
        "[",
        "](",
        ")",
        "`",
        "```",
        "\n",
        " ",
        "a",
        "<",
        "é",
    ]
)


@given(st.lists(pieces).map("".join))
def test_nothing_is_heard_twice_or_in_another_order(text: str) -> None:
    rest = iter(text)
    assert all(char in rest for char in without_silent(text))


@given(st.text())
def test_text_without_openers_is_all_heard(text: str) -> None:
    text = "".join(c for c in text if c not in "<{[`")
    assert without_silent(text) == text
