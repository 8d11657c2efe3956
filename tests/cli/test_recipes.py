"""`t5x_like recipes` lists the shipped recipes."""

import re
import subprocess
import sys

import pytest

from t5x_like import cli, config
from t5x_like.cli import recipes

pytestmark = pytest.mark.notf


def listed(*words):
    """Returns the files that the command lists with these words."""
    return re.findall(r"^  ([\w/]+\.gin): ", recipes.run(words), re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tagging"], {"runs/finetune_tagging.gin", "runs/elmo_tagging.gin", "runs/tag_word_vectors.gin"}),
        (["SQuAD"], {"runs/finetune_span_extraction.gin", "runs/finetune_electra_squad.gin"}),
        (["lora"], {"adapters/lora.gin", "compression/int8_lora.gin"}),
        (["xlnet", "squad"], {"runs/finetune_xlnet_squad.gin"}),
    ],
)
def test_words_find_recipes(words, expected):
    assert expected <= {*listed(*words)} < {*listed()}
    assert len(listed(*words)) < 30


def test_all_recipes_are_listed_once_with_summary_and_command():
    shipped = {f"runs/{path.name}" for path in (config.SHIPPED_ROOT / "runs").glob("*.gin")}
    assert len(listed()) == len({*listed()}) and shipped < {*listed()}
    for recipe in recipes.recipes():
        assert recipe.summary and not recipe.summary.endswith("."), recipe.file
        assert cli.parse(recipe.command.replace("\\\n", " ").split()[1:2]).command in cli.COMMANDS, recipe.file


def test_recipes_are_grouped_by_family_and_by_task():
    printed = recipes.run([])
    bert = re.search(r"^bert\n((?:  .*\n)*)", printed, re.MULTILINE)[1]
    assert bert.startswith("  models/bert/: 3_layers, ") and "\n  runs/bert.gin: BERT's pretraining" in bert
    assert "t5x_like train --gin_file=models/bert/base.gin --gin_file=runs/bert.gin" in bert
    index = printed.partition("\nby task\n")[2]
    assert "\n  tagging: runs/finetune_tagging.gin, runs/tag_word_vectors.gin\n" in index
    assert "runs/finetune_tagging.gin" in printed.partition("\nany family\n")[2]
    assert "models/albert" not in recipes.run(["squad", "bert"])


def test_unknown_word_names_the_nearest(capsys):
    assert cli.main(["recipes", "taging"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("t5x_like: taging: no recipe has this word. The nearest words are tagging")
    assert cli.main(["recipes", "qqqq"]) == 2
    assert "qqqq: no recipe has this word. `t5x_like recipes` lists all." in capsys.readouterr().err
    assert cli.main(["recipes", "glove", "xlnet"]) == 2
    assert "glove xlnet: no recipe has all of these words. Give fewer words." in capsys.readouterr().err
    assert cli.main(["recipes", "--task=tagging"]) == 2
    assert "unknown flag --task=tagging. Give words, such as" in capsys.readouterr().err


def test_help_names_the_command(capsys):
    assert cli.main(["--help"]) == 0
    assert re.search(r"^  recipes +list the shipped recipes", capsys.readouterr().out, re.MULTILINE)
    assert cli.main(["recipes", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: t5x_like recipes [WORD ...]\n")
    assert cli.main(["recipe"]) == 2
    assert "did you mean recipes?" in capsys.readouterr().err


def test_command_imports_nothing_heavy():
    program = (
        "import sys; from t5x_like.cli import main; main(['recipes']); "
        "print({'jax', 'gin', 'numpy', 'tensorflow'} & set(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr == "set()\n"
