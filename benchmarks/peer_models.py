"""The models that `peer_steps.py` times: of this library and of transformers, at equal sizes and without dropout."""

import dataclasses
from typing import Any

WINDOW = 256  # tokens that a token of Longformer sees on each side


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of its batch.

    Attributes:
      family: `t5`, `bert`, `longformer`, `bigbird`, `deberta`, `xlnet`, `modernbert`, `gpt`, `llama`, `qwen3` or
        `lstm`.
      rows: Rows of a batch.
      inputs: Tokens of a row.
      targets: Tokens of T5's targets, masked tokens of BERT, or a sixth of XLNet's tokens.
      width: Size of a hidden state.
      mlp: Size within a feed-forward block.
      heads: Query heads.
      kv_heads: Heads of keys and values.
      layers: Layers of a stack.
      vocabulary: Rows of the embeddings.
      head_dim: Size of the queries, keys and values of a head.
    """

    family: str
    rows: int
    inputs: int
    targets: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int
    head_dim: int = 64

    def tiny(self) -> "Sizes":
        """Returns sizes that check the same paths in little time."""
        return dataclasses.replace(
            self, rows=2, inputs=96, targets=16, width=128, mlp=128, heads=2, kv_heads=1, layers=2, vocabulary=128
        )


def our_model(sizes: Sizes) -> tuple[Any, Any]:
    """Returns the configuration and the objective."""
    from t5x_like.models.bert import BertConfig
    from t5x_like.models.bigbird import BigBirdConfig
    from t5x_like.models.deberta import DebertaConfig
    from t5x_like.models.gpt import GPTConfig
    from t5x_like.models.llama import LlamaConfig
    from t5x_like.models.longformer import LongformerConfig
    from t5x_like.models.lstm import LSTMConfig
    from t5x_like.models.modernbert import ModernBertConfig
    from t5x_like.models.qwen import Qwen3Config
    from t5x_like.models.t5 import T5Config
    from t5x_like.models.xlnet import XLNetConfig
    from t5x_like.objectives.causal_lm import CausalLM
    from t5x_like.objectives.masked_lm import MaskedLM
    from t5x_like.objectives.permutation_lm import PermutationLM
    from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

    if sizes.family == "lstm":
        widths = {"embed_dim": sizes.width, "embedding_dim": sizes.width}
        return LSTMConfig(vocab_size=sizes.vocabulary, **widths, num_layers=sizes.layers), CausalLM()
    shared = {
        "vocab_size": sizes.vocabulary,
        "embed_dim": sizes.width,
        "mlp_dim": sizes.mlp,
        "num_heads": sizes.heads,
        "head_dim": sizes.head_dim,
        "dropout_rate": 0.0,
    }
    if sizes.family == "t5":
        return T5Config(**shared, encoder_layers=sizes.layers, decoder_layers=sizes.layers), SequenceToSequence()
    shared |= {"num_layers": sizes.layers, "attention_dropout_rate": 0.0}
    if sizes.family == "xlnet":
        return XLNetConfig(**shared, memory_length=0, reuse_length=0), PermutationLM()
    shared["max_length"] = sizes.inputs
    if sizes.family == "llama":
        return LlamaConfig(**shared, num_kv_heads=sizes.kv_heads, tied_embeddings=True), CausalLM()
    if sizes.family == "qwen3":
        return Qwen3Config(**shared, num_kv_heads=sizes.kv_heads, tied_embeddings=True), CausalLM()
    if sizes.family == "modernbert":
        return ModernBertConfig(**shared), MaskedLM()
    if sizes.family == "longformer":
        return LongformerConfig(**shared, window=WINDOW), MaskedLM()
    if sizes.family in ("bigbird", "deberta"):
        return (BigBirdConfig if sizes.family == "bigbird" else DebertaConfig)(**shared), MaskedLM()
    return (GPTConfig(**shared), CausalLM()) if sizes.family == "gpt" else (BertConfig(**shared), MaskedLM())


def their_model(sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    """Returns the network, and a batch of random tokens."""
    import torch
    import transformers

    def tokens(length):
        return torch.randint(2, sizes.vocabulary, (sizes.rows, length))

    inputs = tokens(sizes.inputs)
    if sizes.family == "lstm":
        return _torch_lstm(sizes), {"input_ids": inputs, "labels": inputs}
    if sizes.family == "t5":
        t5 = transformers.T5Config(
            vocab_size=sizes.vocabulary, d_model=sizes.width, d_kv=sizes.head_dim, d_ff=sizes.mlp,
            num_layers=sizes.layers, num_heads=sizes.heads, decoder_start_token_id=0, feed_forward_proj="gated-gelu",
            dropout_rate=0.0, tie_word_embeddings=False, use_cache=False,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(t5), {"input_ids": inputs, "labels": tokens(sizes.targets)}
    if sizes.family == "gpt":
        gpt = transformers.GPT2Config(
            vocab_size=sizes.vocabulary, n_embd=sizes.width, n_inner=sizes.mlp, n_layer=sizes.layers,
            n_head=sizes.heads, n_positions=sizes.inputs, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(gpt), {"input_ids": inputs, "labels": inputs}
    if sizes.family == "xlnet":
        return _their_xlnet(sizes, inputs)
    shared = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "max_position_embeddings": sizes.inputs,
    }
    if sizes.family == "llama":
        llama = transformers.LlamaConfig(
            **shared, num_key_value_heads=sizes.kv_heads, head_dim=sizes.head_dim, tie_word_embeddings=True,
            use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=1,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(llama), {"input_ids": inputs, "labels": inputs}
    if sizes.family == "qwen3":
        qwen = transformers.Qwen3Config(
            **shared, num_key_value_heads=sizes.kv_heads, head_dim=sizes.head_dim, tie_word_embeddings=True,
            use_cache=False, rope_theta=1e6, bos_token_id=1, eos_token_id=1,
        )  # fmt: skip
        return transformers.Qwen3ForCausalLM(qwen), {"input_ids": inputs, "labels": inputs}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    masked = torch.arange(sizes.inputs) < sizes.targets
    batch = {"input_ids": inputs, "labels": inputs.where(masked, -100)}
    if sizes.family == "longformer":
        shared |= {"max_position_embeddings": sizes.inputs + 2, "type_vocab_size": 1, "attention_window": 2 * WINDOW}
        return transformers.LongformerForMaskedLM(transformers.LongformerConfig(**shared, **dropout)), batch
    if sizes.family == "bigbird":
        return transformers.BigBirdForMaskedLM(transformers.BigBirdConfig(**shared, **dropout)), batch
    if sizes.family == "deberta":
        relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
        deberta = transformers.DebertaConfig(**shared, **dropout, **relative, type_vocab_size=0, layer_norm_eps=1e-7)
        return transformers.DebertaForMaskedLM(deberta), batch
    if sizes.family == "modernbert":
        # Without `reference_compile=False`, the eager model would compile its blocks where it can.
        modernbert = transformers.ModernBertConfig(
            **shared, reference_compile=False, pad_token_id=0, bos_token_id=1, cls_token_id=1, eos_token_id=1,
            sep_token_id=1,
        )  # fmt: skip
        return transformers.ModernBertForMaskedLM(modernbert), batch
    bert = transformers.BertConfig(**shared, hidden_act="gelu_new", **dropout)
    return transformers.BertForMaskedLM(bert), batch


def _torch_lstm(sizes: Sizes) -> Any:
    """Returns an LSTM language model of torch's layers, which is called as the models of transformers."""
    import types

    import torch

    class LanguageModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(sizes.vocabulary, sizes.width)
            self.lstm = torch.nn.LSTM(sizes.width, sizes.width, sizes.layers, batch_first=True)
            self.logits = torch.nn.Linear(sizes.width, sizes.vocabulary)

        def forward(self, input_ids, labels):
            states, _ = self.lstm(self.embedding(input_ids))
            loss = torch.nn.functional.cross_entropy(self.logits(states).flatten(0, 1), labels.flatten())
            return types.SimpleNamespace(loss=loss)

    return LanguageModel()


def _their_xlnet(sizes: Sizes, inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Returns XLNet, and a batch of random permutations, whose first targets are predicted by the second stream."""
    import torch
    import transformers

    config = transformers.XLNetConfig(
        vocab_size=sizes.vocabulary, d_model=sizes.width, d_inner=sizes.mlp, n_layer=sizes.layers,
        n_head=sizes.heads, dropout=0.0, mem_len=None, use_mems_eval=False, use_mems_train=False,
    )  # fmt: skip
    ranks = torch.argsort(torch.rand(inputs.shape), dim=1)
    positions = torch.argsort(torch.rand(inputs.shape), dim=1)[:, : sizes.targets]
    batch = {
        "input_ids": inputs,
        "perm_mask": (ranks[:, None, :] >= ranks[:, :, None]).float(),
        "target_mapping": torch.nn.functional.one_hot(positions, sizes.inputs).float(),
        "labels": torch.gather(inputs, 1, positions),
    }
    return transformers.XLNetLMHeadModel(config), batch
