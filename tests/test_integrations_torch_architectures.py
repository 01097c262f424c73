"""Transformers' architectures in accelerate(): what they compute, train and write."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from support.torch_tools import one_thread  # noqa: E402, F401

from attnpy.integrations.torch import accelerate  # noqa: E402

SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 96}
TEXT = SIZES | {"vocab_size": 101}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 12, "pad_token_id": 0}
PICTURE = SIZES | {"image_size": 24, "patch_size": 8}
FEW = {"vocab_size": 101, "hidden_size": 48, "num_attention_heads": 4}
TWO_SIDES = {"d_model": 48, "vocab_size": 101, "max_position_embeddings": 64}
TWO_SIDES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TWO_SIDES |= {"decoder_start_token_id": 1}
for _side in ("encoder", "decoder"):
    TWO_SIDES |= {f"{_side}_layers": 2, f"{_side}_attention_heads": 4}
    TWO_SIDES |= {f"{_side}_ffn_dim": 96}
OPT = FEW | {"num_hidden_layers": 2, "word_embed_proj_dim": 48, "ffn_dim": 96}
T5 = {"vocab_size": 101, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2}
T5 |= {"num_heads": 4, "decoder_start_token_id": 0}
SWIN = {"image_size": 32, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4]}
SWIN |= {"window_size": 4, "patch_size": 4}
SOUND = TEXT | {"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2]}
SOUND |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16}

ARCHITECTURES = {
    "Bert": ("ForMaskedLM", TEXT),
    "Roberta": ("ForMaskedLM", TEXT),
    "ModernBert": ("ForMaskedLM", TEXT | {"pad_token_id": 0}),
    "DistilBert": ("ForMaskedLM", {"vocab_size": 101, "dim": 48, "n_layers": 2,
                                   "n_heads": 4, "hidden_dim": 96}),
    "Electra": ("ForMaskedLM", TEXT | {"embedding_size": 48}),
    "Albert": ("ForMaskedLM", TEXT | {"embedding_size": 24}),
    "DebertaV2": ("ForMaskedLM", TEXT),
    "MPNet": ("ForMaskedLM", TEXT),
    "GPT2": ("LMHeadModel", {"vocab_size": 101, "n_embd": 48, "n_layer": 2,
                             "n_head": 4}),
    "Llama": ("ForCausalLM", GROUPED),
    "Qwen2": ("ForCausalLM", GROUPED),
    "Qwen3": ("ForCausalLM", GROUPED),
    "Mistral": ("ForCausalLM", GROUPED),
    "Gemma": ("ForCausalLM", GROUPED),
    "Gemma2": ("ForCausalLM", GROUPED),
    "Phi": ("ForCausalLM", TEXT),
    "Phi3": ("ForCausalLM", TEXT | {"pad_token_id": 0}),
    "GPTNeoX": ("ForCausalLM", TEXT),
    "OPT": ("ForCausalLM", OPT),
    "Bloom": ("ForCausalLM", FEW | {"n_layer": 2}),
    "Falcon": ("ForCausalLM", FEW | {"num_hidden_layers": 2}),
    "Mixtral": ("ForCausalLM", GROUPED | {"num_local_experts": 4}),
    "Mamba": ("ForCausalLM", {"vocab_size": 101, "hidden_size": 48,
                              "num_hidden_layers": 2, "state_size": 8}),
    "T5": ("ForConditionalGeneration", T5),
    "Bart": ("ForConditionalGeneration", TWO_SIDES),
    "ViT": ("ForImageClassification", PICTURE),
    "Dinov2": ("ForImageClassification", PICTURE),
    "Swin": ("ForImageClassification", SWIN),
    "ConvNext": ("ForImageClassification",
                 {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2,
                  "image_size": 32}),
    "Wav2Vec2": ("ForCTC", SOUND | {"num_conv_pos_embedding_groups": 4}),
}  # fmt: skip


def build(name):
    """Return a model with random weights, and inputs for it."""
    torch.manual_seed(0)
    kind, options = ARCHITECTURES[name]
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, name + kind)(config).eval()
    if kind == "ForImageClassification":
        size = config.image_size
        return model, {"pixel_values": torch.randn(2, 3, size, size)}
    if kind == "ForCTC":
        return model, {"input_values": torch.randn(2, 400)}
    ids, mask = torch.randint(3, 101, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[1, 6:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if kind == "ForConditionalGeneration":
        given["labels"] = ids[:, :5].clone()
    return model, given


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.quick] if name == "Bert" else [])
        for name in ARCHITECTURES
    ],
)
def test_an_architecture_computes_trains_and_writes_as_without(name):
    model, given = build(name)

    def step():
        model.zero_grad()
        scores = model(**given).logits
        scores.float().square().mean().backward()
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        return [scores.detach(), *(one.clone() for one in grads)]

    expected = step()
    with accelerate(report=True) as report:
        found = step()
    assert sum(report.computed.get(one, 0) for one in ("mm", "addmm", "bmm")) > 4
    for one, other in zip(found, expected, strict=True):
        size = float(other.abs().max()) + 1e-6
        torch.testing.assert_close(one, other, atol=1e-3 * size, rtol=1e-3)
    if "input_ids" in given and model.can_generate():
        given = {n: given[n][:1, :6] for n in ("input_ids", "attention_mask")}
        options = {"max_new_tokens": 5, "min_new_tokens": 5, "pad_token_id": 0}
        written = model.generate(**given, **options, do_sample=False)
        with accelerate():
            found = model.generate(**given, **options, do_sample=False)
        assert torch.equal(found, written)
