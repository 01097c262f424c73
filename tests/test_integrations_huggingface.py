"""attnpy in the models of Hugging Face Transformers, against their eager attention.

On random weights, so large that attention matters.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from attnpy.integrations import huggingface  # noqa: E402
from attnpy.random import dropout_mask  # noqa: E402

NAME = huggingface.register()
PAGE = Path(__file__).parents[1] / "docs" / "integrations" / "huggingface.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)

TEXT = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
IMAGES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "first_k_dense_replace": 2,
}
BOTH_STACKS = {
    "vocab_size": 40,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}
T5 |= {"num_heads": 4, "decoder_start_token_id": 0, "is_encoder_decoder": True}
ENCODERS = {
    "bert": TEXT,
    "roberta": TEXT,
    "distilbert": {"vocab_size": 40, "dim": 32, "n_layers": 2, "n_heads": 4}
    | {"hidden_dim": 48, "max_position_embeddings": 64},
    "modernbert": {**TEXT, "local_attention": 6, "global_attn_every_n_layers": 2}
    | {"cls_token_id": 1, "sep_token_id": 2},
    "splinter": TEXT,  # its layers do not say that they are not causal
}
CHUNKS = {"layer_types": ["chunked_attention", "full_attention"]}
SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"]}
WINDOW = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2}
WINDOW |= {"swa_head_dim": 8, "sliding_window_size": 4, "d_rel": 4, "rel_extent": 16}
DECODERS = {
    "gpt2": {**TEXT, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": TEXT,
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 4},
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "gemma2": {**GROUPED, **LAYERS, "query_pre_attn_scalar": 8}
    | {"attn_logit_softcapping": 2.0},
    "gemma3_text": {**GROUPED, **LAYERS, "query_pre_attn_scalar": 8},
    "gpt_oss": {**GROUPED, **LAYERS, **EXPERTS},
    "phi3": {**GROUPED, "sliding_window": 4},
    "deepseek_v3": {**TEXT, **LATENT},  # values of another size than keys
    "deepseek_v32": {**TEXT, **LATENT, "index_topk": 3}  # keys chosen for each query
    | {"index_n_heads": 2, "index_head_dim": 8},
    "llama4_text": {**GROUPED, **EXPERTS, **CHUNKS, "attention_chunk_size": 4}
    | {"intermediate_size_mlp": 48},
    "inkling2_text": {**GROUPED, **WINDOW, "moe_intermediate_size": 24}
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "unpadded_vocab_size": 40},
}
# What is chosen in them depends on padding, too.
CHOOSING = {
    "minimax_m3_vl_text": {**GROUPED, **EXPERTS, **SPARSE, "rotary_dim": 4}
    | {"index_n_heads": 2, "index_head_dim": 8, "index_block_size": 3}
    | {"index_topk_blocks": 2, "index_local_blocks": 1}
    | {"dense_intermediate_size": 48, "shared_intermediate_size": 48}
}
VISION = {"vit": IMAGES, "siglip_vision_model": IMAGES}
PAIRS = {
    "bart": BOTH_STACKS,
    "t5": {**T5, "num_decoder_layers": 2, "pad_token_id": 0, "eos_token_id": 1},
    "whisper": {**BOTH_STACKS, "num_mel_bins": 8, "max_source_positions": 16}
    | {"max_target_positions": 64, "suppress_tokens": None}
    | {"begin_suppress_tokens": None},
}
CLIP = {
    "text_config": {**TEXT, "eos_token_id": 2},
    "vision_config": IMAGES,
    "projection_dim": 16,
}
KINDS = {**ENCODERS, **DECODERS, **CHOOSING, **VISION, **PAIRS, "clip": CLIP}
PADDED = [*ENCODERS, *DECODERS, "bart", "t5"]


def made(kind, dtype=torch.float32, name=NAME, **changes):
    """A model of random weights."""
    config = transformers.CONFIG_MAPPING[kind](**{**KINDS[kind], **changes})
    factory = transformers.AutoModel
    if kind in DECODERS or kind in CHOOSING:
        factory = transformers.AutoModelForCausalLM
    if kind in PAIRS:
        factory = transformers.AutoModelForSeq2SeqLM
    if kind == "whisper":
        factory = transformers.AutoModelForSpeechSeq2Seq
    torch.manual_seed(0)
    model = factory.from_config(config, attn_implementation=name)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
        else:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def given(kind, padding=None, n_tokens=11):
    """A model's inputs: a batch of 2, of which the second one is padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 40, (2, n_tokens), generator=generator)
    pixels = torch.randn((2, 3, 16, 16), generator=generator)
    if kind in VISION:
        return {"pixel_values": pixels}
    if kind == "clip":
        return {"input_ids": ids, "pixel_values": pixels}
    if kind == "whisper":
        sound = torch.randn((2, 8, 32), generator=generator)
        return {"input_features": sound, "decoder_input_ids": ids}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if padding is not None:
        hidden = slice(0, 4) if padding == "left" else slice(-4, None)
        inputs["attention_mask"][1, hidden] = 0
    if kind in PAIRS:
        inputs["decoder_input_ids"] = ids[:, :6]
    return inputs


