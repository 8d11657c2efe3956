"""The shipped files of decoder-only networks: each parses and gives the published number of parameters."""

import dataclasses
from pathlib import Path

import gin
import jax
import pytest

from t5x_like import parameters

GIN_CONFIGS = Path(__file__).resolve().parents[2] / "gin_configs"

# Those of the published checkpoints; of GPT-3 what its paper's widths give: the heads of its XL and 13B are not as wide
# together as the network is.
PARAMETERS = {
    "gpt1/base": 116_534_784,
    "gpt1/tiny": 329_664,
    "gpt2/tiny": 412_008,
    "gpt2/small": 124_439_808,
    "gpt2/medium": 354_823_168,
    "gpt2/large": 774_030_080,
    "gpt2/xl": 1_557_611_200,
    "gpt3/tiny": 420_200,
    "gpt3/small": 125_226_240,
    "gpt3/medium": 355_871_744,
    "gpt3/large": 760_300_032,
    "gpt3/xl": 1_517_123_584,
    "gpt3/2_7b": 2_651_553_280,
    "gpt3/6_7b": 6_658_404_352,
    "gpt3/13b": 12_936_488_380,
    "gpt3/175b": 174_604_259_328,
    "llama1/7b": 6_738_415_616,
    "llama1/13b": 13_015_864_320,
    "llama1/33b": 32_528_943_616,
    "llama1/65b": 65_285_660_672,
    "llama2/7b": 6_738_415_616,
    "llama2/13b": 13_015_864_320,
    "llama2/70b": 68_976_648_192,
    "llama3/8b": 8_030_261_248,
    "llama3/70b": 70_553_706_496,
    "mistral/7b": 7_241_732_096,
    "llama2/tiny": 513_576,
    "mistral/tiny": 513_576,
}
FAMILIES = ("gpt1", "gpt2", "gpt3", "llama1", "llama2", "llama3", "mistral")


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
    files = {f"{family}/{path.stem}" for family in FAMILIES for path in (GIN_CONFIGS / "models" / family).glob("*.gin")}
    assert files - {f"{family}/family" for family in FAMILIES} == set(PARAMETERS)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_a_model_file_gives_the_exact_number_of_parameters(load, name):
    scanned = dataclasses.replace(load(name), scan_layers=True)  # tracing 96 layers one by one takes seconds
    assert parameters.count(jax.eval_shape(scanned.make, jax.random.key(0))) == PARAMETERS[name]
    header = (GIN_CONFIGS / "models" / f"{name}.gin").read_text().splitlines()[0]
    assert f"{PARAMETERS[name]:,} parameters" in header


def test_what_makes_a_family(load):
    gpt1, gpt2, gpt3 = load("gpt1/tiny"), load("gpt2/tiny"), load("gpt3/tiny")
    assert (gpt1.norm_position, gpt2.norm_position, gpt3.norm_position) == ("post", "pre", "pre")
    assert (gpt1.max_length, gpt2.max_length, gpt3.max_length) == (512, 1024, 2048)
    assert gpt3.attention_windows == (None, 256)
    assert load("gpt3/tiny", "ATTENTION_WINDOW = 64").attention_windows == (None, 64)
    assert load("llama3/8b").rope_theta == 500_000 and load("llama3/8b").num_kv_heads == 8
    assert load("llama2/7b").num_kv_heads == 32
    assert load("llama1/33b").norm_epsilon == 1e-6 and load("llama1/65b").norm_epsilon == 1e-5
    assert load("mistral/7b").attention_windows == (4096,)


def test_dropout_is_that_of_pretraining_unless_set(load):
    assert (load("gpt2/tiny").dropout_rate, load("gpt2/tiny").attention_dropout_rate) == (0.1, 0.1)
    assert load("gpt3/tiny").dropout_rate == load("llama2/tiny").dropout_rate == 0.0
    assert load("llama2/tiny", "DROPOUT_RATE = 0.25").attention_dropout_rate == 0.25
