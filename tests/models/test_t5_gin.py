"""The shipped model files: each parses and gives the published number of parameters."""

from pathlib import Path

import gin
import jax
import pytest

from t5x_like import parameters

GIN_CONFIGS = Path(__file__).resolve().parents[2] / "gin_configs"

# Totals of the shapes in T5X's model files, and for the public sizes those of the published checkpoints.
PARAMETERS = {
    "t5_1_0/tiny": 260_704,
    "t5_1_0/small": 60_506_624,
    "t5_1_0/base": 222_903_552,
    "t5_1_0/large": 737_668_096,
    "t5_1_0/3b": 2_851_598_336,
    "t5_1_0/11b": 11_307_321_344,
    "t5_1_1/tiny": 518_240,
    "t5_1_1/small": 76_961_152,
    "t5_1_1/base": 247_577_856,
    "t5_1_1/large": 783_150_080,
    "t5_1_1/xl": 2_849_757_184,
    "t5_1_1/xxl": 11_135_332_352,
    "t5_study/encoder_decoder": 222_903_552,
    "t5_study/shared": 137_950_080,
    "t5_study/six_layers": 123_790_080,
    "t5_study/decoder": 109_628_544,
}


@pytest.fixture
def load():
    """Reads a model file, with bindings after it, and returns its configuration."""
    gin.add_config_file_search_path(str(GIN_CONFIGS))

    def read(name, *bindings):
        gin.clear_config()
        gin.parse_config_files_and_bindings([f"models/{name}.gin"], bindings)
        return gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn()

    yield read
    gin.clear_config()


def test_every_file_is_tested():
    files = {f"{path.parent.name}/{path.stem}" for path in (GIN_CONFIGS / "models").glob("t5_*/*.gin")}
    assert files - {"t5_1_0/family", "t5_1_1/family", "t5_study/sizes"} == set(PARAMETERS)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_a_model_file_gives_the_exact_number_of_parameters(load, name):
    config = load(name)
    assert parameters.count(jax.eval_shape(config.make, jax.random.key(0))) == PARAMETERS[name]
    header = (GIN_CONFIGS / "models" / f"{name}.gin").read_text().splitlines()[0]
    assert f"{PARAMETERS[name]:,} parameters" in header


def test_dropout_is_that_of_pretraining_unless_set(load):
    assert load("t5_1_0/tiny").dropout_rate == 0.1
    assert load("t5_1_1/tiny").dropout_rate == 0.0
    assert load("t5_1_1/tiny", "DROPOUT_RATE = 0.25").dropout_rate == 0.25