def results(kind, output, inputs):
    """What a model returns, as one array, without the places of padding."""
    if kind == "clip":
        return output.logits_per_image
    states = output.logits if "logits" in output else output.last_hidden_state
    if kind in PADDED and kind not in PAIRS:
        return states[inputs["attention_mask"].bool()]
    return states


def both(kind, model, inputs, **options):
    """The outputs with attnpy's attention, then with theirs."""
    outputs = []
    for name in (NAME, "eager"):
        model.set_attn_implementation(name)
        outputs.append(model(**inputs, **options))
    return outputs


def assert_near(actual, expected, tolerance=2e-5):
    scale = expected.abs().max().item()
    assert scale > 0.01
    difference = (actual - expected).abs().max().item()
    assert difference <= tolerance * scale


@pytest.fixture
def calls():
    """The calls of the attention function, which are made."""
    recorded = []

    def attend(module, query, key, value, attention_mask, **options):
        recorded.append({"attention_mask": attention_mask, **options})
        return huggingface.attention_forward(
            module, query, key, value, attention_mask, **options
        )

    interface = transformers.AttentionInterface
    interface.register(NAME, attend)
    yield recorded
    interface.register(NAME, huggingface.attention_forward)


# ---- Whole models --------------------------------------------------------------------

# Inkling 2 attends to its residuals, too, since Transformers 5.24.
HAS_RESIDUALS = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
# Attention calls of a model, where they are not 2.
N_CALLS = {"clip": 4, "bart": 6, "t5": 6, "whisper": 6}
N_CALLS |= {"inkling2_text": 6} if HAS_RESIDUALS else {}

CASES = [(kind, None) for kind in KINDS]
CASES += [(kind, padding) for kind in PADDED for padding in ("left", "right")]


@pytest.mark.quick(padding=(None,))
@pytest.mark.parametrize(("kind", "padding"), CASES)
def test_models_give_what_they_give_with_eager_attention(kind, padding, calls):
    model, inputs = made(kind), given(kind, padding)
    with torch.no_grad():
        ours, theirs = both(kind, model, inputs)
    assert len(calls) == N_CALLS.get(kind, 2)
    assert_near(results(kind, ours, inputs), results(kind, theirs, inputs))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "attention_mask") for kind in PADDED),
        ("gemma2", "softcap"),
        ("gpt_oss", "s_aux"),
        ("t5", "position_bias"),
        ("deepseek_v32", "indices"),
        ("minimax_m3_vl_text", "block_indices"),
        ("inkling2_text", "sinks"),
        *((kind, "scaling") for kind in ("t5", "gemma2", "gpt2")),
    ],
)
def test_whatever_layers_hand_on_matters(kind, name):
    """What the test above compares is far off without it."""
    model, inputs, came = made(kind), given(kind, "right"), []

    def without(module, query, key, value, attention_mask, **options):
        options |= {"attention_mask": attention_mask}
        if name in options:  # some layers attend more than once, with other options
            came.append(options[name] is not None)
            options[name] = None if name != "scaling" else 0.7 * options[name]
        return huggingface.attention_forward(module, query, key, value, **options)

    interface = transformers.AttentionInterface
    with torch.no_grad():
        expected = results(kind, model(**inputs), inputs)
        interface.register(NAME, without)
        try:
            changed = results(kind, model(**inputs), inputs)
        finally:
            interface.register(NAME, huggingface.attention_forward)
    difference = (changed - expected).abs().max() / expected.abs().max()
    assert any(came)
    assert difference > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["bert", "llama", "gemma2", "gpt_oss", "t5", "vit"])
