"""WNLI in the form of WSC: marked pronouns, referents as the hypothesis spells them, and the task on official files."""

import gold_predictions
import pytest

from data_tasks.downstream.wnli_simple import TASK, pronoun_and_referent
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

FISH = "The fish ate the worm. It was tasty."


@pytest.mark.parametrize(
    ("premise", "hypothesis", "marked", "referent"),
    [
        (FISH, "The worm was tasty.", "The fish ate the worm. *It* was tasty.", "The worm"),
        # The first of two pronouns whose neighbors match best.
        ("He helped him.", "He helped Bill!", "He helped *him* .", "Bill"),
        ("Tom said 'Check' as he took his hat.", "Tom said 'Check' as he took Ralph's hat.", None, "Ralph"),
        ("Tina's and it did look much better.", "Sam's drawing did look much better.", None, "Sam's drawing"),
        ("When she came, her mother slept.", "When the old Ann came, her mother slept.", None, "the old Ann"),
    ],
)
def test_referent_replaces_the_pronoun(premise, hypothesis, marked, referent):
    found, words = pronoun_and_referent(premise, hypothesis)
    assert words == referent
    assert found == (marked or found) and found.count("*") == 2


@pytest.mark.parametrize(
    ("premise", "hypothesis", "message"),
    [
        ("The fish ate.", "The worm ate.", "'The fish ate.' has none of the pronouns"),
        ("It slept.", "The  cat slept.", "'The  cat slept.' does not repeat 'It slept.'"),
    ],
)
def test_other_sentences_raise(premise, hypothesis, message):
    with pytest.raises(UserError, match=message):
        pronoun_and_referent(premise, hypothesis)


def test_official_file_is_evaluated(tmp_path):
    (tmp_path / "WNLI").mkdir()
    rows = [("0", FISH, "The worm was tasty.", "1"), ("1", FISH, "The fish was tasty.", "0")]
    table = [("index", "sentence1", "sentence2", "label"), *rows]
    (tmp_path / "WNLI/dev.tsv").write_text("".join("\t".join(row) + "\n" for row in table))
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": str(tmp_path)}
    examples = gold_predictions.read(TASK, task_feature_lengths={"inputs": 48, "targets": 8}, task_arguments=arguments)
    assert [example["targets_pretokenized"] for example in examples] == [b"The worm", b"The fish"]
    assert examples[0]["inputs_pretokenized"].decode() == "wsc: The fish ate the worm. *It* was tasty."
    assert gold_predictions.evaluate(TASK, examples) == {"accuracy": 50}  # the second referent is the wrong one
