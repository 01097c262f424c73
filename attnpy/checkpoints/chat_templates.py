"""Conversations, as a template of a file or folder writes them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from attnpy._quoting import named


def render(
    text: str,
    place: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    package: str = "jinja2",
    **variables: Any,
) -> str:
    """Write a conversation as the template `text` does, which `place` has.

    `package` is what to install where jinja2 is not. `template_limits` says how much
    time and memory a template may take.
    """
    jinja2 = _jinja2(package)
    try:
        from attnpy.checkpoints.template_limits import written

        given = {**variables, "messages": [dict(message) for message in messages]}
        return written(_compiled(text), given)
    except RefusedError as error:
        raise ValueError(
            f"{place}: expected messages that its template takes, got {named(error)}"
        ) from error
    except (
        *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError),
        *(RecursionError, TypeError, ValueError),
    ) as error:
        raise ValueError(
            f"{place}: expected a template that can be used, got {named(error)}"
        ) from error


@functools.lru_cache(4)
def _compiled(text: str) -> Any:
    """Return a template that does only what it may."""
    from attnpy.checkpoints.template_limits import Limited

    environment = Limited()
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _json  # jinja2's writes "<" as HTML needs it
    return environment.from_string(text)


class RefusedError(Exception):
    """A template has raised an error of its own."""


def _refuse(message: object) -> NoReturn:
    raise RefusedError(message)


def _json(value: object, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _jinja2(package: str) -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "attnpy.checkpoints: a template of conversations needs the jinja2 package: "
            f"pip install {package}"
        ) from error
    return jinja2
