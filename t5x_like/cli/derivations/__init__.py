"""Settings that commands compute from others, such as the model from `HF_PATH`; see `config.derivations`.

The derivations of a command run in the order of `of_command`, so that later ones see the settings of earlier ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from t5x_like.cli.commands import COMMANDS
from t5x_like.cli.derivations import budget, epochs, generation, huggingface, labels, own_run, prompts, student

if TYPE_CHECKING:
    from t5x_like.config import Derivation


def of_command(command: str) -> tuple[Derivation, ...]:
    """Returns the derivations of a command; see `Command.derives`.

    Args:
      command: Name of the command.
    """
    from t5x_like.config import Derivation

    derives = COMMANDS[command].derives
    of_model = (
        Derivation((), student.require_recipe),
        Derivation(("HF_PATH", "DECODER_OBJECTIVE"), huggingface.from_directory),
        Derivation((), own_run.from_run),
        Derivation((), labels.from_task),
        Derivation(("PROMPT_LABELS", "PROMPT_TEXT"), prompts.from_text),
    )
    of_steps = Derivation(("TRAIN_EPOCHS",), epochs.to_steps), Derivation((), budget.to_steps)
    return (
        *(of_model if "model" in derives else ()),
        *([Derivation((), generation.from_directory)] if "decoding" in derives else []),
        *(of_steps if "steps" in derives else ()),
    )
