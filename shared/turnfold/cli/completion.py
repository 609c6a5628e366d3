"""`turnfold completion`: the script with which a shell completes commands and options."""

import os
from typing import Annotated, Literal

import typer

from turnfold.cli.help_panels import COMPLETE_VARIABLE

Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Your shell.")],
) -> None:
    """Print a script that completes commands and options in your shell.

    bash: eval "$(turnfold completion bash)" in ~/.bashrc

    zsh: eval "$(turnfold completion zsh)" in ~/.zshrc, after "autoload -U compinit; compinit"

    fish: turnfold completion fish > ~/.config/fish/completions/turnfold.fish
    """
    from turnfold.cli import main

    # The shell calls the command with this variable, and so does whoever wants the script.
    os.environ[COMPLETE_VARIABLE] = f"source_{shell}"
    main([])
