"""What an operator allows: names of models, ceilings of policy numbers, and to whom the key goes (X7, C71)."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from turnfold.core.policy.allowance import CEILINGS, Allowance, is_named
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import PRESETS, Policy, adjusted
from turnfold.errors import StartError
from turnfold.operations.policy import policy_resolver
from turnfold.settings import read_settings

LIMITED: Final = Allowance(("openai/a",), (("retain_days", 7),))


@pytest.mark.proves("X7", "C71")
@pytest.mark.parametrize(
    ("name", "patterns", "allowed"),
    [
        ("openai/a", ("openai/a",), True),
        ("openai/ab", ("openai/a",), False),
        ("openai/ab", ("openai/a*",), True),
        ("Openai/ab", ("openai/*",), False),
        ("openai/../x", ("openai/*",), False),
        ("huggingface/http://evil.example", ("huggingface/*",), False),
        ("huggingface/http://own.example", ("huggingface/http://own.example",), True),
        ("gpt-4.1", ("gpt-*",), True),
        ("gpt-evil/x", ("gpt-*",), False),
        ("groq/x", ("g*",), False),
        ("groq/x", ("*",), True),
        ("a b", ("*",), False),
        ("", ("*",), False),
        ("openai/a", (), False),
    ],
)
def test_a_model_is_allowed_by_its_name_or_by_its_beginning(
    name: str, patterns: tuple[str, ...], allowed: bool
) -> None:
    assert is_named(name, patterns) is allowed


@pytest.mark.proves("X7", "C71")
@pytest.mark.parametrize(
    ("environ", "models", "key_models"),
    [
        ({}, (), ()),
        ({"SUMMARY_MODEL": "openai/a"}, ("openai/a",), ("openai/a", "openai/*")),
        ({"SUMMARY_MODEL": "gpt-a"}, ("gpt-a",), ("gpt-a",)),
        ({"SUMMARY_MODEL": "session"}, (), ()),
        (
            {"SUMMARY_MODEL": "session", "SUMMARY_MODELS": "openai/*, openai/b"},
            ("openai/*", "openai/b"),
            ("openai/*",),
        ),
        (
            {"POLICY__SUMMARY_MODEL": "openai/a", "SUMMARY_MODEL": "session"},
            ("openai/a",),
            ("openai/a", "openai/*"),
        ),
    ],
)
def test_the_key_belongs_to_the_provider_of_the_installations_own_model(
    environ: dict[str, str], models: tuple[str, ...], key_models: tuple[str, ...]
) -> None:
    settings = read_settings(
        {f"TURNFOLD_{name}": value for name, value in environ.items()}
        | {"TURNFOLD_SUMMARY_API_KEY": "k"}
    )

    assert (settings.allowance.models, settings.key_models) == (models, key_models)


@pytest.mark.proves("X7", "C71")
@pytest.mark.parametrize("models", ["openai/*,anthropic/*", "*", "gpt-4.1"])
def test_a_key_that_belongs_to_no_one_provider_stops_the_start(models: str) -> None:
    environ = {
        "TURNFOLD_SUMMARY_MODEL": "session",
        "TURNFOLD_SUMMARY_MODELS": models,
        "TURNFOLD_SUMMARY_API_KEY": "k",
    }

    with pytest.raises(StartError, match="belong to one provider"):
        read_settings(environ)


@pytest.mark.proves("X7", "C71")
@pytest.mark.parametrize("name", sorted(CEILINGS))
def test_no_stored_wish_stands_above_a_ceiling(name: str) -> None:
    """Wishes that were stored before the ceiling was set are lowered where they take effect."""
    settings = read_settings({f"TURNFOLD_LIMIT__{name.upper()}": "7"})
    rule = policy_resolver(settings.preset, settings.policy_of, settings.allowance)

    for above in (8, 2**53):
        wish = PolicyOverrides(overrides=json.dumps({name: above}))
        assert (
            getattr(rule(wish, PolicyOverrides()), name)
            == getattr(rule(PolicyOverrides(), wish), name)
            == 7
        )
    # Of most numbers, 0 is the least; of these it means no limit, which no wish may lift.
    is_unlimited = name in ("summary_tokens_per_day", "retain_days", "summary_max_words")
    zero = PolicyOverrides(overrides=json.dumps({name: 0}))
    assert getattr(rule(PolicyOverrides(), zero), name) == (7 if is_unlimited else 0)
    for preset in PRESETS:
        assert getattr(rule(PolicyOverrides(), PolicyOverrides(preset=preset)), name) <= 7


@pytest.mark.proves("X7")
def test_a_default_ceiling_does_not_lower_what_the_operator_sets() -> None:
    settings = read_settings({"TURNFOLD_POLICY__LEDGER_MAX_TOKENS": "50000"})

    assert settings.allowance.bounded(settings.policy).ledger_max_tokens == 50_000
    assert (
        Allowance().bounded(adjusted(Policy(), {"ledger_max_tokens": 2**53})).ledger_max_tokens
        == CEILINGS["ledger_max_tokens"]
    )


@pytest.mark.proves("X7", "C71")
@pytest.mark.parametrize(
    "wish",
    [
        {"retain_days": 7},
        {"retain_days": None, "summary_model": None},
        {"summary_model": "openai/a"},
        {"summary_model": "session"},
        {"summary_tokens_per_day": 0},
    ],
)
def test_a_wish_within_what_the_operator_allows_is_accepted(wish: dict[str, Any]) -> None:
    LIMITED.check_overrides(wish)


@pytest.mark.proves("X7", "C71")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retain_days", 8),
        ("retain_days", "8"),
        ("retain_days", 0),
        ("summary_max_tokens", 16_001),
        ("summary_max_words", 10_001),
        ("summary_max_words", 0),
        ("ledger_max_tokens", 16_001),
        ("rebuild_max_tokens", 1_000_001),
    ],
)
def test_a_wish_above_a_ceiling_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"the operator sets TURNFOLD_LIMIT__{name.upper()}"):
        LIMITED.check_overrides({name: value})


@pytest.mark.proves("X7", "C71")
def test_a_wish_for_a_model_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(ValueError, match="TURNFOLD_SUMMARY_MODELS"):
        LIMITED.check_overrides({"summary_model": "openai/b"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("RETAIN_DAYS", "0"), ("SUMMARY_MAX_TOKENS", "-1"), ("SUMMARY_TOKENS_PER_DAY", "many")],
)
def test_a_ceiling_that_is_none_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(StartError, match=f"TURNFOLD_LIMIT__{name} is not valid"):
        read_settings({f"TURNFOLD_LIMIT__{name}": value})


def test_models_and_ceilings_stand_in_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "turnfold.toml"
    file.write_text('summary_models = ["openai/*"]\n[limit]\nretain_days = 30\n')

    settings = read_settings({"TURNFOLD_CONFIG": str(file)})

    assert settings.allowance == Allowance(("openai/*",), (("retain_days", 30),))
