"""Reading of settings from the command line, the environment and a TOML file."""

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from turnfold.core.policy.allowance import CEILINGS, UNLIMITED_AT_ZERO
from turnfold.core.policy.presets import DEFAULT_PRESET, FIELD_TYPES
from turnfold.errors import StartError
from turnfold.messages import MOST_EXACT
from turnfold.settings.parsers import PARSERS, SETTING_NAMES, Checked, one_of, whole_number
from turnfold.settings.urls import http_url
from turnfold.settings.values import DEFAULT_HTTP_HOST, DEFAULT_HTTP_PORT, Settings

PREFIX = "TURNFOLD_"
POLICY_PREFIX = "TURNFOLD_POLICY__"
LIMIT_PREFIX = "TURNFOLD_LIMIT__"
READY_FILE = "turnfold.json"
"""The ready line of `turnfold up`, in its data directory."""

SHORT_NAMES: Mapping[str, tuple[str, ...]] = {
    "MAX_CONTEXT_TOKENS": ("max_context_tokens",),
    "MAX_CHARS_PER_MESSAGE": ("user_max_chars", "assistant_max_chars", "tool_result_max_chars"),
}
"""Environment variables without the prefix, and the policy settings that they set.

They apply to the preset `token-budget` only.
"""


@dataclass(frozen=True, slots=True)
class _Layer:
    """The raw settings of one source; `display_name` returns a setting's name as written there."""

    values: Mapping[str, Any]
    policy: Mapping[str, Any]
    limits: Mapping[str, Any]
    display_name: Callable[[str], str]
    origin: str = "environment"


