"""The operative configuration is complete, can be read again, and can be compared."""

import textwrap

from t5x_like import config


def test_text_contains_exactly_the_reached_settings(toy):
    text = toy.load("TASK=my_task").text
    body = text.split("dynamic_registration\n", 1)[1].replace(toy.name, "TOY")
    assert body == textwrap.dedent("""
        import TOY

        DIM = 8
        MODEL_DIR = None
        TASK = 'my_task'
        TRAIN_STEPS = 100

        TOY.train:
            model = @TOY.Model()
            schedule = @TOY.constant()
            data = @train/TOY.Source()
            eval_data = @eval/TOY.Source()
            steps = %TRAIN_STEPS
            model_dir = %MODEL_DIR  # default
            mode = 'fast'  # default
            checkpointer = @TOY.checkpointer
            extra = None  # default

        TOY.Model:
            dim = %DIM
            rate = 0.1  # default
            name = None  # default

        TOY.constant:
            value = 1.0  # default

        TOY.Source:
            task = %TASK
            split = 'train'  # default
            seed = 0  # default

        eval/TOY.Source:
            split = 'validation'

        TOY.checkpointer:
            keep = 2  # default
    """)


def test_text_reads_back_and_can_be_overridden(toy, tmp_path):
    first = toy.load("TASK=my_task", "MODEL_DIR=gs://bucket/run")
    (tmp_path / "config.gin").write_text(first.text)
    again = toy.load(files=["config.gin"])
    assert again.text == first.text
    changed = toy.load("TRAIN_STEPS=500", files=["config.gin"])
    assert changed.configured()()["steps"] == 500
    assert changed.configured()()["model_dir"] == "gs://bucket/run"


def test_long_values_span_lines_and_read_back(toy, tmp_path):
    long = {f"feature_{number}": [number, {"text": "with 'quotes' and a # sign"}] for number in range(9)}
    first = toy.load("TASK=a", f"train.extra={long!r}")
    assert all(len(line) <= 120 for line in first.text.splitlines())
    (tmp_path / "config.gin").write_text(first.text)
    assert toy.load(files=["config.gin"]).configured()()["extra"] == long
    assert toy.load(files=["config.gin"]).text == first.text


def test_flatten_resolves_macros(toy):
    flat = config.flatten(toy.load("TASK=my_task").text)
    assert flat[f"{toy}.train.steps"] == "100"
    assert flat[f"{toy}.Source.task"] == "'my_task'"
    assert flat[f"eval/{toy}.Source.split"] == "'validation'"


def test_differences_exclude_free_settings(toy):
    def compare(*bindings, free=("steps", "model_dir")):
        return config.differences(toy.load("TASK=a").text, toy.load(*bindings).text, free=free)

    assert compare("TASK=a", "TRAIN_STEPS=5", "MODEL_DIR=/elsewhere") == []
    assert compare("TASK=a", "TRAIN_STEPS=5", free=()) == [f"{toy}.train.steps: 100 → 5"]
    assert compare("TASK=b", "DIM=9") == [f"{toy}.Model.dim: 8 → 9", f"{toy}.Source.task: 'a' → 'b'"]
    assert compare("TASK=a", "eval/Source.seed=3", free=("eval_data",)) == []
    assert compare("TASK=a", "eval/Source.seed=3", free=(f"{toy}.Source.*",)) == []
    assert compare("TASK=a", "eval/Source.seed=3") == [f"eval/{toy}.Source.seed: not set → 3"]


def test_free_setting_that_the_schedule_uses_is_a_difference(toy):
    schedule = "toy.train.schedule=@toy.linear()"
    before, after = (toy.load("TASK=a", schedule, f"TRAIN_STEPS={n}").text for n in (100, 200))
    assert config.differences(before, after, free=("steps",)) == [f"{toy}.linear.total_steps: 100 → 200"]


def test_default_that_one_version_lacks_is_not_a_difference(toy):
    now = toy.load("TASK=a", "Model.rate=0.5").text
    before = now.replace("    name = None  # default\n", "").replace("    seed = 0  # default\n", "")
    assert before != now
    assert config.differences(before, now) == []
    assert config.differences(now.replace("    rate = 0.5\n", ""), now) == [f"{toy}.Model.rate: not set → 0.5"]
