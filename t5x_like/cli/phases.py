"""Phases: a recipe of several runs, each of which may continue another one, as one command.

`PHASES` names the phases, and gives each the gin files and settings that it has besides the recipe:

    PHASES = {
        'stable': ('TRAIN_STEPS=9000',),
        'decay': ('FORK=stable', 'TRAIN_STEPS=10000', 'DECAY_STEPS=1000'),
    }

A phase is a run of its own in `MODEL_DIR/NAME`. With `FORK=NAME` it continues another phase from its last checkpoint,
with `FORK=NAME@STEP` from the checkpoint of a step; with `INITIAL_CHECKPOINT_PATH=NAME` it starts a new run from the
weights of that phase.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like import paths
from t5x_like.cli.arguments import Arguments
from t5x_like.cli.command import Command
from t5x_like.errors import UserError
from t5x_like.runtime import run_files

if TYPE_CHECKING:
    from t5x_like import config
    from t5x_like.training.recipe import Recipe

PHASES = "PHASES"
# Settings whose value may be the name of a phase, with a step.
FORK, INITIAL = "FORK", "INITIAL_CHECKPOINT_PATH"
# The steps whose checkpoints a phase keeps, with those that other phases start from.
KEEP_STEPS = "KEEP_STEPS"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_EXAMPLE = "{'stable': ('TRAIN_STEPS=9000',), 'decay': ('FORK=stable', 'TRAIN_STEPS=10000')}"


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase of a command, or the whole command if its configuration has no phases.

    Attributes:
      arguments: The command line of this phase alone.
      name: Its name; None for the whole command.
      origins: Setting, `FORK` or `INITIAL_CHECKPOINT_PATH` -> the phase that it starts from, and the step or None.
    """

    arguments: Arguments
    name: str | None = None
    origins: Mapping[str, tuple[str, int | None]] = dataclasses.field(default_factory=dict)

    @property
    def parents(self) -> set[str]:
        """The names of the phases that it starts from."""
        return {name for name, _ in self.origins.values()}

    def is_finished(self, resolved: config.Resolved) -> bool:
        """Returns whether its run has finished with this configuration."""
        directory = resolved.macros.get("MODEL_DIR")
        if self.name is None or (run_files.read_status(directory) or {}).get("state") != "finished":
            return False
        stored = paths.join(directory, run_files.CONFIG)
        return paths.exists(stored) and paths.read_text(stored) == resolved.text

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Adds the name of the phase to the user errors in the context."""
        try:
            yield
        except UserError as error:
            if self.name is None:
                raise
            raise type(error)(f"phase {self.name}: {error}") from error

    def without_origins(self, recipe: Recipe) -> Recipe:
        """Returns its recipe without what the phases before it have not written yet."""
        initial = dataclasses.replace(recipe.initial, path=None) if INITIAL in self.origins else recipe.initial
        return dataclasses.replace(recipe, initial=initial, fork=None if FORK in self.origins else recipe.fork)

    def describe(self) -> str:
        """Returns its name and what it starts from."""
        verbs = {FORK: "continues", INITIAL: "starts from the weights of"}
        origin = "".join(
            f", which {verbs[setting]} {name}" + ("" if step is None else f" at step {step}")
            for setting, (name, step) in self.origins.items()
        )
        return f"phase {self.name}{origin}"


def expand(command: Command, arguments: Arguments) -> list[Phase]:
    """Returns the phases of a command in the order in which they run.

    Args:
      command: The command. One that reads a recipe, but neither trains nor plans it, has the phase of `--phase` alone.
      arguments: Its command line.

    Returns:
      All phases, or that of `--phase`. One phase without a name if the configuration has none.

    Raises:
      UserError: PHASES is invalid: an unknown phase, phases that start from each other, or a missing MODEL_DIR.
    """
    from t5x_like.config import read_macros

    files, wanted = command.gin_files(arguments.gin_files), arguments.phase
    names = (PHASES, "MODEL_DIR", KEEP_STEPS, "JSON_PATH")
    given = read_macros(names, files, arguments.bindings, arguments.search_paths) if "steps" in command.derives else {}
    if not (entries := given.get(PHASES)):
        if wanted is not None:
            raise UserError(f"--phase={wanted}: PHASES is not set. Give a gin file with phases, or omit --phase.")
        return [Phase(arguments)]
    if command.trains and not given.get("MODEL_DIR"):
        raise UserError("MODEL_DIR: missing. A command with phases needs --gin.MODEL_DIR=… for their runs.")
    phases = _in_order(_parse(entries, arguments, given))
    if wanted is not None and wanted not in phases:
        raise UserError(f"--phase={wanted}: not a phase of PHASES ({', '.join(phases)}). Give one of them.")
    if wanted is None and not command.all_phases:
        return [Phase(arguments)]
    return [phase for name, phase in phases.items() if wanted in (None, name)]


def check_models(recipes: Sequence[tuple[Phase, Recipe]]) -> None:
    """Checks that phases have the models of the phases that they continue, and more steps, before the first one runs.

    Args:
      recipes: The phases in order, with their recipes.

    Raises:
      UserError: A model has another shape, or a phase starts from a step that another one does not reach, or ends
        before it.
    """
    from t5x_like.models import build
    from t5x_like.parameters import named_leaves

    models: dict[str, tuple[dict[str, tuple[int, ...]], int]] = {}
    for phase, recipe in recipes:
        shapes = {name: tuple(leaf.shape) for name, leaf in named_leaves(build.stacked_shapes(recipe.model)).items()}
        models[phase.name] = shapes, recipe.periods.total
        for parent, step in phase.origins.values():
            if step is not None and parent in models and not 1 <= step <= models[parent][1]:
                raise UserError(
                    f"PHASES: {phase.name!r} starts from step {step} of {parent!r}, which has TRAIN_STEPS="
                    f"{models[parent][1]}. Give one of its steps, from 1 on."
                )
        if FORK not in phase.origins or (parent := phase.origins[FORK][0]) not in models:
            continue
        of_parent, last = models[parent]
        for name in shapes | of_parent:
            if shapes.get(name) != of_parent.get(name):
                raise UserError(
                    f"PHASES: {phase.name!r} continues {parent!r}, where {name} has shape {of_parent.get(name)}, and "
                    f"{shapes.get(name)} here. Give both the same model, or start from its weights with "
                    f"{INITIAL}={parent}."
                )
        if recipe.periods.total <= (step := phase.origins[FORK][1] or last):
            raise UserError(
                f"PHASES: {phase.name!r} has TRAIN_STEPS={recipe.periods.total}, and continues {parent!r} from step "
                f"{step}. Give more steps: they are counted from the first step of {parent!r}."
            )


def write(model_dir: str, phases: Sequence[Phase]) -> None:
    """Writes the names of the phases, in the order in which they run, and their origins to MODEL_DIR."""
    described = [{"name": phase.name, "origins": {k: list(v) for k, v in phase.origins.items()}} for phase in phases]
    run_files.write_phases(model_dir, described)


def _parse(entries: Any, arguments: Arguments, given: Mapping[str, Any]) -> dict[str, Phase]:
    """Returns name -> phase, in the order of PHASES."""
    if not isinstance(entries, Mapping) or not all(isinstance(name, str) for name in entries):
        raise UserError(f"PHASES={entries!r}: not names with gin files and settings. Give such as {_EXAMPLE}.")
    listed = {name: [each] if isinstance(each, str) else list(each) for name, each in entries.items()}
    origins: dict[str, dict[str, tuple[str, int | None]]] = {}
    for name, words in listed.items():
        if not _NAME.fullmatch(name):
            raise UserError(f"PHASES: {name!r} is not the name of a directory. Use letters, digits, _, - and .")
        if wrong := [word for word in words if not isinstance(word, str)]:
            raise UserError(f"PHASES: {wrong[0]!r} of {name!r} is not text. Give gin files and settings like 'NAME=1'.")
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        origins[name] = {
            setting: origin
            for setting in (FORK, INITIAL)
            if setting in settings and (origin := _origin(setting, settings[setting], name, listed)) is not None
        }
    return {name: _phase(name, words, origins, arguments, given) for name, words in listed.items()}


def _origin(setting: str, value: str, name: str, phases: Mapping[str, Any]) -> tuple[str, int | None] | None:
    """Returns the phase that a value means, and its step; None for a path."""
    value = value.strip("'\"")
    parent, at, step = value.partition("@")
    if parent in phases and (step.isdigit() if at else True):
        return parent, int(step) if at else None
    if "/" in value or setting != FORK:
        return None
    raise UserError(
        f"PHASES: {name!r} has {setting}={value}, which is not a phase. Give one of {', '.join(phases)}, perhaps "
        "with a step as NAME@STEP, or the path of a run."
    )


def _phase(
    name: str,
    words: Sequence[str],
    origins: Mapping[str, Mapping[str, tuple[str, int | None]]],
    arguments: Arguments,
    given: Mapping[str, Any],
) -> Phase:
    """Returns a phase. Settings of the command line replace those of the phase."""
    from t5x_like.config import read_macros

    root = given.get("MODEL_DIR") or ""
    forked = {
        step for each in origins.values() for parent, step in each.values() if parent == name and step is not None
    }

    def path(parent: str, step: int | None) -> str:
        directory = paths.join(root, parent)
        return directory if step is None else paths.join(directory, run_files.CHECKPOINTS, str(step))

    own = {setting: repr(path(*origin)) for setting, origin in origins[name].items()}
    own |= {"MODEL_DIR": repr(paths.join(root, name))} if root else {}
    settings = [tuple(word.split("=", 1)) for word in words if "=" in word]
    files = [word for word in words if "=" not in word]
    if forked:
        of_phase = read_macros((KEEP_STEPS,), files, [*settings, *arguments.bindings], arguments.search_paths)
        kept = of_phase.get(KEEP_STEPS, given.get(KEEP_STEPS))
        if isinstance(kept, list | tuple | None):  # the recipe refuses others
            own[KEEP_STEPS] = repr(tuple(sorted(forked | set(kept or ()))))
    if (file := given.get("JSON_PATH")) and not arguments.phase:  # one file per phase
        own["JSON_PATH"] = repr(f"{file.removesuffix('.json')}.{name}.json")
    gin_files = [*arguments.gin_files, *files]
    bindings = [*settings, *arguments.bindings, *own.items()]
    return Phase(
        dataclasses.replace(arguments, phase=None, gin_files=gin_files, bindings=bindings), name, origins[name]
    )


def _in_order(phases: Mapping[str, Phase]) -> dict[str, Phase]:
    """Returns the phases, each after those that it starts from, else in the order of PHASES."""
    ordered: dict[str, Phase] = {}
    while len(ordered) < len(phases):
        ready = [name for name, phase in phases.items() if name not in ordered and phase.parents <= ordered.keys()]
        if not ready:
            waiting = [name for name in phases if name not in ordered]
            raise UserError(
                f"PHASES: {', '.join(waiting)} start from each other. Let one of them start without a phase."
            )
        ordered[ready[0]] = phases[ready[0]]
    return ordered
