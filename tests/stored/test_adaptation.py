"""Encoder-decoders that start from pretrained decoders, with the mappings of gin_configs/adaptation."""

import dataclasses
from pathlib import Path

import gin
import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, resized, scanned, tokens
from lanes import others_are_full

from t5x_like import interop, optimizers, parameters
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.models.rotary_encoder_decoder import RotaryEncoderDecoderConfig
from t5x_like.models.t5gemma import T5Gemma2Config, T5GemmaConfig
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner
from t5x_like.stored import warm_start
from t5x_like.stored.weight_source import InitialWeights
from t5x_like.training.stages import of_objective
from t5x_like.training.state import create_state

GIN = Path(__file__).resolve().parents[2] / "gin_configs"


def setting(file, name, scope=""):
    """Returns an argument of `InitialWeights` in a file of gin_configs/adaptation."""
    gin.add_config_file_search_path(str(GIN))
    gin.clear_config()
    gin.parse_config_files_and_bindings(
        [f"adaptation/{file}.gin"], ["VOCABULARY_BOS_ID = 0", "ENCODER_CHECKPOINT_PATH = 'encoder'"]
    )
    found = gin.query_parameter(f"{scope}weight_source.InitialWeights.{name}")
    gin.clear_config()
    return found


BALANCED = setting("balanced", "mapping")


def restored(config, source, frozen=None):
    """Returns the parameters of a new run by name, which start from a source, and the names of the trained ones."""
    params = {"model": config.make(jax.random.key(1)), "objective": {}}
    groups = () if frozen is None else (optimizers.ParameterGroup(frozen, freeze=True),)
    optimizer = optimizers.adamw(learning_rate=0.1, groups=groups)
    trainable, others = optimizers.split(params, optimizer.groups)
    state, others = create_state(trainable, of_objective(SequenceToSequence(), optimizer), 0), Frozen(others)
    for each in source.sources:
        warm_start.check(each, params, config, Partitioner(rules="dp"))
        start = warm_start.restore(each, state, others, config, Partitioner(rules="dp"), SequenceToSequence())
        state, others = start.state, start.frozen
    return optimizers.merge(state.params, others.params)["model"], parameters.named_leaves(trainable)


def exported(decoder, directory):
    """Writes a decoder as a Hugging Face directory, and returns its path and its parameters by name."""
    model = random_model(decoder)
    interop.to_huggingface({"model": model}, decoder, str(directory))
    return str(directory), parameters.named_leaves(model)


def decoder_name(name):
    """Returns the name of a tensor in the decoder that an encoder-decoder starts from."""
    name = name.replace("decoder_embedder", "token_embedder")
    if name.startswith("encoder/"):
        return name.replace("encoder/", "decoder/", 1)
    return name.replace("/self_attention", "/attention").replace("/cross_attention", "/attention")


@pytest.mark.parametrize("merged", others_are_full([False, True], [False]), ids=["cross-attention", "merged"])
@pytest.mark.parametrize("name", others_are_full(["qwen2", "gemma2", "llama", "qwen3", "olmo2", "smollm3"], ["qwen2"]))
def test_all_tensors_start_from_those_of_the_decoder(name, merged, tmp_path):
    decoder = FAMILIES[name].config
    path, expected = exported(decoder, tmp_path / "decoder")
    options = {"shared_embeddings": merged, "merged_attention": merged}
    config = RotaryEncoderDecoderConfig(encoder=decoder, decoder=decoder, **options)
    model, _ = restored(config, InitialWeights(path=path, mapping=BALANCED))
    leaves = parameters.named_leaves(model)
    for tensor, array in leaves.items():
        np.testing.assert_array_equal(array, expected[decoder_name(tensor)], err_msg=tensor)
    stacked = parameters.named_leaves(restored(scanned(config), InitialWeights(path=path, mapping=BALANCED))[0])
    memory = {array.addressable_shards[0].data.unsafe_buffer_pointer() for array in stacked.values()}
    assert len(memory) == len(stacked)  # an update reuses the memory of each parameter


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name"), [(T5GemmaConfig, "gemma2"), (T5Gemma2Config, "gemma3")])
def test_t5gemma_starts_from_a_run_of_gemma(kind, name, tmp_path):
    decoder = FAMILIES[name].config
    path, expected = exported(decoder, tmp_path / "huggingface")
    run = convert(Source(path), Target(str(tmp_path / "run")))
    model, _ = restored(kind(encoder=decoder, decoder=decoder), InitialWeights(path=run, mapping=BALANCED))
    for tensor, array in parameters.named_leaves(model).items():
        new = np.zeros_like(array) if tensor == "end_of_image" else None
        np.testing.assert_array_equal(array, expected.get(decoder_name(tensor), new), err_msg=tensor)


