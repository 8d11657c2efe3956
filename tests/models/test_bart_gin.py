"""BART's shipped model files and recipe: each parses, and the sizes have the published number of parameters."""

from pathlib import Path

import gin
import jax
import pytest

from t5x_like import config, parameters
from t5x_like.cli import COMMANDS

GIN_CONFIGS = Path(__file__).resolve().parents[2] / "gin_configs"

# Those of the published checkpoints, whose logits' bias is a buffer of zeros.
PARAMETERS = {"base": 139_420_416, "large": 406_291_456}


@pytest.fixture
def load():
    """Reads a model file, with bindings after it, and returns its configuration."""
    gin.add_config_file_search_path(str(GIN_CONFIGS))

    def read(name, *bindings):
        gin.clear_config()
        gin.parse_config_files_and_bindings([f"models/bart/{name}.gin"], bindings)
        return gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn()

    yield read
    gin.clear_config()


def test_every_file_is_tested():
    files = {path.stem for path in (GIN_CONFIGS / "models/bart").glob("*.gin")}
    assert files - {"family"} == set(PARAMETERS)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_a_model_file_gives_the_exact_number_of_parameters(load, name):
    config = load(name)
    assert parameters.count(jax.eval_shape(config.make, jax.random.key(0))) == PARAMETERS[name]
    header = (GIN_CONFIGS / "models/bart" / f"{name}.gin").read_text().splitlines()[0]
    assert f"{PARAMETERS[name]:,} parameters" in header


def test_dropout_is_that_of_pretraining_unless_set(load):
    assert (load("base").dropout_rate, load("base").attention_dropout_rate) == (0.1, 0.0)
    assert load("base", "DROPOUT_RATE = 0.0").dropout_rate == 0.0


def test_the_recipe_is_the_published_one():
    resolved = config.load(
        COMMANDS["train"].function,
        files=["models/bart/large.gin", "runs/bart.gin"],
        bindings=[("MIXTURE_OR_TASK_NAME", "a_task")],
        given=("run_config",),
        stand_ins=COMMANDS["train"].stand_ins,
    )
    lines = config.flat_text(resolved.text).splitlines()
    assert "t5x_like.objectives.sequence_to_sequence.SequenceToSequence.bos_id = 2" in lines
    assert "t5x_like.schedules.linear.peak = 0.0004" in lines
    assert "t5x_like.train.train.total_steps = 500000" in lines
    assert "train/t5x_like.data.seqio_feed.SeqIOSource.batch_size = 8000" in lines
    lengths = "{'inputs': 512, 'targets': 512}"
    assert f"train/t5x_like.data.seqio_feed.SeqIOSource.task_feature_lengths = {lengths}" in lines
