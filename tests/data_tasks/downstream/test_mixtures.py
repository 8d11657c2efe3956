"""Mixtures of benchmarks: registered rates, and one directory for the data of all tasks."""

from unittest import mock

import numpy as np
import pytest
import seqio

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.downstream import mixtures
from t5x_like.data import specs, task_arguments
from t5x_like.data.mixing import Rates
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError


def make(test_data, **changes):
    settings = {
        "mixture_or_task_name": "small_glue",
        "task_feature_lengths": {"inputs": 64, "targets": 8},
        "batch_size": 4,
        "task_arguments": {"data_dir": str(test_data / "glue")},
        "vocabulary_path": next(str(path) for path in (test_data / "vocab" / "t5_32k").glob("*.model")),
    }
    return SeqIOSource(**(settings | changes))


def test_registered_mixtures_have_the_published_rates():
    mixture = seqio.MixtureRegistry.get("glue_v002_proportional")
    assert sum(mixture.get_rate(task) for task in mixture.tasks) == 949_101
    assert mixture.get_rate(seqio.TaskRegistry.get("glue_mnli_v002")) == 392_702
    assert {task.name for task in mixture.tasks} == set(mixtures.GLUE_RATES)
    mixture = seqio.MixtureRegistry.get("super_glue_v102_proportional")
    assert sum(mixture.get_rate(task) for task in mixture.tasks) == 185_673
    assert {task.name for task in mixture.tasks} == set(mixtures.SUPER_GLUE_RATES)
    equal = seqio.MixtureRegistry.get("glue_mnli_and_dev_v002")
    assert {task.name: equal.get_rate(task) for task in equal.tasks} == dict.fromkeys(
        ["glue_mnli_v002", "glue_mnli_matched_v002", "glue_mnli_mismatched_v002"], 1.0
    )


def rates_of(mixture):
    """Returns the rates of a mixture whose tasks all have 5 training examples, or a million for large corpora."""
    number = mock.Mock(return_value=5)
    with (
        mock.patch.object(seqio.Task, "num_input_examples", number),
        mock.patch.object(seqio.Task, "splits", ["train"]),
    ):
        mixture = seqio.MixtureRegistry.get(mixture)
        return {task.name: mixture.get_rate(task) for task in mixture.tasks}


@pytest.mark.parametrize(
    ("mixture", "number", "total"),
    [
        ("all_equal", 29, 29),
        ("all_proportional", 29, 949_101 + 185_673 - 2490 + 6 * 5),
        ("all_mix", 29, 949_101 + 185_673 - 2490 + 5 * 5 + 1e6),
        ("en_mix", 25, 24 * 5 + 1e6),
        ("leave_one_out_glue_v002_proportional", 18, 185_673 + 6 * 5),
        ("leave_one_out_super_glue_v102_proportional", 17, 949_101 + 6 * 5),
        *(
            (f"leave_one_out_{left_out}", 28, 949_101 + 185_673 - 2490 + 5 * 5)
            for left_out in mixtures.SUPERVISED
            if "glue" not in left_out and "dpr" not in left_out
        ),
        ("large_supervised_equal", 3, 3),
        ("large_supervised_proportional", 3, 15),
        ("large_translation_equal", 2, 2),
        ("squad_trivia_qa_equal", 2, 2),
        ("wsc_dpr_simple_proportional", 3, 1581),
    ],
)
def test_cotraining_mixtures_have_the_published_rates(mixture, number, total):
    rates = rates_of(mixture)
    assert (len(rates), sum(rates.values())) == (number, total)


def test_left_out_task_is_not_in_its_mixture():
    assert "squad_v010_allanswers" not in rates_of("leave_one_out_squad_v010_allanswers")
    assert not set(mixtures.GLUE_RATES) & set(rates_of("leave_one_out_glue_v002_proportional"))
    assert rates_of("all_mix")["glue_rte_v002"] == rates_of("all_proportional")["super_glue_rte_v102"] == 1245
    assert rates_of("leave_one_out_glue_v002_proportional")["super_glue_rte_v102"] == 2490


def test_task_without_a_training_split_is_only_evaluated(test_data):
    task = seqio.TaskRegistry.get("glue_ax_v002")
    task_arguments.update([task.name], {"data_dir": str(test_data / "glue")})
    assert mixtures.examples(task) == 0


@pytest.mark.full
def test_tasks_of_cotraining_share_features(test_data):
    rates = {"c4_v020_unsupervised": 1, "glue_rte_v002": 1}
    arguments = {
        "glue_rte_v002": {"data_dir": str(test_data / "glue")},
        "c4_v020_unsupervised": {"data_dir": str(test_data / "text/tfds_tfrecords"), "tfds_name": "c4/en:2.3.0"},
    }
    source = make(test_data, rates=rates, task_arguments=arguments, task_feature_lengths={"inputs": 64, "targets": 20})
    batches = source.host_iterator(specs.ENCODER_DECODER)
    targets = np.concatenate([next(batches)["decoder_target_tokens"] for _ in range(4)])
    corrupted = (targets == 32099).any(axis=1)  # the first sentinel
    assert 0 < corrupted.sum() < len(corrupted)


def test_one_directory_serves_all_tasks(test_data):
    source = make(test_data, rates=Rates(tasks=["glue_cola_v002", "glue_rte_v002"], maximum=2490))
    assert source.mixing_fractions() == {"glue_cola_v002": 0.5, "glue_rte_v002": 0.5}
    batch = next(source.host_iterator(specs.ENCODER_DECODER))
    assert batch["encoder_input_tokens"].shape == (4, 64)
    assert [each.name for each in source.per_task()] == ["glue_cola_v002", "glue_rte_v002"]


def test_task_without_data_is_named(test_data):
    source = make(test_data, mixture_or_task_name="glue_v002_proportional")
    with pytest.raises(UserError, match="glue_mnli_v002.*no file found in"):
        source.host_iterator(specs.ENCODER_DECODER)