def test_16_bits_are_as_near_to_float32_as_theirs(kind, dtype):
    model, inputs = made(kind, dtype), given(kind, "right")
    short = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    with torch.no_grad():
        ours, theirs = (
            results(kind, output, inputs).float() for output in both(kind, model, short)
        )
        longer = {n: v.float() if n == "pixel_values" else v for n, v in short.items()}
        expected = results(kind, model.float()(**longer), inputs)
    scale = expected.abs().max()
    error, their_error = ((x - expected).abs().mean() / scale for x in (ours, theirs))
    assert 0 < error <= 1.5 * their_error


@pytest.mark.parametrize("kind", ["bert", "gpt2", "gpt_oss", "bart", "t5"])
def test_output_attentions_returns_the_weights(kind):
    """GPT-2 does not tell its layers."""
    model, inputs = made(kind), given(kind, "right")
    with torch.no_grad():
        ours, theirs = both(kind, model, inputs, output_attentions=True)
    names = [name for name in theirs if "attentions" in name and theirs[name]]
    assert len(names) == (3 if kind in PAIRS else 1)
    for name in names:
        assert len(theirs[name]) == 2
        for weights, expected in zip(ours[name], theirs[name], strict=True):
            assert weights.shape == expected.shape
            assert_near(weights, expected)
    assert "attentions" not in model(**inputs)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("kind", ["bert", "llama", "gemma2", "gpt_oss", "t5"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_all_parameters_are_theirs(kind, checkpointing):
    model, inputs = made(kind), given(kind, "right")
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    for module in model.modules():  # that of the configurations is for other tests
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    gradients = []
    for name in (NAME, "eager"):
        model.set_attn_implementation(name)
        model.zero_grad()
        output = model(**inputs, use_cache=False) if kind != "bert" else model(**inputs)
        results(kind, output, inputs).square().mean().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    compared = 0
    for name, expected in gradients[1].items():
        ours = gradients[0][name]
        if expected is None:
            assert ours is None
        elif expected.abs().max() > 1e-5:
            assert_near(1000 * ours, 1000 * expected, 2e-4)
            compared += 1
    assert compared > 10


# ---- Generation ----------------------------------------------------------------------

STATIC = [kind for kind in DECODERS if kind != "deepseek_v32"]
GENERATING = [(kind, None) for kind in (*DECODERS, *PAIRS)]
GENERATING += [(kind, "static") for kind in STATIC]


@pytest.mark.parametrize(("kind", "cache"), GENERATING)
def test_greedy_generation_is_theirs(kind, cache):
    model, inputs = made(kind), given(kind, "left")
    inputs.pop("decoder_input_ids", None)
    generated = []
    for name in (NAME, "eager"):
        model.set_attn_implementation(name)
        generated.append(
            model.generate(
                **inputs,
                max_new_tokens=8,
                do_sample=False,
                cache_implementation=cache,
                output_logits=True,
                return_dict_in_generate=True,
                disable_compile=True,
            )
        )
    ours, theirs = generated
    assert torch.equal(ours.sequences, theirs.sequences)
    assert len(ours.logits) >= 7
    assert_near(torch.stack(ours.logits), torch.stack(theirs.logits), 5e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("padding", [None, "left"])
def test_calls_go_on_with_a_cache(kind, padding):
    model, inputs = made(kind), given(kind, padding, 14)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    outputs = []
    for name in (NAME, "eager"):
        model.set_attn_implementation(name)
        past, parts = None, []
        for start, stop in ((0, 6), (6, 10), (10, 11), (11, 14)):
            with torch.no_grad():
                output = model(
                    ids[:, start:stop],
                    attention_mask=mask[:, :stop] if padding else None,
                    past_key_values=past,
                    use_cache=True,
                )
            past = output.past_key_values
            parts.append(output.logits)
        outputs.append(torch.cat(parts, 1)[mask.bool()])
    assert_near(*outputs)


def test_sequences_end_to_end_do_not_see_each_other():
    """Transformers finds them by their positions, or is told by cu_seq_lens."""
    model, ids = made("llama"), given("llama", None, 12)["input_ids"][:1]
    positions = torch.tensor([[*range(5), *range(7)]])
    starts = torch.tensor([0, 5, 12], dtype=torch.int32)
    told = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
    told |= {"max_length_q": 7, "max_length_k": 7}
    with torch.no_grad():
        parts = [model(part).logits for part in (ids[:, :5], ids[:, 5:])]
        expected = torch.cat(parts, 1)
        for options in ({"use_cache": False}, told):
            output = model(ids, position_ids=positions, **options)
            assert_near(output.logits, expected)
        assert model(ids, position_ids=positions).logits.sub(expected).abs().max() > 0.1


def test_models_can_be_compiled_whole():
    # Of a class that no other test has asked for its source.
    config = transformers.MBartConfig(**BOTH_STACKS)
    model = transformers.AutoModel.from_config(config, attn_implementation=NAME).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    inputs = given("bart", "left") | {"use_cache": False}
    with torch.no_grad():
        ours, expected = compiled(**inputs), model(**inputs)
    assert_near(ours.last_hidden_state, expected.last_hidden_state)


# ---- The function --------------------------------------------------------------------


class Layer(torch.nn.Module):
    """What a layer is to the attention function."""


def tensors(n_queries=5, n_keys=5, n_batches=2):
    generator = torch.Generator().manual_seed(2)
    shapes = ((4, n_queries, 8), (2, n_keys, 8), (2, n_keys, 6))
    return [torch.randn((n_batches, *s), generator=generator) for s in shapes]


def attended(*arrays, mask=None, **options):
    layer = options.pop("layer", None) or Layer().eval()
    return huggingface.attention_forward(layer, *arrays, mask, **options)


def by_formula(query, key, value, seen, *, sinks=None, bias=0.0, kept=1.0):
    """Output, (B, Lq, H, Dv), and weights; every query sees something."""
    key, value = (x.repeat_interleave(2, dim=1) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5 + bias
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]] * kept
    return (weights @ value).transpose(1, 2), weights


PLACES = torch.arange(5)
APART = PLACES[:, None] - PLACES
BLOCKS = torch.tensor([[0, -1], [0, 1], [1, -1], [1, 2], [2, 0]])
IN_BLOCKS = torch.tensor(
    [
        [1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
        [1, 1, 0, 0, 1],
    ]
).bool()
ALL = torch.ones(5, 5, dtype=torch.bool)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, ALL),
        ({"is_causal": False}, ALL),
        ({"is_causal": True}, APART >= 0),
        ({"is_causal": True, "sliding_window": 2}, (APART >= 0) & (APART < 2)),
        ({"sliding_window": 2}, APART.abs() < 2),
        ({"mask": APART >= 0}, APART >= 0),
        ({"mask": APART >= 0, "is_causal": False}, APART >= 0),
        ({"mask": torch.where(APART >= 0, 0.0, -1e38)}, APART >= 0),
        ({"indices": torch.tensor([[[0], [0], [2], [1], [4]]] * 2)}, None),
        (
            {"block_indices": BLOCKS.expand(2, 2, 5, 2), "is_causal": True},
            IN_BLOCKS & (APART >= 0) | torch.eye(5, dtype=torch.bool) & IN_BLOCKS,
        ),
    ],
)
def test_who_sees_whom(options, seen):
    arrays, layer = tensors(), Layer().eval()
    layer.indexer = Layer()
    layer.indexer.block_size = 2
    if seen is None:
        seen = torch.tensor([0, 0, 2, 1, 4])[:, None] == PLACES
    output, weights = attended(*arrays, layer=layer, output_attentions=True, **options)
    expected = by_formula(*arrays, seen)
    assert output.is_contiguous()
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(weights, expected[1])


