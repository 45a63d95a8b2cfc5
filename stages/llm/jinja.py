"""Chat templates as programs: jinja2 in a sandbox, with what transformers gives them.

After `chat_template_utils.py` in transformers. One thing differs: `strftime_now` always says
TEMPLATE_DATE, because a prompt that begins with today's date is another prompt tomorrow, and
nothing computed for it could be used again.
"""

from __future__ import annotations

import datetime
import json

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE_DATE = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
"""What Llama 3's templates say where no clock is given. An agent that must know the date has it in
its system prompt."""


def compile_template(source: str) -> Template:
    """Raises TemplateError when `source` is no template."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = TEMPLATE_DATE.strftime
    return environment.from_string(source)


def _tojson(value: object, indent: int | None = None) -> str:
    """As written for a model to read: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
