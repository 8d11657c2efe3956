"""What a command is, and the settings that several of them list in their help.

This module imports nothing heavy, so that help appears immediately.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
      function: Import path of the Python function that implements it.
      summary: One line of help.
      default_gin_file: The gin file to read if the command line gives none.
      positional: The macro that an argument without a flag sets, and the name of the argument in the help.
      positional_repeats: Whether there may be several such arguments, which become a tuple.
      flags: Flags of this command alone: flag -> (macro that it sets, line of help).
      flag_defaults: Values of flags that may be given without a value.
      text_flags: Flags whose value is always text, also if it is a word such as `none`.
      settings: Common settings to list in the help: macro -> line of help.
      needs_run: Whether it reads an existing run. Unless gin files of the command line set MODEL, the model, task and
        lengths then come from the config.gin in MODEL_DIR, or in the run of CHECKPOINT_PATH.
      base_gin_file: The gin file of the command itself, read before the gin files of the run.
      placeholder_macros: Values for macros that the run requires and this command does not.
      accepts_recipe: Whether it takes the gin files of a run, of whose recipe it reads only a part.
      run_macros: Macros whose values in the run that it reads replace the defaults of its gin file, besides those that
        describe the task.
      trains: Whether it accepts the flags that resume, restart and trace a run.
      multi_process: Whether several processes can run it as one.
      compiles: Whether it uses the persistent compilation cache; see `runtime.compilation_cache`.
      paths: Macros with paths that it reads or writes; see `cli.path_checks`.
      files: Those of `paths` that are files to write. The other paths to write are directories.
      all_phases: Whether it runs all phases of a recipe, one after the other; see `cli.phases`.
      derives: Settings that are derived for it: those of the `model`, of `decoding`, or the number of `steps` from
        TRAIN_EPOCHS; see `cli.derivations`.
      dry_run: The function of `cli.dry_run_checks` that checks it; None if it does not accept `--dry_run`.
    """

    function: str
    summary: str
    default_gin_file: str
    positional: tuple[str, str] | None = None
    positional_repeats: bool = False
    flags: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    flag_defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    text_flags: tuple[str, ...] = ()
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs_run: bool = False
    base_gin_file: str | None = None
    placeholder_macros: Mapping[str, str] = dataclasses.field(default_factory=dict)
    accepts_recipe: bool = False
    run_macros: tuple[str, ...] = ()
    trains: bool = False
    multi_process: bool = False
    compiles: bool = False
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    all_phases: bool = False
    derives: Collection[Literal["model", "decoding", "steps"]] = ()
    dry_run: str | None = None

    def gin_files(self, given: Sequence[str] = ()) -> list[str]:
        """Returns the gin files to read.

        Args:
          given: Those of the command line, in order.
        """
        base = [self.base_gin_file] if self.base_gin_file else []
        return [*base, *(file for file in given or [self.default_gin_file] if file not in base)]


TASK = {"MIXTURE_OR_TASK_NAME": "SeqIO task or mixture"}
MODULE = {"MIXTURE_OR_TASK_MODULE": "Python module that registers the task"}
LENGTHS = {"TASK_FEATURE_LENGTHS": "tokens per feature, such as \"{'inputs': 512, 'targets': 114}\""}
BATCH = {"BATCH_SIZE": "sequences per step, over all devices"}
HF_PATH = {"HF_PATH": "Hugging Face directory that sets model, objective, tokenizer and weights"}
CHECKPOINT = HF_PATH | {
    "CHECKPOINT_PATH": "run directory, one of its checkpoints, a Hugging Face directory, or a T5X checkpoint",
    "CHECKPOINT": "which checkpoint of a run: latest (default), best or a step",
}
DECODING = {
    "BEAMS": "hypotheses of beam search",
    "TEMPERATURE": "temperature of sampling; 0 selects the most probable token",
    "TOP_K": "number of the most probable tokens to sample from; 0: all tokens",
    "TOP_P": "total probability of the tokens to sample from; 1: all tokens",
    "SAMPLES": "texts per record",
}
MESH = {
    "PARTITIONING": "logical-axis rules: dp, fsdp, fsdp_tp, fsdp_tp_residual or fsdp_tp_sp",
    "ICI": "mesh within a slice, such as \"{'fsdp': 4, 'tensor': 2}\"; -1 stands for the remaining devices",
}
# Values of macros that a run requires, for commands that do not read its data and initial weights.
PLACEHOLDERS = {
    "MIXTURE_OR_TASK_NAME": "any",
    "TRAIN_STEPS": "1000000",
    "SECONDS_PER_MICROBATCH": "1.0",
    "LABELS": "('0', '1')",
    "INITIAL_CHECKPOINT_PATH": "any",
}
