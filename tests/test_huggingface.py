"""The models against Hugging Face's own, on random weights: `pip install torch
transformers`. Elsewhere these tests are skipped.
"""

import copy
import json

import numpy as np
import pytest
from support import families
from support.comparisons import assert_same_bits

from attnpy import blocks, checkpoints
from attnpy.layers import MultiHeadAttention
from attnpy.models import BertEncoder, CausalDecoder

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

FULL, SLIDING = "full_attention", "sliding_attention"
IDS = np.random.default_rng(3).integers(0, 30, 24)
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 5.0],
    "original_max_position_embeddings": 12,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 3.0}
MISTRAL = {"sliding_window": 3, "num_hidden_layers": 3}
DECODERS = [
    *((kind, {}) for kind in families.DECODERS),
    ("llama", {"rope_scaling": DYNAMIC, "max_position_embeddings": 12}),
    ("qwen3", {"rope_scaling": DYNAMIC, "max_position_embeddings": 12, "head_dim": 8}),
    ("llama", {"rope_scaling": LONGROPE}),
    ("mistral", {"rope_scaling": {**LONGROPE, "factor": 3.0}}),
    ("mistral", {"rope_scaling": {**LONGROPE, "attention_factor": 1.25}}),
    ("mistral", {**MISTRAL, "layer_types": [SLIDING, FULL, SLIDING]}),
    ("mistral", {**MISTRAL, "layer_types": [FULL, FULL, FULL]}),
    ("llama", {"layer_types": [FULL, FULL]}),
    ("llama", {"hidden_act": "gelu"}),
    ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    ("llama", {"hidden_act": "relu"}),
    ("gpt2", {"activation_function": "quick_gelu"}),
    ("gpt2", {"activation_function": "relu2"}),
    ("gpt2", {"activation_function": "tanh"}),
    ("phi3", {"rope_scaling": None}),
    ("phi3", {"rope_scaling": None, "partial_rotary_factor": 1.0}),
    ("phi3", {"sliding_window": 5, "tie_word_embeddings": True}),
    ("phi3", {"original_max_position_embeddings": 12}),
    ("gemma", {"hidden_act": "gelu", "attention_bias": True}),
    ("gemma", {"hidden_act": "relu", "tie_word_embeddings": False}),
    ("smollm3", {"no_rope_layers": [0, 1, 0], "attention_bias": True}),
    ("smollm3", {"sliding_window": 3, "use_sliding_window": True, "mlp_bias": True}),
    (
        "granite",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    ("phi", {"num_key_value_heads": 4, "hidden_act": "relu"}),
    ("phi", {"tie_word_embeddings": True, "partial_rotary_factor": 1.0}),
    ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    ("gpt_neox", {"tie_word_embeddings": True, "rotary_pct": 1.0}),
    ("olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
    ("olmo2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("olmo3", {"layer_types": [FULL, SLIDING, SLIDING, FULL]}),
    (
        "olmo3",
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 12,
            }
        },
    ),
    (
        "olmo3",
        {
            "rope_scaling": None,
            "rope_theta": None,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
                SLIDING: {"rope_type": "default", "rope_theta": 70.0},
            },
        },
    ),
    ("mixtral", {"sliding_window": None, "num_experts_per_tok": 4}),
    ("olmoe", {"norm_topk_prob": True, "num_key_value_heads": 4}),
    ("olmoe", {"attention_bias": True, "hidden_act": "gelu"}),
    ("qwen2_moe", {"norm_topk_prob": True, "decoder_sparse_step": 2}),
    (
        "qwen2_moe",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    ("qwen2_moe", {"qkv_bias": False, "mlp_only_layers": None}),
    ("qwen3_moe", {"norm_topk_prob": False, "num_experts_per_tok": 1}),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 3}),
    (
        "qwen3_moe",
        {"decoder_sparse_step": 2, "num_hidden_layers": 3, "mlp_only_layers": [9]},
    ),
    ("exaone4", {"layer_types": [FULL, SLIDING, SLIDING, FULL]}),
    ("exaone4", {"sliding_window": None, "layer_types": [FULL] * 4}),
    ("ernie4_5", {"use_bias": True, "tie_word_embeddings": True}),
    ("gpt_neo", {"attention_types": [[["local"], 1], [["global"], 1]]}),
    ("gpt_neo", {"intermediate_size": 20, "tie_word_embeddings": False}),
    ("opt", {"enable_bias": False, "activation_function": "gelu"}),
    ("opt", {"tie_word_embeddings": False, "word_embed_proj_dim": 12}),
    ("gptj", {"n_inner": 20, "rotary_dim": 8, "activation_function": "relu"}),
    ("exaone", {"rope_theta": None, "attention_bias": True}),
    ("falcon", {"new_decoder_architecture": False, "bias": False}),
    (
        "falcon",
        {
            "new_decoder_architecture": False,
            "multi_query": False,
            "num_kv_heads": 4,
            "ffn_hidden_size": 20,
            "tie_word_embeddings": False,
        },
    ),
    ("bloom", {"n_head": 4, "tie_word_embeddings": False}),
    ("bloom", {"n_head": 6, "hidden_size": 48}),
    ("mpt", {"n_heads": 6, "d_model": 48, "attn_config": {"alibi": True}}),
    ("gpt_bigcode", {"n_inner": 20, "activation_function": "gelu"}),
    ("starcoder2", {"use_bias": False, "sliding_window": None, "hidden_act": "gelu"}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    ("stablelm", {"tie_word_embeddings": True, "partial_rotary_factor": 1.0}),
    ("nemotron", {"attention_bias": True, "mlp_bias": True, "head_dim": 4}),
    ("cohere", {"attention_bias": True, "tie_word_embeddings": False}),
    ("cohere2", {"layer_types": [FULL, SLIDING, SLIDING, FULL]}),
    ("cohere2", {"sliding_window_pattern": 2, "attention_bias": True}),
    ("glm", {"attention_bias": False, "tie_word_embeddings": True}),
    ("glm4", {"partial_rotary_factor": 1.0, "num_key_value_heads": 4}),
    ("arcee", {"attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    ("seed_oss", {"attention_out_bias": True, "attention_bias": False}),
    ("seed_oss", {"mlp_bias": True, "tie_word_embeddings": True}),
    ("granitemoehybrid", {"position_embedding_type": "nope", "attention_bias": True}),
    ("granitemoe", {"attention_bias": True, "num_experts_per_tok": 4}),
    ("gpt_oss", {"num_experts_per_tok": 4, "attention_bias": False}),
    ("gpt_oss", {"tie_word_embeddings": True, "sliding_window": 5}),
    ("gpt_oss", {"layer_types": [FULL, SLIDING, SLIDING], "head_dim": 4}),
    ("gpt_oss", {"rope_scaling": None, "rope_theta": None, "head_dim": 64}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ("gemma2", {"layer_types": [FULL, SLIDING, SLIDING], "attention_bias": True}),
    ("gemma2", {"tie_word_embeddings": False, "hidden_activation": "gelu"}),
    ("gemma3_text", {"final_logit_softcapping": 2.0, "rope_scaling": None}),
    ("gemma3_text", {"layer_types": [FULL, SLIDING, FULL]}),
    (
        "gemma3_text",
        {
            "rope_scaling": None,
            "rope_local_base_freq": None,
            "rope_theta": None,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
                SLIDING: {"rope_type": "default", "rope_theta": 70.0},
            },
        },
    ),
]


BOTH_WAYS = [
    *((kind, {"is_causal": False}) for kind in ("llama", "qwen2", "qwen3")),
    *((kind, {"is_causal": False}) for kind in ("granite", "phi", "gpt_neox", "olmo2")),
    ("gemma3_text", {"use_bidirectional_attention": True, "sliding_window": 7}),
    ("gemma3_text", {"use_bidirectional_attention": True, "sliding_window": 8}),
]


def theirs(config, task="CausalLM"):
    """Their model of a configuration, in float64, with no weight at 0 or 1."""
    kind = config["model_type"]
    if kind == "mistral" and "layer_types" in config:
        kind = "ministral"  # as their AutoConfig has it
        config = {"head_dim": 4, **config}
    config = copy.deepcopy(config)  # they write to what is inside
    given = {k: v for k, v in config.items() if k != "model_type" and v is not None}
    made = transformers.CONFIG_MAPPING[kind](**given, pad_token_id=0)
    for name in ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(name, 0) is None:  # null is a value of these
            setattr(made, name, None)
    torch.manual_seed(0)
    owner = getattr(transformers, f"AutoModelFor{task}")
    return randomized(owner.from_config(made, **how(config)))


def how(config):
    """How their model of a configuration is computed."""
    options = {"attn_implementation": "eager", "dtype": torch.float64}
    if "num_experts_per_tok" in config:  # their faster one has no float64
        options["experts_implementation"] = "eager"
    return options


def randomized(model):
    for parameter in model.parameters():
        spread = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5
        parameter.data.add_(torch.randn_like(parameter) * spread)
    return model.eval()


def arrays(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


def decoder(config, model):
    ours = CausalDecoder.from_config(config, dtype=np.float64)
    tensors = arrays(model)
    if ours.tied:
        tensors.pop("lm_head.weight")
    checkpoints.load(ours, tensors, families.NAMES[config["model_type"]])
    return ours


def assert_near(actual, expected):
    # Their angles are float32.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.quick
@pytest.mark.parametrize(("kind", "changes"), DECODERS)
def test_decoders_give_their_scores(kind, changes):
    config = {**families.DECODERS[kind], **changes}
    n_most = 16 if kind == "gpt2" else 24
    for n_tokens in (5, n_most):  # short and long contexts, of a model each
        model = theirs(config)
        ours, ids = decoder(config, model), IDS[:n_tokens]
        with torch.no_grad():
            expected = model(torch.tensor(ids[None])).logits[0].numpy()
        actual = ours.logits(ours(ids))
        assert_near(actual, expected)
        assert np.abs(expected).max() > 0.1


EVERYTHING = {"output_attentions": True, "output_hidden_states": True}


def assert_outputs_near(result, theirs, near=assert_near):
    """Weights and states of one sequence as theirs, of a batch of 1."""
    for ours, each in (
        (result.weights, theirs.attentions),
        (result.hidden_states, theirs.hidden_states),
    ):
        near(ours, np.stack([array[0].numpy() for array in each]))


@pytest.mark.parametrize(("kind", "changes"), DECODERS)
def test_decoders_give_their_weights_and_states(kind, changes):
    config = {**families.DECODERS[kind], **changes}
    model = theirs(config)
    ours, ids = decoder(config, model), IDS[:16]
    with torch.no_grad():
        expected = model(torch.tensor(ids[None]), **EVERYTHING)
    result = ours(ids, return_weights=True, return_hidden_states=True)
    assert_outputs_near(result, expected)
    assert (result.hidden_states[-1] == ours(ids)).all()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "qwen3"])
def test_decoders_give_their_weights_and_states_with_caches(kind):
    config = families.DECODERS[kind]
    model = theirs(config)
    ours, past = decoder(config, model), None
    caches = ours.decoder.new_caches(1, 12)
    for part in (slice(0, 5), slice(5, 6), slice(6, 12)):
        with torch.no_grad():
            expected = model(
                torch.tensor(IDS[None, part]), past_key_values=past, **EVERYTHING
            )
        past = expected.past_key_values
        result = ours(
            IDS[part], caches=caches, return_weights=True, return_hidden_states=True
        )
        assert_outputs_near(result, expected)


def assert_outputs_agree(result, expected, lengths):
    """Weights and hidden states of those tokens of each text that exist."""
    for b, n in enumerate(lengths):
        for one, each in (
            (result.weights[:, b, :, :n, :n], expected.attentions),
            (result.hidden_states[:, b, :n], expected.hidden_states),
        ):
            whole = np.stack([array[b].numpy() for array in each])
            part = whole[..., :n, :n] if one.ndim == 4 else whole[:, :n]
            np.testing.assert_allclose(one, part, rtol=1e-9, atol=1e-9)


def test_bert_gives_their_weights_and_states():
    config = transformers.BertConfig(**families.BERT, attn_implementation="eager")
    model = randomized(transformers.BertModel(config).double())
    ours = BertEncoder.from_config(families.BERT, dtype=np.float64)
    checkpoints.load(ours, arrays(model), "bert")
    batch, mask = np.stack([IDS[:9], IDS[9:18]]), np.ones((2, 9), int)
    mask[1, 6:] = 0
    with torch.no_grad():
        expected = model(
            torch.tensor(batch), attention_mask=torch.tensor(mask), **EVERYTHING
        )
    result = ours(batch, lengths=[9, 6], return_weights=True, return_hidden_states=True)
    assert_outputs_agree(result, expected, [9, 6])


KIN = [kind for kind in families.KIN if kind != "bert"]
GATED = [
    *((kind, {}) for kind in ("modernbert", "eurobert", "nomic_bert", "gte")),
    ("jina_embeddings_v3", {"type_vocab_size": 2, "hidden_act": "gelu_new"}),
    ("jina_embeddings_v3", {"rope_scaling": {**DYNAMIC}}),
    ("modernbert", {"norm_bias": True, "attention_bias": True, "mlp_bias": True}),
    ("modernbert", {"layer_types": [FULL, SLIDING, SLIDING, FULL]}),
    ("modernbert", {"global_attn_every_n_layers": 2, "local_attention": 8}),
    ("modernbert", {"hidden_activation": "relu", "rope_scaling": {**DYNAMIC}}),
    ("eurobert", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    ("eurobert", {"head_dim": 4, "rope_scaling": {**DYNAMIC}}),
    ("nomic_bert", {"hidden_act": "gelu", "head_dim": 6}),
    ("nomic_bert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("gte", {"type_vocab_size": 0, "hidden_act": "relu", "rope_theta": None}),
]


def kin(kind, **changes):
    """Their model of BERT's kin in float64, and ours."""
    return kin_of({**families.ENCODERS[kind], **changes})


def kin_of(config):
    kind, given = config["model_type"], copy.deepcopy(config)
    given |= {"pad_token_id": 0} if kind in ("modernbert", "eurobert") else {}
    made = transformers.CONFIG_MAPPING[kind](**given, attn_implementation="eager")
    torch.manual_seed(0)
    model = randomized(transformers.AutoModel.from_config(made).double())
    ours = BertEncoder.from_config(config, dtype=np.float64, pooler=kind in POOLED)
    checkpoints.load(ours, arrays(model), families.NAMES[kind])
    return model, ours


POOLED = ("roberta", "xlm-roberta", "camembert", "mpnet", "albert")
POOLED += ("roberta-prelayernorm", "data2vec-text")


@pytest.mark.quick
@pytest.mark.parametrize("kind", KIN)
def test_berts_kin_give_their_vectors(kind):
    name = "activation" if kind == "distilbert" else "hidden_act"
    for changes in ({}, {name: "relu"}):
        model, ours = kin(kind, max_position_embeddings=400, **changes)
        rng = np.random.default_rng(0)
        # Long enough for the last buckets of distances; with tokens that are padding,
        # as a text may have them, in the middle.
        batch = rng.integers(0, 30, (3, 390))
        with torch.no_grad():
            expected = model(torch.tensor(batch))
        states = ours(batch)
        assert np.abs(states).max() > 0.1
        np.testing.assert_allclose(
            states, expected.last_hidden_state.numpy(), rtol=1e-9, atol=1e-9
        )
        if kind in POOLED:
            np.testing.assert_allclose(
                ours.pool(states), expected.pooler_output.numpy(), rtol=1e-9, atol=1e-9
            )


@pytest.mark.quick
@pytest.mark.parametrize(("kind", "changes"), GATED)
def test_rotary_encoders_give_their_vectors(kind, changes):
    given = {name: x for name, x in changes.items() if x is not None}
    model, ours = kin(kind, max_position_embeddings=64, **given)
    if "rope_theta" in changes:
        config = {k: v for k, v in families.GTE.items() if k != "rope_theta"} | given
        model, ours = kin_of(config)
    batch = np.random.default_rng(0).integers(0, 30, (3, 50))
    with torch.no_grad():
        expected = model(torch.tensor(batch)).last_hidden_state.numpy()
    assert np.abs(expected).max() > 0.1
    assert_near(ours(batch), expected)


@pytest.mark.parametrize("kind", KIN)
def test_berts_kin_give_their_vectors_of_padded_texts(kind):
    model, ours = kin(kind)
    padding = {"xlm-roberta": 3, "roberta": 1, "camembert": 1, "mpnet": 1}
    padding |= {"roberta-prelayernorm": 1, "data2vec-text": 1}
    padding = padding.get(kind, 0)
    batch, mask = np.stack([IDS[:14], IDS[10:24]]), np.ones((2, 14), int)
    mask[1, 6:], batch[1, 6:] = 0, padding
    with torch.no_grad():
        expected = model(
            torch.tensor(batch), attention_mask=torch.tensor(mask), **EVERYTHING
        )
    result = ours(
        batch, lengths=[14, 6], return_weights=True, return_hidden_states=True
    )
    assert_outputs_agree(result, expected, [14, 6])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_weights_of_both_attentions_are_those_of_their_translators(activation):
    config = transformers.BartConfig(
        vocab_size=30,
        d_model=12,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=20,
        decoder_ffn_dim=20,
        activation_function=activation,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    layers = randomized(transformers.BartModel(config).double()).decoder.layers
    rng = np.random.default_rng(0)
    stack = blocks.Decoder(2, 12, 3, 20, activation=activation, dtype=np.float64)
    for ours, layer in zip(stack.layers, layers, strict=True):
        fill(ours, layer)
    x, context = rng.standard_normal((2, 5, 12)), rng.standard_normal((2, 7, 12))
    result = stack(x, context, return_weights=True, return_hidden_states=True)
    states, hidden = torch.tensor(x), np.where(np.tri(5, dtype=bool), 0, -np.inf)
    mask = torch.tensor(np.broadcast_to(hidden, (2, 1, 5, 5)).copy())
    for i, layer in enumerate(layers):
        kept = {}
        for name in ("self_attn", "encoder_attn"):
            getattr(layer, name).register_forward_hook(
                lambda _, __, result, name=name, kept=kept: kept.update({name: result})
            )
        with torch.no_grad():
            states = layer(
                states,
                attention_mask=mask,
                encoder_hidden_states=torch.tensor(context),
                output_attentions=True,
            )
        states = states[0] if isinstance(states, tuple) else states
        for ours, name in (
            (result.weights, "self_attn"),
            (result.cross_weights, "encoder_attn"),
        ):
            np.testing.assert_allclose(ours[i], kept[name][1].numpy(), atol=1e-9)
        np.testing.assert_allclose(result.hidden_states[i + 1], states, atol=1e-9)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 5, "vdim": 4}, {"vdim": 4}])
def test_torch_takes_keys_and_values_from_two_arrays(sizes):
    layer = randomized(torch.nn.MultiheadAttention(12, 3, **sizes, batch_first=True))
    key_dim, value_dim = sizes.get("kdim", 12), sizes.get("vdim", 12)
    ours = MultiHeadAttention(
        12, 3, context_dim=key_dim, value_dim=value_dim, dtype=np.float64
    )
    checkpoints.load(ours, arrays(layer.double()), "torch_attention")
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((2, 5, 12))]
    given += [rng.standard_normal((2, 7, size)) for size in (key_dim, value_dim)]
    with torch.no_grad():
        output, weights = layer(*map(torch.tensor, given), average_attn_weights=False)
    result = ours(*given, return_weights=True)
    np.testing.assert_allclose(result[0], output.numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(result[1], weights.numpy(), rtol=1e-10, atol=1e-12)


def fill(ours, layer):
    """Copy the parameters of their decoder's layer into one of ours."""
    for own, name in (
        ("self_attention", "self_attn"),
        ("cross_attention", "encoder_attn"),
    ):
        attention, their = getattr(ours, own), getattr(layer, name)
        for letter, part in zip(
            "qkvo", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True
        ):
            getattr(attention, f"W_{letter}")[...] = (
                getattr(their, part).weight.detach().T
            )
            getattr(attention, f"b_{letter}")[...] = getattr(their, part).bias.detach()
    for i in "12":
        part = getattr(layer, f"fc{i}")
        getattr(ours.feed_forward, f"W_{i}")[...] = part.weight.detach().T
        getattr(ours.feed_forward, f"b_{i}")[...] = part.bias.detach()
    for own, name in (
        (ours.norm_1, "self_attn_layer_norm"),
        (ours.norm_2, "encoder_attn_layer_norm"),
        (ours.norm_3, "final_layer_norm"),
    ):
        own.weight[...] = getattr(layer, name).weight.detach()
        own.bias[...] = getattr(layer, name).bias.detach()


@pytest.mark.parametrize(("kind", "changes"), BOTH_WAYS)
def test_models_that_see_both_ways_give_their_scores(kind, changes):
    config = {**families.DECODERS[kind], **changes}
    model = theirs(config)
    with torch.no_grad():
        expected = model(torch.tensor(IDS[None])).logits[0].numpy()
    ours = decoder(config, model)
    assert_near(ours.logits(ours(IDS)), expected)


@pytest.mark.parametrize(("kind", "changes"), DECODERS)
@pytest.mark.parametrize("n_first", [4, 14])
def test_decoders_give_their_scores_with_caches(kind, changes, n_first):
    config = {**families.DECODERS[kind], **changes}
    model = theirs(config)
    ours, n_most = decoder(config, model), 16 if kind == "gpt2" else 20
    caches, past = ours.decoder.new_caches(1, n_most), None
    chunks = [IDS[:n_first], *(IDS[i : i + 1] for i in range(n_first, n_most))]
    for chunk in chunks:
        with torch.no_grad():
            output = model(
                torch.tensor(chunk[None]), past_key_values=past, use_cache=True
            )
        past = output.past_key_values
        actual = ours.logits(ours(chunk, caches=caches))
        assert_near(actual, output.logits[0].numpy())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [case for case in DECODERS if "rope_scaling" in case[1] or case[0] == "phi3"],
)
def test_decoders_continue_as_theirs(kind, changes):
    config = {**families.DECODERS[kind], **changes}
    if kind != "phi3" and "longrope" in str(changes):
        pytest.skip("only their Phi-3 computes the keys anew, as generate does here")
    model = theirs(config)
    ours = decoder(config, model)
    with torch.no_grad():
        expected = model.generate(
            torch.tensor(IDS[None, :4]),
            max_new_tokens=14,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    new = ours.generate(IDS[:4], 14)
    np.testing.assert_array_equal(new, expected[0, 4:].numpy())


@pytest.mark.parametrize(
    ("kind", "changes"), [case for case in DECODERS if "layer_types" not in case[1]]
)
def test_folders_that_they_write_are_read(tmp_path, kind, changes):
    pytest.importorskip("safetensors")
    config = {**families.DECODERS[kind], **changes}
    model = theirs(config)
    model.save_pretrained(tmp_path)
    read = CausalDecoder.from_pretrained(tmp_path, dtype="auto")
    expected = decoder(config, model)
    assert read.token_embedding.dtype == np.float64
    assert_same_bits(read(IDS[:12]), expected(IDS[:12]))


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu", "relu2", "tanh", "silu"])
@pytest.mark.parametrize("n_labels", [1, 2, 5])
def test_bert_pools_and_classifies_as_theirs(tmp_path, activation, n_labels):
    config = {**families.BERT, "hidden_act": activation, "num_labels": n_labels}
    made = transformers.BertConfig(**config)
    model = randomized(transformers.BertForSequenceClassification(made).double())
    ours = BertEncoder.from_config(config, classifier=True, dtype=np.float64)
    checkpoints.load(ours, arrays(model), "bert")
    batch = np.stack([IDS[:9], IDS[9:18]])
    mask, types = np.ones((2, 9), int), np.zeros((2, 9), int)
    mask[1, 6:], types[:, 4:] = 0, 1
    given = {"attention_mask": mask, "token_type_ids": types}
    given = {name: torch.tensor(value) for name, value in given.items()}
    with torch.no_grad():
        scores = model(torch.tensor(batch), **given).logits.numpy()
        pooled = model.bert(torch.tensor(batch), **given).pooler_output.numpy()
    states = ours(batch, lengths=[9, 6], token_types=types)
    np.testing.assert_allclose(ours.pool(states), pooled, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.classify(states), scores, rtol=1e-9, atol=1e-9)
    pytest.importorskip("safetensors")
    model.save_pretrained(tmp_path)
    read = BertEncoder.from_pretrained(tmp_path, classifier=True, dtype="auto")
    again = read(batch, lengths=[9, 6], token_types=types)
    assert_same_bits(read.classify(again), ours.classify(states))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in families.CLASSED),
        ("modernbert", {"classifier_pooling": "mean", "classifier_bias": True}),
        ("modernbert", {"classifier_activation": "relu", "norm_bias": True}),
        ("eurobert", {"classifier_pooling": "bos"}),
        ("eurobert", {"classifier_pooling": "mean"}),
    ],
)
def test_texts_are_classified_as_theirs(tmp_path, kind, changes):
    pytest.importorskip("safetensors")
    config = {"pad_token_id": 0, **families.ENCODERS[kind], **changes}
    made = transformers.AutoConfig.for_model(**config, num_labels=3)
    made._attn_implementation = "eager"
    torch.manual_seed(0)
    theirs = transformers.AutoModelForSequenceClassification.from_config(made)
    theirs = randomized(theirs.double())
    theirs.save_pretrained(tmp_path)
    ours = BertEncoder.from_pretrained(tmp_path, classifier=True, dtype="auto")
    ids = IDS[np.newaxis, :14]
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    scores = ours.classify(ours(ids))
    assert np.abs(scores).max() > 0.1
    # Angles are float32 there, and DeBERTa's norms and scales.
    if kind in (*families.GATED, *families.DISENTANGLED, "esm"):
        assert_near(scores, expected)
    else:
        np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)


