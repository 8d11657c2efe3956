"""The published recipes of today's models, in small: each trains for 20 steps by its command, and its loss falls."""

import dataclasses

import pytest

from t5x_like.metrics import read_metrics

pytestmark = pytest.mark.full

STEPS = 20
SMALL = ["--gin.BATCH_SIZE=8", f"--gin.TRAIN_STEPS={STEPS}", "--gin.EVAL_STEPS=2"]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe in small: gin files of the model and of the run, the task, and what is smaller than published."""

    model: str
    run: str
    task: str
    lengths: dict
    options: tuple[str, ...] = ()
    warmup: tuple[str, ...] = ("--gin.WARMUP_STEPS=5",)


SHIPPED = "python_docs"
T5 = ("--gin.T5Config.vocab_size=1100",)
RECIPES = {
    "longt5": Recipe(
        "longt5/base",
        "longt5",
        f"{SHIPPED}_gap_sentences",
        {"inputs": 96, "targets": 48},
        tuple(
            f"--gin.LongT5Config.{name}={size}"
            for name, size in (
                ("embed_dim", 64), ("mlp_dim", 128), ("encoder_layers", 2), ("decoder_layers", 2), ("num_heads", 2),
                ("head_dim", 32), ("local_radius", 31), ("vocab_size", 1100),
            )
        ),
    ),
    "neobert": Recipe("neobert/tiny", "neobert", f"{SHIPPED}_neobert", {"inputs": 64, "targets": 32}),
    "mosaicbert": Recipe("mosaicbert/tiny", "mosaicbert", f"{SHIPPED}_mosaicbert", {"inputs": 64, "targets": 38}),
    "cramming": Recipe(
        "cramming/tiny", "cramming", f"{SHIPPED}_full_sentences", {"inputs": 64, "targets": 16},
        ("--gin.MICROBATCHES=4", "--gin.BUDGET_HOURS=0.01", "--gin.SECONDS_PER_MICROBATCH=1.5"), warmup=(),
    ),
    "ltgbert": Recipe("ltgbert/tiny", "ltgbert", f"{SHIPPED}_ltgbert", {"inputs": 64, "targets": 10}),
    "gptbert": Recipe(
        "gptbert/tiny", "gptbert", f"{SHIPPED}_gptbert", {"inputs": 64},
        ("--gin.MICROBATCHES=4", "--gin.COOLDOWN_STEPS=2", "--gin.GptBertConfig.vocab_size=1024",
         "--gin.MASK_ID=1023", "--gin.SPECIAL_IDS=(0, 1, 2, 1021, 1022)"),
    ),
    "nanot5": Recipe("t5_1_1/tiny", "nanot5", f"{SHIPPED}_iid_denoising", {"inputs": 64, "targets": 32}, T5),
    "ul2": Recipe("t5_1_1/tiny", "ul2", f"{SHIPPED}_ul2", {"inputs": 64, "targets": 64}, T5),
    "umt5": Recipe(
        "t5_1_1/tiny", "umt5", f"{SHIPPED}_iid_denoising", {"inputs": 64, "targets": 32}, (*T5,)
    ),
    "smollm2": Recipe("llama2/tiny", "smollm2", f"{SHIPPED}_causal_lm", {"targets": 64}, ("--gin.BOS_ID=None",)),
    "olmo2": Recipe("olmo2/tiny", "olmo2", f"{SHIPPED}_causal_lm", {"targets": 64}, ("--gin.BOS_ID=None",)),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_trains(name, run_command, tmp_path):
    recipe = RECIPES[name]
    given = {
        "MIXTURE_OR_TASK_NAME": recipe.task,
        "TASK_FEATURE_LENGTHS": recipe.lengths,
        "MODEL_DIR": tmp_path,
        "LOG_PERIOD": 1,
    }
    files = (f"--gin_file=models/{recipe.model}.gin", f"--gin_file=runs/{recipe.run}.gin")
    bindings = (f"--gin.{macro}={value}" for macro, value in given.items())
    code, output = run_command(["train", *files, *bindings, *SMALL, *recipe.warmup, *recipe.options])
    assert code == 0, output
    losses = [row["loss"] for row in read_metrics(str(tmp_path)) if row["split"] == "train"]
    assert len(losses) == STEPS and losses[-1] < losses[0]
