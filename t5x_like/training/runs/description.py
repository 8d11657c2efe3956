"""What a start writes into the run directory before it trains, so that other commands and later starts can read it."""

from collections.abc import Mapping
from typing import Any

from absl import logging

from t5x_like import parameters
from t5x_like.data import prompts
from t5x_like.stored import frozen_base, run_tokenizer, run_vocabulary
from t5x_like.training.program import Program
from t5x_like.training.recipe import Recipe
from t5x_like.training.run_start import Start
from t5x_like.training.runs import run_directory, run_teachers, start_record
from t5x_like.training.runs.open_run import OpenRun
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary


def log_parameters(program: Program) -> None:
    """Logs the number of parameters of a run, and how many of them it trains."""
    shapes = program.param_shapes
    logging.info("%s", run_directory.describe_count(shapes))
    if program.num_trained < (total := parameters.count(shapes)):
        share = 100 * program.num_trained / total
        logging.info("%s of them are trained, %.3g %%", f"{program.num_trained:,}", share)


def store(
    run: OpenRun,
    recipe: Recipe,
    program: Program,
    start: Start,
    *,
    given: Recipe,
    vocabulary: TextVocabulary,
    data: Mapping[str, Any],
) -> None:
    """Writes the description of a run in process 0, and a record of this start.

    Args:
      run: The run directory.
      recipe: The recipe of the run.
      program: Its program.
      start: What it starts from.
      given: The recipe of the caller, whose vocabulary may be at another path.
      vocabulary: The vocabulary of its text.
      data: The description of its data; see `start_record.append`.
    """
    if not run.is_main:
        return
    model_dir, partitioner = run.model_dir, program.partitioner
    info = run_directory.model_info(program.param_shapes, partitioner)
    run_directory.write_description(model_dir, info, run.config, given)
    fork = None if start.resumes else recipe.fork
    start_record.append(model_dir, step=start.step, fork=fork, command=run.command, partitioner=partitioner, data=data)
    run_teachers.store(model_dir, recipe.teachers)
    if start.resumes:
        return
    features = recipe.objective.features
    frozen_base.store(model_dir, start.base)
    run_tokenizer.store(model_dir, vocabulary, recipe.initial.path or None)
    kind, eos = recipe.data.vocabulary_kind(features), prompts.add_eos(recipe.data, features)
    run_vocabulary.store(model_dir, vocabulary.digest, kind, recipe.data.name, eos)