# The decoders of which they have classifiers.
CLASSIFYING = [
    *("gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2"),
    *("gemma3_text", "smollm3", "phi", "gpt_neox", "exaone4", "mixtral"),
    *("qwen2_moe", "qwen3_moe"),
]


@pytest.mark.quick
@pytest.mark.parametrize("kind", CLASSIFYING)
def test_decoders_classify_texts_as_theirs(tmp_path, kind):
    pytest.importorskip("safetensors")
    config = {**families.DECODERS[kind], "num_labels": 3}
    model = theirs(config, "SequenceClassification")
    model.save_pretrained(tmp_path / "a")
    read = {"classifier": True, "dtype": np.float64}
    ours = CausalDecoder.from_pretrained(tmp_path / "a", **read)
    ids, lengths = np.maximum(IDS[:24], 1).reshape(2, 12), [12, 9]  # 0 is padding

    def scored(model):
        texts = [torch.tensor(ids[i : i + 1, :n]) for i, n in enumerate(lengths)]
        with torch.no_grad():
            return np.concatenate([model(text).logits.numpy() for text in texts])

    expected = scored(model)
    scores = ours.classify(ours(ids, lengths=lengths), lengths=lengths)
    assert np.abs(expected).max() > 0.1
    assert_near(scores, expected)
    assert_same_bits(ours.classify(ours(ids[1, :9])), scores[1])
    assert ours.num_labels == 3
    assert ours.tied is None
    ours.save_pretrained(tmp_path / "b")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "b", **how(config)
    )
    owner = json.loads((tmp_path / "b" / "config.json").read_text())["architectures"]
    assert [type(again).__name__] == owner
    np.testing.assert_allclose(scored(again.eval()), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in families.CLASSED),
        ("bert", {"hidden_act": "relu"}),
        ("distilbert", {"activation": "relu"}),
        ("modernbert", {"classifier_activation": "relu", "classifier_bias": True}),
        ("modernbert", {"decoder_bias": False, "norm_bias": True}),
        ("eurobert", {"tie_word_embeddings": True}),
        ("eurobert", {"mlp_bias": True}),
    ],
)
@pytest.mark.parametrize("task", ["TokenClassification", "MaskedLM"])
def test_tokens_are_scored_as_theirs(tmp_path, kind, changes, task):
    pytest.importorskip("safetensors")
    config = {"pad_token_id": 0, **families.ENCODERS[kind], **changes}
    made = transformers.AutoConfig.for_model(**config, num_labels=3)
    made._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{task}").from_config(made)
    model = randomized(model.double())
    model.save_pretrained(tmp_path / "a")
    option = {"MaskedLM": "masked_words"}.get(task, "token_classifier")
    ours = BertEncoder.from_pretrained(tmp_path / "a", dtype="auto", **{option: True})
    ids = IDS[np.newaxis, :14]
    with torch.no_grad():
        expected = model(torch.tensor(ids)).logits.numpy()
    scored = ours.logits if task == "MaskedLM" else ours.classify_tokens
    assert np.abs(expected).max() > 0.1
    assert_near(scored(ours(ids)), expected)
    ours.save_pretrained(tmp_path / "b")
    owner = json.loads((tmp_path / "b" / "config.json").read_text())["architectures"]
    again = getattr(transformers, owner[0]).from_pretrained(
        tmp_path / "b", attn_implementation="eager"
    )
    # DeBERTa's own norms round to float32.
    near = 2e-6 if kind == "deberta" else 1e-12
    with torch.no_grad():
        np.testing.assert_allclose(
            again.eval()(torch.tensor(ids)).logits.numpy(), expected, atol=near
        )