def read_settings(
    environ: Mapping[str, str],
    command_line: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Settings:
    """Read the settings of this process.

    `options` names the options of the command line that are not called as their setting.

    The command line overrides the environment, which overrides the file that TURNFOLD_CONFIG names.
    If no NATS URL is set, the URLs come from the ready line in the data directory, provided that a
    system runs there.

    Raises:
        StartError: an unknown name (with the closest valid one), or an invalid value.
    """
    arguments = _Layer(
        {name: value for name, value in (command_line or {}).items() if value is not None},
        {},
        {},
        lambda name: options.get(name, f"--{name.replace('_', '-')}"),
    )
    environment = _environment(environ)
    config = environment.values.get("config")
    layers = [_config_file(_parse("config", config, environment))] if config else []
    layers += [environment, arguments]

    values: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    limits: dict[str, int] = {}
    for layer in layers:
        for name, raw in layer.values.items():
            if name != "config":
                values[name] = _parse(name, raw, layer)
        numbers |= {
            name: values[name] for name in ("mode", "context_window") if name in layer.values
        }
        numbers |= _parse_choices(layer)
        limits |= {name: _parse_limit(name, raw, layer) for name, raw in layer.limits.items()}
    # These two belong to the policy, although they have short names.
    values.pop("mode", None)
    values.pop("context_window", None)
    # Before the URLs of the ready line are added: commands treat named servers differently.
    values["explicit_names"] = frozenset(values)
    values["limits"] = limits
    values["origins"] = _origins(layers)

    if not {"http_host", "http_port", "http_certificate"}.isdisjoint(values):
        host = values.get("http_host", DEFAULT_HTTP_HOST)
        port = values.get("http_port", DEFAULT_HTTP_PORT)
        values["http_url"] = http_url(host, port, is_encrypted="http_certificate" in values)
    if "nats_url" not in values and values.get("data_dir"):
        # Settings that were made explicitly override the ready line.
        values = _running_system(values["data_dir"]) | values
    settings = _with_policy(values, numbers, short_overrides(environ))
    _check_key(settings)
    return settings


def _origins(layers: Sequence[_Layer]) -> dict[str, str]:
    """Return the source of each policy setting and limit; later layers override earlier ones."""
    origins: dict[str, str] = {}
    for layer in layers:
        numbers = [
            *(name for name in ("mode", "context_window", "preset") if name in layer.values),
            *layer.policy,
        ]
        origins |= dict.fromkeys(
            [*numbers, *(f"limit.{name}" for name in layer.limits)], layer.origin
        )
    return origins


def short_overrides(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the policy settings from MAX_CONTEXT_TOKENS and MAX_CHARS_PER_MESSAGE."""
    return {
        number: environ[name]
        for name, numbers in SHORT_NAMES.items()
        if environ.get(name)
        for number in numbers
    }


def _with_policy(
    values: dict[str, Any], numbers: Mapping[str, Any], short: Mapping[str, Any]
) -> Settings:
    preset = values.get("preset", DEFAULT_PRESET)
    chosen = Settings(**values, overrides=numbers, short_overrides=short)
    try:
        policy = chosen.policy_of(preset)
    except ValueError as error:
        raise StartError(
            f"the policy is not valid: {error};"
            f" correct TURNFOLD_PRESET, TURNFOLD_MODE or {POLICY_PREFIX}*"
        ) from error
    # The environment has texts, and the policy has them checked and converted.
    typed = {name: getattr(policy, name) for name in numbers}
    return Settings(**values, overrides=typed, short_overrides=short, policy=policy)


def _environment(environ: Mapping[str, str]) -> _Layer:
    variables = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    known = [
        *map(as_variable, SETTING_NAMES),
        *(f"{POLICY_PREFIX}{name.upper()}" for name in FIELD_TYPES),
        *(f"{LIMIT_PREFIX}{name.upper()}" for name in CEILINGS),
    ]
    # A misspelled variable would be ignored in silence, and with it a limit.
    for name in sorted(variables):
        if name not in known:
            raise StartError(_unknown_name("setting", name, known))
    # The longer prefixes come first, because each of them begins with PREFIX.
    groups: dict[str, dict[str, str]] = {POLICY_PREFIX: {}, LIMIT_PREFIX: {}, PREFIX: {}}
    for name, value in variables.items():
        if value.strip():
            prefix = next(prefix for prefix in groups if name.startswith(prefix))
            groups[prefix][name.removeprefix(prefix).lower()] = value
    return _Layer(groups[PREFIX], groups[POLICY_PREFIX], groups[LIMIT_PREFIX], as_variable)


def _config_file(path: Path) -> _Layer:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartError(
            f"TURNFOLD_CONFIG names {path}, which cannot be read ({error.strerror});"
            " correct the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} is not TOML: {error}") from error
    tables = {name: document.pop(name, {}) for name in ("policy", "limit")}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise StartError(
                f"{name} in {path} must be a table: write [{name}] and its numbers below"
            )
    policy, limits = tables.values()
    known = [name for name in SETTING_NAMES if name != "config"]
    kinds = (
        (document, known, "setting"),
        (policy, list(FIELD_TYPES), "policy number"),
        (limits, list(CEILINGS), "limit"),
    )
    for names, choices, kind in kinds:
        for name in names:
            if name not in choices:
                raise StartError(f"{_unknown_name(kind, name, choices)} (in {path})")
    return _Layer(
        document, policy, limits, lambda name: f"{name.replace('__', '.')} in {path}", "file"
    )


def read_ready(data_dir: Path) -> Mapping[str, Any] | None:
    """Return the ready line in a data directory; None if none can be read."""
    try:
        ready = json.loads((data_dir / READY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    has_url = isinstance(ready, dict) and isinstance(ready.get("nats_url"), str)
    return ready if has_url else None


def _running_system(data_dir: Path) -> dict[str, Any]:
    """Return how to reach the system that runs in this data directory; empty if none runs."""
    ready = read_ready(data_dir)
    if ready is None:
        return {}
    names = ("nats_url", "database_url", "http_url")
    urls = {name: ready[name] for name in names if isinstance(ready.get(name), str)}
    return urls | {"nats_anonymous": True}


def _unknown_name(kind: str, name: str, known: list[str]) -> str:
    endings = {choice: _ending(choice) for choice in known}
    nearest = difflib.get_close_matches(_ending(name), endings.values(), n=1, cutoff=0.4)
    # Two groups may have a name in common: then the group decides.
    choices = [choice for choice, ending in endings.items() if [ending] == nearest]
    advised = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)
    advice = f"did you mean {advised[0]}?" if advised else "the manual lists all of them"
    return f"there is no {kind} {name}: {advice}"


def _ending(name: str) -> str:
    """Return a name without the prefixes, which would make any two names similar."""
    ending = name.upper().removeprefix(PREFIX)
    return ending.removeprefix("POLICY__").removeprefix("LIMIT__")


def as_variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def _parse(name: str, raw: Any, layer: _Layer) -> Any:
    return _checked(PARSERS[name], raw, layer.display_name(name))


def _parse_choices(layer: _Layer) -> dict[str, Any]:
    """Parse the policy's choices, such as its style. The policy itself checks its numbers."""
    parsed = dict(layer.policy)
    for name, raw in layer.policy.items():
        kind = FIELD_TYPES[name]
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            parsed[name] = _checked(one_of(tuple(kind)), raw, layer.display_name(f"policy__{name}"))
    return parsed


def _parse_limit(name: str, raw: Any, layer: _Layer) -> int:
    return _checked(
        whole_number(1 if name in UNLIMITED_AT_ZERO else 0, MOST_EXACT),
        raw,
        layer.display_name(f"limit__{name}"),
        "; omit it to use the default limit",
    )


def _checked(parse: Callable[[Any], Checked], raw: Any, shown: str, advice: str = "") -> Checked:
    """Parse a value; an error names it as `shown`, and ends with the advice."""
    try:
        return parse(raw)
    except ValueError as error:
        raise StartError(f"{shown} is not valid: {error}{advice}") from error


def _check_key(settings: Settings) -> None:
    """Reject a key or an address without a single provider: all providers would receive it."""
    has_key = settings.summary_api_key is not None or settings.summary_api_base is not None
    if has_key and settings.summary_models and not settings.key_models:
        raise StartError(
            "TURNFOLD_SUMMARY_API_KEY and _API_BASE belong to one provider, but"
            " TURNFOLD_SUMMARY_MODELS names several or none; name a model of the provider in"
            " TURNFOLD_SUMMARY_MODEL, and set other providers' keys in their own variables,"
            " such as ANTHROPIC_API_KEY"
        )
