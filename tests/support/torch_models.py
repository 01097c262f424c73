"""Small models of Transformers with random weights, and inputs of several rows."""

import torch
import transformers

TEXT = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 4, "intermediate_size": 100}
DECODER = TEXT | {"num_key_value_heads": 2, "head_dim": 12, "pad_token_id": 0}


def _model(name, config, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{config}Config")(**options)
    return getattr(transformers, name)(config).eval()


def _whisper():
    sizes = {"d_model": 48, "vocab_size": 101, "num_mel_bins": 8}
    sizes |= {"max_source_positions": 20, "pad_token_id": 0, "bos_token_id": 1}
    sizes |= {"eos_token_id": 2, "decoder_start_token_id": 1}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 4}
        sizes |= {f"{side}_ffn_dim": 100}
    return _model("WhisperModel", "Whisper", **sizes)


def _clip():
    text = TEXT | {"projection_dim": 24, "eos_token_id": 2}
    vision = {name: size for name, size in TEXT.items() if name != "vocab_size"}
    vision |= {"image_size": 24, "patch_size": 8, "projection_dim": 24}
    return _model(
        "CLIPModel", "CLIP", text_config=text, vision_config=vision, projection_dim=24
    )


def _vit():
    sizes = {name: size for name, size in TEXT.items() if name != "vocab_size"}
    return _model("ViTModel", "ViT", image_size=24, patch_size=8, **sizes)


def _t5():
    sizes = {"d_model": 48, "d_kv": 12, "d_ff": 100, "num_layers": 2, "num_heads": 4}
    return _model("T5Model", "T5", vocab_size=101, **sizes, decoder_start_token_id=0)


MODELS = {
    "BERT": lambda: _model("BertModel", "Bert", **TEXT),
    "RoBERTa": lambda: _model("RobertaModel", "Roberta", **TEXT),
    "ModernBERT": lambda: _model(
        "ModernBertModel", "ModernBert", **TEXT, pad_token_id=0
    ),
    "GPT-2": lambda: _model(
        "GPT2LMHeadModel", "GPT2", vocab_size=101, n_embd=48, n_layer=2, n_head=4
    ),
    "Llama": lambda: _model("LlamaForCausalLM", "Llama", **DECODER),
    "Qwen3": lambda: _model("Qwen3ForCausalLM", "Qwen3", **DECODER),
    "T5": _t5,
    "ViT": _vit,
    "CLIP": _clip,
    "Whisper": _whisper,
}

LENGTHS = (19, 3, 12, 1, 7, 16)


def _tokens(lengths):
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(3, 101, (n,), generator=generator) for n in lengths]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = (torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": padded, "attention_mask": mask}


def inputs(name):
    """Return the inputs of a batch. Rows of text have several lengths."""
    generator = torch.Generator().manual_seed(2)
    n = len(LENGTHS)
    if name == "ViT":
        return {"pixel_values": torch.randn(n, 3, 24, 24, generator=generator)}
    if name == "CLIP":
        pixels = torch.randn(n, 3, 24, 24, generator=generator)
        return _tokens(LENGTHS) | {"pixel_values": pixels}
    if name == "Whisper":
        sound = torch.randn(n, 8, 40, generator=generator)
        ids = torch.randint(3, 101, (n, 5), generator=generator)
        return {"input_features": sound, "decoder_input_ids": ids}
    given = _tokens(LENGTHS)
    if name == "T5":
        ids = torch.randint(3, 101, (n, 5), generator=generator)
        given["decoder_input_ids"] = ids
    return given


def results(name, model, given):
    """Return each row's result: what the model says of tokens that are no padding."""
    with torch.no_grad():
        out = model(**given)
    if name == "CLIP":
        return list(torch.cat([out.text_embeds, out.image_embeds], -1))
    whole = out.logits if "logits" in out else out.last_hidden_state
    mask = given.get("attention_mask")
    if mask is None or len(whole[0]) != mask.shape[1]:
        rows = list(whole)
    else:
        rows = [row[:n] for row, n in zip(whole, mask.sum(1).tolist(), strict=True)]
    pooled = out.get("pooler_output")
    return (
        rows
        if pooled is None
        else [
            torch.cat([row, one[None]]) for row, one in zip(rows, pooled, strict=True)
        ]
    )


def alone(given, i):
    """Return the inputs of a row, without padding."""
    row = {name: one[i : i + 1] for name, one in given.items()}
    if "attention_mask" in row:
        n = int(row["attention_mask"].sum())
        row |= {name: row[name][:, :n] for name in ("input_ids", "attention_mask")}
    return row