TASKS = ["MaskedLM", "TokenClassification", "QuestionAnswering", "MultipleChoice"]
OPTIONS = {
    "MaskedLM": "masked_words",
    "TokenClassification": "token_classifier",
    "SequenceClassification": "classifier",
}
HEADS = {
    "modernbert": [*TASKS, "SequenceClassification"],
    "eurobert": ["MaskedLM", "TokenClassification", "SequenceClassification"],
    "nomic_bert": ["MaskedLM", "TokenClassification", "SequenceClassification"],
    "gte": ["MaskedLM", "TokenClassification", "SequenceClassification"],
    "jina_embeddings_v3": [*TASKS[:3], "SequenceClassification"],
    **{kind: [*TASKS, "SequenceClassification"] for kind in KIN},
    "deberta-v2": [*TASKS, "SequenceClassification"],
    "bert": [*TASKS, "PreTraining", "NextSentencePrediction"],
    "gpt2": ["SequenceClassification", "TokenClassification", "QuestionAnswering"],
    "llama": ["SequenceClassification", "TokenClassification"],
    "gemma3_text": ["SequenceClassification"],
}
CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
CLASSES |= {"camembert": "Camembert", "data2vec-text": "Data2VecText"}
CLASSES |= {"roberta-prelayernorm": "RobertaPreLayerNorm"}
CLASSES |= {"distilbert": "DistilBert", "mpnet": "MPNet", "gpt2": "GPT2"}
CLASSES |= {"electra": "Electra", "albert": "Albert", "modernbert": "ModernBert"}
CLASSES |= {"xlm-roberta-xl": "XLMRobertaXL"}
CLASSES |= {"eurobert": "EuroBert", "jina_embeddings_v3": "JinaEmbeddingsV3"}
CLASSES |= {"nomic_bert": "NomicBert", "gte": "Gte", "deberta-v2": "DebertaV2"}
CLASSES |= {"llama": "Llama", "gemma3_text": "Gemma3Text"}