def test_the_last_query_sees_the_last_key():
    arrays = tensors(2, 5)
    output, weights = attended(*arrays, is_causal=True)
    assert weights is None
    torch.testing.assert_close(output, by_formula(*arrays, (APART >= 0)[3:])[0])


@pytest.mark.parametrize("shape", [(4,), (2, 4, 5, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_sinks_of_heads_and_of_queries(shape, masked):
    arrays = [x.requires_grad_() for x in tensors()]
    sinks = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    sinks.requires_grad_()
    seen = APART >= 0 if masked else ALL
    name = "s_aux" if len(shape) == 1 else "sinks"
    results, gradients = [], []
    for output, weights in (
        attended(
            *arrays,
            mask=seen if masked else None,
            output_attentions=True,
            **{name: sinks},
        ),
        by_formula(
            *arrays, seen, sinks=sinks.reshape(-1, 4, 5 if len(shape) > 1 else 1, 1)
        ),
    ):
        loss = output.square().sum() + weights.square().sum()
        results.append((output, weights))
        gradients.append(torch.autograd.grad(loss, [*arrays, sinks]))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "mask", [None, APART >= 0, torch.where(APART >= 0, 0.0, -1e38)]
)
def test_a_position_bias_is_added_whatever_the_mask_is(mask):
    arrays = tensors()
    bias = torch.randn((1, 4, 5, 5), generator=torch.Generator().manual_seed(4))
    seen = ALL if mask is None else APART >= 0
    results = [
        attended(*arrays, mask=mask, position_bias=bias)[0],
        by_formula(*arrays, seen, bias=bias)[0],
    ]
    torch.testing.assert_close(*results)


def test_dropout_follows_the_generator_and_only_in_training():
    arrays, layer = tensors(), Layer()
    torch.manual_seed(5)
    output, weights = attended(
        *arrays, layer=layer, dropout=0.4, output_attentions=True
    )
    torch.manual_seed(5)
    seed = int(torch.randint(2**63 - 1, ()))
    kept = torch.from_numpy(dropout_mask((2, 4, 5, 5), 0.4, seed)) / 0.6
    assert 0 < kept.count_nonzero() < kept.numel()
    expected = by_formula(*arrays, ALL, kept=kept)
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(weights, expected[1])
    assert not torch.equal(attended(*arrays, layer=layer, dropout=0.4)[0], output)
    whole = attended(*arrays, layer=layer.eval(), dropout=0.4)[0]
    torch.testing.assert_close(whole, by_formula(*arrays, ALL)[0])


def test_a_batch_of_one_query_meets_many_keys():
    query, key, value = tensors()
    output, _ = attended(query[:1], key, value)
    torch.testing.assert_close(output, by_formula(query[:1], key, value, ALL)[0])


def test_padding_that_sees_nothing_is_0():
    arrays = tensors()
    output, _ = attended(*arrays, mask=torch.zeros(2, 1, 5, 5, dtype=torch.bool))
    assert not output.any()


def test_what_changes_nothing_is_left_alone():
    arrays = tensors()
    expected = attended(*arrays)[0]
    options = {"position_ids": PLACES[None], "use_cache": True, "unheard_of": None}
    assert torch.equal(attended(*arrays, **options, other=False)[0], expected)


STARTS = torch.tensor([0, 2, 5])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"head_mask": torch.ones(4)},
            TypeError,
            "^head_mask: expected a keyword that attnpy's attention knows, got one "
            "from Layer that it does not; attn_implementation='eager' may$",
        ),
        (
            {"mask": torch.ones(5, 5, dtype=torch.long)},
            TypeError,
            "^attention_mask: expected booleans, True where a query may attend, or "
            "numbers to add to the scores, got torch.int64$",
        ),
        (
            {"mask": [[True]]},
            TypeError,
            "^attention_mask: expected a tensor, got list$",
        ),
        (
            {"cu_seq_lens_q": STARTS},
            ValueError,
            "^cu_seq_lens_k: expected those of the queries, cu_seq_lens_q, got others$",
        ),
        (
            {"cu_seq_lens_q": STARTS, "cu_seq_lens_k": STARTS},
            ValueError,
            r"^cu_seq_lens_q: expected sequences end to end in a batch of 1, with the "
            r"last one's end at the length, got the end 5 for shape \(2, 4, 5, 8\)$",
        ),
        ({"mask": ALL[:, :3]}, ValueError, "^mask: expected"),
        ({"softcap": -1.0}, ValueError, "^softcap: expected"),
        (
            {"scaling": torch.ones(2)},
            TypeError,
            r"^scaling: expected a .*\(2,\)",
        ),
        ({"scaling": "a"}, TypeError, "^scaling: expected a number, got str$"),
        ({"softcap": torch.ones(2)}, TypeError, r"^softcap: expected a .*\(2,\)"),
        ({"s_aux": torch.ones(3)}, ValueError, r"^s_aux: expected .*\(3,\)"),
        ({"layer": len}, TypeError, "^module: expected a torch.nn.Module, got builtin"),
        (
            {"dropout": "a"},
            TypeError,
            "^dropout: expected a number from 0 to 1, got 'a",
        ),
        ({"dropout": -0.5}, ValueError, "^dropout: expected a number from 0 to 1, got"),
        ({"is_causal": "yes"}, TypeError, "^is_causal: expected a bool, got str$"),
        ({"output_attentions": 1}, TypeError, "^output_attentions: expected a bool"),
        ({"sliding_window": "a"}, TypeError, "^sliding_window: expected an integer"),
        ({"sliding_window": 0}, ValueError, "^sliding_window: expected at least 1"),
        ({"sinks": 3.0}, TypeError, "^sinks: expected a torch.Tensor, got float$"),
        (
            {"sinks": torch.ones(4)},
            ValueError,
            r"^sinks: expected 4 axes, got .*\(4,\)",
        ),
        ({"indices": [1]}, TypeError, "^indices: expected a torch.Tensor, got list$"),
        ({"block_indices": STARTS}, ValueError, "^block_indices: expected 4 axes"),
    ],
)
def test_what_is_not_understood_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        attended(*tensors(), **options)


