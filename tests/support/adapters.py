"""Small folders of jina-embeddings-v3, with adapters of tasks beside the weights."""

import json

import numpy as np

from support import families, sentences
from support.sentences import put

TASKS = ["retrieval.query", "retrieval.passage", "separation"]
LORA = {"lora_adaptations": TASKS, "lora_rank": 2, "lora_alpha": 3}
# As the folder of jina-embeddings-v3 has them, where nothing says the model_type.
JINA = {
    **{name: x for name, x in families.JINA_V3.items() if "rope" not in name},
    **LORA,
    "auto_map": {
        "AutoConfig": "jinaai/x--configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": "jinaai/x--modeling_lora.XLMRobertaLoRA",
        "AutoModelForMaskedLM": "jinaai/x--modeling_xlm_roberta.XLMRobertaForMaskedLM",
    },
    "emb_pooler": None,
    "load_trained_adapters": True,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "matryoshka_dimensions": [4, 8],
    "position_embedding_type": "rotary",
    "rotary_emb_base": 500.0,
    "task_instructions": {"retrieval.query": "find: "},
    "truncate_dim": None,
    "use_flash_attn": True,
}
del JINA["model_type"]
PARTS = ".parametrizations.weight"


def with_adapters(tensors, seed=3):
    """Arrays in the names of jinaai's code, with two matrices for each of TASKS."""
    rng, (n, rank) = np.random.default_rng(seed), (len(TASKS), LORA["lora_rank"])
    names = (
        ("layers.", "encoder.layers."),
        ("embeddings.LayerNorm", "emb_ln"),
        ("self_attn.o_proj", "mixer.out_proj"),
        ("post_attention_layernorm", "norm1"),
        ("post_mlp_layernorm", "norm2"),
    )
    named, new = {}, {}
    for name, array in tensors.items():
        for theirs, old in names:
            name = name.replace(theirs, old)
        named[name] = array
    for i in range(2):
        for kind in ("weight", "bias"):
            start = f"encoder.layers.{i}."
            parts = [named.pop(f"{start}self_attn.{c}_proj.{kind}") for c in "qkv"]
            named[f"{start}mixer.Wqkv.{kind}"] = np.concatenate(parts)
    for name, array in named.items():
        stem = f"roberta.{name.removesuffix('.weight')}"
        if array.ndim < 2:
            new[f"roberta.{name}"] = array
            continue
        rows, columns = array.shape
        a, b = (n, rank, columns), (n, rows, rank)
        if "embeddings" in name:
            a, b = b, a
        new[f"{stem}{PARTS}.original"] = array
        for letter, shape in (("A", a), ("B", b)):
            lora = 0.2 * rng.standard_normal(shape)
            new[f"{stem}{PARTS}.0.lora_{letter}"] = lora.astype(np.float32)
    return new


def write(folder, config, tensors):
    """A model's folder, without a tokenizer."""
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


def of_tasks(folder):
    """A folder as jinaai's, for sentence-transformers; its prompts are of tasks."""
    tensors = families.tensors(families.JINA_V3)
    prompts = {"retrieval.query": "find the ", "retrieval.passage": ""}
    sentences.write(folder)
    write(folder, JINA, with_adapters(tensors))
    put(folder / "config_sentence_transformers.json", {"prompts": prompts})
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"type": "custom_st.Transformer", "kwargs": ["task"]}
    put(folder / "modules.json", modules)
    return modules
