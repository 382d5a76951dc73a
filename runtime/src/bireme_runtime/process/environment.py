"""Reading environment variables. Every function raises SettingError; an empty variable counts as not set."""

from __future__ import annotations

from collections.abc import Mapping

from bireme_runtime.process.errors import SettingError


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