def test_queries_that_are_no_tensors_are_refused():
    query, *others = tensors()
    with pytest.raises(
        TypeError, match=r"^query: expected a torch.Tensor, got ndarray"
    ):
        attended(query.numpy(), *others)


def test_other_devices_and_ranks_are_refused():
    with FakeTensorMode():
        elsewhere = torch.empty(2, 4, 5, 8, device="cuda")
    with pytest.raises(ValueError, match="got one on device 'cuda:0', for which"):
        attended(elsewhere, elsewhere, elsewhere)
    flat = torch.ones(4, 5, 8)
    with pytest.raises(
        ValueError, match=r"^query: expected shape \(B, H, Lq, D\), got"
    ):
        attended(flat, flat, flat)


# ---- Registration --------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("name", ["sdpa", "my_flash", "eager", "a/b", "", None, 3])
def test_names_with_a_meaning_are_refused(name):
    with pytest.raises(ValueError, match=r"^name: expected letters, digits and"):
        huggingface.register(name)


def test_a_name_that_is_taken_is_refused():
    transformers.AttentionInterface.register("taken", lambda: None)
    try:
        with pytest.raises(ValueError, match=r"^name: expected one that is new"):
            huggingface.register("taken")
    finally:
        del transformers.AttentionInterface._global_mapping["taken"]


