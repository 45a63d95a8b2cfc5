"""What callers say in the benchmarks of language models."""

from __future__ import annotations

SYSTEM = "You are a helpful assistant on a phone call. Give short, direct answers in one sentence."

TURNS = (
    "Hello, who am I talking to?",
    "I would like to book a table for two people tomorrow evening.",
    "Make that seven thirty, please.",
    "Do you also have something vegetarian on the menu?",
    "Great, and is there parking nearby?",
    "Is the kitchen open after ten?",
    "Could you send me a confirmation?",
    "That is all for today, thank you",
)

_BOOKING = (
    "Hello, who am I talking to?",
    "Please repeat my booking back to me: a table for {n} people on {day} at {time}.",
    "My name is {name}, please repeat it and spell it.",
    "Please read the whole booking back to me once more.",
    "Thank you, that is correct, goodbye.",
)

CALLS = tuple(
    tuple(line.format(n=n, day=day, time=time, name=name) for line in _BOOKING)
    for n, day, time, name in (
        ("two", "Friday", "seven thirty", "Miller"),
        ("four", "Saturday", "eight", "Johnson"),
        ("two", "Friday", "seven thirty", "Anderson"),
        ("six", "Monday", "noon", "Miller"),
        ("three", "Sunday", "six fifteen", "Taylor"),
        ("four", "Friday", "eight", "Johnson"),
    )
)
"""Calls of one kind: greetings and confirmations recur, names and numbers are read back."""

NEWS = (
    "Why is the sky blue?",
    "What is the capital of Australia?",
    "How do I make a good cup of coffee?",
    "Tell me something about elephants.",
    "What is the difference between weather and climate?",
    "How far away is the moon?",
    "Give me one tip for sleeping well.",
    "Who wrote the play Romeo and Juliet?",
    "What should I cook for dinner?",
    "How does a bicycle stay upright?",
    "Why do leaves change their color?",
    "What is a good name for a cat?",
    "How many legs does a spider have?",
    "Recommend a book about the sea.",
    "What is the fastest animal on land?",
    "How do airplanes fly?",
)
"""Questions that have nothing to do with each other."""
