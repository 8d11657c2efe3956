"""The program of a run, and the combinations of models and objectives that it accepts."""

import dataclasses
import types

import pytest
import recipes

from t5x_like import optimizers
from t5x_like.adapters.prompt import Prompt
from t5x_like.errors import UserError
from t5x_like.models.bert import BertConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import hardware_files
from t5x_like.training.program import make_program

SIZES = dict(vocab_size=32, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4)
T5 = T5Config(**SIZES, encoder_layers=1, decoder_layers=1)
GPT = GPTConfig(**SIZES, num_layers=1, max_length=16)
BERT = BertConfig(**{name: size for name, size in SIZES.items() if name != "head_dim"}, num_layers=1, max_length=16)


class ShapesOnly:
    """A data source that only defines the shapes of its batches."""

    def batch_shapes(self, spec):
        lengths = spec.model_lengths({"inputs": 16, "targets": 8})
        return {name: (8, length) for name, length in lengths.items()}


def program(model, objective, data=None, groups=(), **settings):
    optimizer = optimizers.adamw(learning_rate=1e-3, groups=groups)
    return make_program(
        recipes.make(model=model, objective=objective, optimizer=optimizer, data=data or ShapesOnly(), **settings)
    )


@pytest.mark.parametrize(("model", "objective"), [(T5, SequenceToSequence()), (GPT, CausalLM()), (BERT, MaskedLM())])
def test_model_accepts_objectives_of_its_architecture(model, objective):
    assert program(model, objective).batch_shapes


@pytest.mark.parametrize(
    ("model", "objective", "message"),
    [
        (GPT, SequenceToSequence(), "GPTConfig does not fit SequenceToSequence.*does not read 'encoder_input_tok"),
        (
            BERT,
            SequenceToSequence(),
            "BertConfig does not fit SequenceToSequence.*not read 'decoder_input_tok",
        ),
        (BERT, CausalLM(), "BertConfig does not fit CausalLM.*needs 'encoder_input_tokens'"),
        (T5, MaskedLM(), "T5Config does not fit MaskedLM.*needs 'decoder_input_tokens'"),
    ],
)
def test_objective_of_another_architecture_raises(model, objective, message):
    with pytest.raises(ValueError, match=message):
        program(model, objective)


class Packed(ShapesOnly):
    pack = True


class Cache(ShapesOnly):
    pack = None

    def __init__(self, pack):
        layout = types.SimpleNamespace(pack=pack)
        self.manifest = types.SimpleNamespace(layout=layout)

    def per_task(self):
        return [self]


def test_packed_rows_after_a_prompt_raise():
    model = dataclasses.replace(GPT, max_length=24, adapters=(Prompt(length=2),))
    for data in (Packed(), Cache(True)):
        with pytest.raises(ValueError, match="a prompt is read with one example per row, .* Give PACK=False"):
            program(model, CausalLM(), data)
        assert program(GPT, CausalLM(), data)
    assert program(model, CausalLM(), Cache(False)).flops > program(GPT, CausalLM()).flops


def test_only_a_run_without_xla_options_is_told_of_a_file(monkeypatch):
    told = []
    monkeypatch.setattr(hardware_files, "suggest", told.append)
    for options in (None, {}, {"xla_cpu_enable_fast_math": False}):
        program(GPT, CausalLM(), compiler_options=options)
    assert [mesh.size for mesh in told] == [8]


def test_indivisible_parameter_raises_with_its_name_in_model_info():
    model = T5Config(**(SIZES | {"vocab_size": 33}), encoder_layers=1, decoder_layers=1)
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 4, "tensor": 2})
    with pytest.raises(
        ValueError, match=r"^model/\S+: vocab=33 is not divisible by the 2 shards of mesh axes tensor=2"
    ):
        program(model, SequenceToSequence(), partitioner=partitioner)


def test_group_without_clipping_needs_a_limit():
    groups = [optimizers.ParameterGroup("/token_embedder/", clip=False)]
    with pytest.raises(UserError, match="MAX_GRAD_NORM=None: clip=False of the parameter group .*token_embedder"):
        program(BERT, MaskedLM(), groups=groups)
    assert program(BERT, MaskedLM(), groups=groups, max_grad_norm=1.0)