def test_registering_again_and_under_other_names():
    assert huggingface.register() == "attnpy"
    assert huggingface.register("quick") == "quick"
    inputs = given("bert")
    with torch.no_grad():
        ours, expected = (made("bert", name=n)(**inputs) for n in ("quick", NAME))
    assert torch.equal(ours.last_hidden_state, expected.last_hidden_state)


def test_models_with_attention_of_their_own_are_refused():
    config = transformers.MPNetConfig(**{**TEXT, "eos_token_id": 2})
    model = transformers.AutoModel.from_config(config, attn_implementation=NAME)
    inputs = given("bert", "right")
    message = (
        "^attn_implementation: expected 'eager' for models of MPNetConfig, which have "
        "their own attention whatever is chosen, got 'attnpy'$"
    )
    with pytest.raises(ValueError, match=message):
        model(**inputs)


def test_models_that_may_have_attention_of_their_own_get_its_masks():
    class Own(transformers.PreTrainedModel):
        config_class = type("OwnConfig", (transformers.PreTrainedConfig,), {})

    config = Own.config_class()
    options = {"batch_size": 2, "q_length": 3, "kv_length": 3, "config": config}
    mask = huggingface.attention_mask(**options, dtype=torch.float32)
    seen = huggingface.attention_mask(**options | {"config": made("llama").config})
    assert seen.dtype is torch.bool
    least = torch.finfo(torch.float32).min
    torch.testing.assert_close(mask, torch.where(seen, 0.0, least))


def test_without_the_libraries_the_error_says_what_to_install():
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "try:\n"
        "    import attnpy.integrations.huggingface\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert "expected PyTorch and Transformers 5.2 to be installed" in said
    assert "pip install torch 'transformers>=5.2'" in said


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_of_the_page_print_what_their_comments_say(code, capsys):
    exec(code, {})
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.M)
    assert promised
    assert capsys.readouterr().out.splitlines() == promised
