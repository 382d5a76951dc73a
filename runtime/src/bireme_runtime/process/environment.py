"""Reading environment variables. Every function raises SettingError; an empty variable counts as not set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, TypeVar

from bireme_runtime.process.errors import SettingError

Settings = TypeVar("Settings")


def required(env: Mapping[str, str], name: str, advice: str = "the chart sets it") -> str:
    """The value of a variable that must be set."""
    value = env.get(name, "")
    if not value:
        raise SettingError(f"{name} is not set: {advice}")
    return value


def integer(env: Mapping[str, str], name: str, default: int | None = None, least: int | None = None) -> int:
    """The value as a whole number, ``least`` or more. Without a default the variable must be set."""
    text = required(env, name) if default is None else env.get(name) or str(default)
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f", {least} or more"
        raise SettingError(f"{name}={text} is not a whole number{bound}")
    return number


def seconds(env: Mapping[str, str], name: str, default: float) -> float:
    """The value as a number of seconds."""
    text = env.get(name) or str(default)
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"{name}={text} is not a number of seconds") from None


def choice(env: Mapping[str, str], name: str, *choices: str) -> str:
    """The value, one of the choices; the first is the default."""
    text = env.get(name) or choices[0]
    if text not in choices:
        raise SettingError(f"{name}={text} is none of {', '.join(choices)}")
    return text


def setting(name: str, default: Any = None, *choices: str, least: int | None = None) -> Any:
    """A field that `read` takes from this variable; without a default the variable must be set.

    It is one of the choices, if there are some, or a whole number of at least so much.
    """
    about = {"name": name, "default": default, "choices": choices, "least": least}
    return field(default=MISSING if default is None else default, metadata=about)


def read(cls: type[Settings], env: Mapping[str, str], **given: Any) -> Settings:
    """A dataclass whose fields are settings, but for those that are given."""
    for each in fields(cls):  # type: ignore[arg-type]
        if each.name not in given and each.metadata:
            given[each.name] = _READERS[str(each.type)](env, **each.metadata)
    return cls(**given)


def _text(env: Mapping[str, str], name: str, default: str | None, choices: tuple[str, ...], **_: Any) -> str:
    if default is None:
        return required(env, name)
    return choice(env, name, *choices) if choices else env.get(name) or default


_READERS: Mapping[str, Callable[..., Any]] = {
    "int": lambda env, name, default, least, **_: integer(env, name, default, least),
    "float": lambda env, name, default, **_: seconds(env, name, default),
    "bool": lambda env, name, **_: env.get(name) == "true",
    "str": _text,
    "Path": lambda env, name, **_: Path(required(env, name)),
}