@pytest.mark.parametrize("name", others_are_full(["qwen2", "gemma2"], ["qwen2"]))
def test_adapted_stacks_compute_what_the_decoder_did(name, tmp_path):
    """The encoder is the decoder without its causal mask; the merged attention without visible inputs is its own."""
    decoder = resized(FAMILIES[name].config, attention_windows=(None,))
    path, _ = exported(decoder, tmp_path / "decoder")
    options = {"shared_embeddings": True, "merged_attention": True, "padding_id": 0}
    config = RotaryEncoderDecoderConfig(encoder=decoder, decoder=decoder, **options)
    model, _ = restored(config, InitialWeights(path=path, mapping=BALANCED))
    batch, original = example_batch(FAMILIES["t5_1_1"]), random_model(decoder)
    inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
    whole = original({"decoder_input_tokens": inputs, "decoder_prefix": np.ones_like(inputs)}).hidden
    found = model(batch, capture=("encoder/output",)).captured["encoder/output"]
    np.testing.assert_allclose(found, whole, atol=2e-5)
    hidden = model({"encoder_input_tokens": np.zeros_like(inputs), "decoder_input_tokens": targets}).hidden
    np.testing.assert_allclose(hidden, original({"decoder_input_tokens": targets}).hidden, atol=2e-5)


def test_unbalanced_stacks_start_from_two_decoders_and_the_new_attention_is_trained_alone(tmp_path):
    decoder = FAMILIES["qwen2"].config
    encoder = dataclasses.replace(decoder, embed_dim=24, num_layers=3)
    (path, of_decoder), (other, of_encoder) = (
        exported(each, tmp_path / name) for name, each in {"decoder": decoder, "encoder": encoder}.items()
    )
    further = {name: setting("unbalanced", name, "encoder/") for name in ("mapping", "dropped")}
    source = InitialWeights(
        path=path, mapping=setting("unbalanced", "mapping"), others=(InitialWeights(path=other, **further),)
    )
    config = RotaryEncoderDecoderConfig(encoder=encoder, decoder=decoder)
    model, trained = restored(config, source, frozen="^model/(?!decoder/layers/cross_attention)")
    initial, new = parameters.named_leaves(config.make(jax.random.key(1))), set()
    for tensor, array in parameters.named_leaves(model).items():
        if "/cross_attention" in tensor:
            new.add(f"model/{tensor}")
            expected = initial[tensor]
        else:
            of_stack = of_encoder if tensor.startswith(("encoder/", "token_embedder/")) else of_decoder
            expected = of_stack[decoder_name(tensor)]
        np.testing.assert_array_equal(array, expected, err_msg=tensor)
    assert trained.keys() == new


def test_invalid_adaptations_raise_in_one_line(tmp_path):
    decoder = FAMILIES["qwen2"].config
    wide = dataclasses.replace(decoder, embed_dim=24)
    path, _ = exported(decoder, tmp_path / "decoder")
    with pytest.raises(
        UserError, match="decoder=GPTConfig: not a decoder of Llama's layer, with rotary positions. Give"
    ):
        RotaryEncoderDecoderConfig(encoder=decoder, decoder=FAMILIES["gpt2"].config)
    with pytest.raises(UserError, match="encoder=ModernBertDecoderConfig: not a decoder of Llama's layer"):
        RotaryEncoderDecoderConfig(encoder=FAMILIES["modernbert_decoder"].config, decoder=decoder)
    with pytest.raises(UserError, match="merged_attention=True: needs stacks of one width, but embed_dim is 24 in"):
        RotaryEncoderDecoderConfig(encoder=wide, decoder=decoder, merged_attention=True)
    config = RotaryEncoderDecoderConfig(encoder=wide, decoder=decoder)
    with pytest.raises(UserError, match="architecture differs|has shape .* of this model has shape") as refused:
        restored(config, InitialWeights(path=path, mapping=BALANCED))
    assert "\n" not in str(refused.value)
    llama = FAMILIES["llama"].config
    with pytest.raises(UserError, match="has a Qwen2Config, but the model is a RotaryEncoderDecoderConfig"):
        restored(RotaryEncoderDecoderConfig(encoder=llama, decoder=llama), InitialWeights(path=path, mapping=BALANCED))


def test_rows_longer_than_either_stack_raise():
    short = dataclasses.replace(FAMILIES["qwen2"].config, max_length=8)
    config = RotaryEncoderDecoderConfig(encoder=FAMILIES["qwen2"].config, decoder=short)
    model = random_model(config)
    with pytest.raises(UserError, match="rows of 9 tokens: .*Qwen2Config.max_length=8"):
        model.embed({"encoder_input_tokens": tokens(1, 9), "decoder_input_tokens": tokens(1, 9)})