@pytest.mark.parametrize(
    ("kind", "task"), [(kind, task) for kind, tasks in HEADS.items() for task in tasks]
)
def test_their_heads_that_are_not_here_are_refused_by_name(tmp_path, kind, task):
    pytest.importorskip("safetensors")
    owner = getattr(transformers, f"{CLASSES[kind]}For{task}")
    config = {**families.ENCODERS, **families.DECODERS}[kind]
    made = transformers.AutoConfig.for_model(**{**config, "pad_token_id": 1})
    model = randomized(owner(made))
    model.save_pretrained(tmp_path)
    base = transformers.AutoModel.from_pretrained(tmp_path).eval()
    ours = BertEncoder if kind in families.ENCODERS else CausalDecoder
    options = {} if kind in families.ENCODERS else {"logits": False}
    missing = "which is not here"
    if task in OPTIONS and (kind in families.ENCODERS or task.startswith("Seq")):
        missing = f"which the model is without unless {OPTIONS[task]}=True"
    text = rf"expected no head of {owner.__name__}, {missing}, got .*ignore_he"
    with pytest.raises(ValueError, match=text):
        ours.from_pretrained(tmp_path, **options)
    read = ours.from_pretrained(tmp_path, **options, ignore_head=True)
    with torch.no_grad():
        expected = base(torch.tensor(IDS[np.newaxis, :12])).last_hidden_state[0]
    np.testing.assert_allclose(read(IDS[:12]), expected.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_texts_end_where_theirs_do(tmp_path, kind):
    pytest.importorskip("safetensors")
    model = theirs(families.DECODERS[kind])
    model.save_pretrained(tmp_path)
    free = CausalDecoder.from_pretrained(tmp_path, dtype="auto").generate(IDS[:4], 12)
    last = next(i for i in range(2, 12) if free[i] not in free[:i])
    end, other = int(free[last]), int(free[0])
    config = json.loads((tmp_path / "config.json").read_text())
    for eos, generation in (
        (end, None),
        ([end, 29], None),
        (other, {"eos_token_id": end}),
        (other, {"eos_token_id": [29, end]}),
        (end, {}),
        (end, {"eos_token_id": None}),
    ):
        text = json.dumps({**config, "eos_token_id": eos})
        (tmp_path / "config.json").write_text(text)
        path = tmp_path / "generation_config.json"
        path.unlink(missing_ok=True)
        if generation is not None:
            path.write_text(json.dumps({"do_sample": False, **generation}))
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).double()
        ids = torch.tensor(IDS[np.newaxis, :4])
        mask = torch.ones_like(ids)
        expected = again.generate(
            ids, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0
        )[0, 4:].tolist()
        ours = CausalDecoder.from_pretrained(tmp_path, dtype=np.float64)
        assert [int(token) for token in ours.stream(IDS[:4], 12)] == expected
        assert len(expected) == (
            12 if generation in ({}, {"eos_token_id": None}) else last + 1
        )
