"""Without the extra for models, whoever configures a model is told which one to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnfold.cli.model_checks import check_model
from turnfold.errors import StartError
from turnfold.models import call
from turnfold.settings import read_settings

MODEL = {"TURNFOLD_SUMMARY_MODEL": "openai/gpt-4.1"}
ADVICE = "calling a model needs litellm; install turnfold[models]"
WITHOUT = (
    "import sys; sys.modules['litellm'] = None; from turnfold.cli import main; main(['worker'])"
)


@pytest.mark.proves("S4")
def test_a_worker_with_a_model_says_what_to_install(tmp_path: Path) -> None:
    database = {"TURNFOLD_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path / 'turnfold.db'}"}

    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | MODEL | database,
    )

    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, f"turnfold: {ADVICE}")


@pytest.mark.proves("S4", "O8")
async def test_the_doctor_and_a_job_say_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)

    finding = await check_model(read_settings(MODEL))
    with pytest.raises(StartError) as caught:
        call.load_litellm()

    assert (finding.outcome, finding.advice) == (
        "failed",
        "install turnfold[models], or unset TURNFOLD_SUMMARY_MODEL",
    )
    assert str(caught.value) == ADVICE
