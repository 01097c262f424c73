"""Small folders with late interaction, and the arithmetic of their vectors.

Three libraries write them: colbert-ai ("colbert"), PyLate, and sentence-transformers.
"""

import json

import numpy as np

from support import families, sentences

# The tokens of WORDS that have a task here.
QUERY, DOCUMENT, MASK = "query", "find", "moon"
SKIPLIST = [".", ":", "!"]  # the last one is no token
LENGTHS = {"query_length": 9, "document_length": 12}
MODEL_DIM, DIM = 12, 7
LIBRARIES = ("colbert", "pylate", "sentence_transformers")
KINDS = {
    "pylate": ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"],
    "sentence_transformers": [
        "sentence_transformers.base.modules.transformer.Transformer",
        "sentence_transformers.base.modules.dense.Dense",
        "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask."
        "MultiVectorMask",
        "sentence_transformers.base.modules.normalize.Normalize",
    ],
}


def write(
    folder,
    library="pylate",
    kind="bert",
    fill=True,
    attend=False,
    config_changes=None,
    **changes,
):
    """Write a folder; returns the model's tensors and the projection, (E, D).

    `changes` are fields of the file that has the library's settings.
    """
    from safetensors.numpy import save_file

    sentences.write(folder, kind, changes=config_changes, mask_token=MASK)
    tokenizer = sentences.tokenizer()
    tokenizer.add_special_tokens([QUERY, DOCUMENT, MASK])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "1_Pooling" / "config.json").unlink()
    (folder / "1_Pooling").rmdir()
    (folder / "modules.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    tensors = families.tensors(config)
    rng = np.random.default_rng(5)
    matrix = rng.standard_normal((DIM, MODEL_DIM), dtype=np.float32)
    if library == "colbert":
        config["architectures"] = ["HF_ColBERT"]
        sentences.put(folder / "config.json", config)
        model = "bert" if kind == "bert" else "roberta"
        own = {f"{model}.{name}": array for name, array in tensors.items()}
        own["linear.weight"] = matrix
        save_file(own, folder / "model.safetensors")
        metadata = {
            "query_token_id": QUERY,
            "doc_token_id": DOCUMENT,
            "query_maxlen": LENGTHS["query_length"],
            "doc_maxlen": LENGTHS["document_length"],
            "attend_to_mask_tokens": attend,
            "mask_punctuation": True,
            "dim": DIM,
            "interaction": "colbert",
            "similarity": "cosine",
            "nbits": 2,
            "meta": {"version": "colbert-v0.4"},
            **changes,
        }
        sentences.put(folder / "artifact.metadata", metadata)
        return tensors, matrix.T.astype(float)
    places = ["", *(f"{i}_Module" for i in range(1, len(KINDS[library])))]
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": kind}
        for i, (place, kind) in enumerate(zip(places, KINDS[library], strict=True))
    ]
    sentences.put(folder / "modules.json", modules)
    write_dense(folder / "1_Module", matrix)
    path = folder / "config_sentence_transformers.json"
    if library == "pylate":
        settings = {
            "model_type": "ColBERT",
            "__version__": {"sentence_transformers": "5.3.0"},
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "MaxSim",
            "query_prefix": QUERY,
            "document_prefix": DOCUMENT,
            **LENGTHS,
            "attend_to_expansion_tokens": attend,
            "skiplist_words": SKIPLIST,
            "do_query_expansion": fill,
            **changes,
        }
        sentences.put(path, settings)
        return tensors, matrix.T.astype(float)
    prompts = {"query": f"{QUERY} ", "document": f"{DOCUMENT} "}
    settings = {"model_type": "MultiVectorEncoder", "prompts": prompts, **changes}
    sentences.put(path, settings)
    own = dict(LENGTHS)
    if fill:
        length = own.pop("query_length")
        own["query_expansion"] = {
            "strategy": "fixed",
            "length": length,
            "attend": attend,
        }
    sentences.put(folder / "sentence_bert_config.json", own)
    mask, last = (folder / f"{i}_Module" for i in (2, 3))
    for place, content in (
        (mask, {"skiplist_words": SKIPLIST, "skiplist_tasks": ["document"]}),
        (last, {"module_input_name": "token_embeddings"}),
    ):
        place.mkdir(exist_ok=True)
        sentences.put(place / "config.json", content)
    return tensors, matrix.T.astype(float)


def write_dense(folder, matrix, **more):
    """Write the folder of a Dense module without a bias."""
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file({"linear.weight": matrix}, folder / "model.safetensors")
    n_out, n_in = matrix.shape
    config = {"in_features": n_in, "out_features": n_out, "bias": False, **more}
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    sentences.put(folder / "config.json", config)


def token_ids(text, prefix, length):
    """The tokens of a text with a prefix after the first one, at most this many."""
    tokenizer = sentences.tokenizer()
    tokenizer.no_padding()
    tokenizer.enable_truncation(length - 1)
    ids = tokenizer.encode(text).ids
    return [ids[0], sentences.WORDS.index(prefix), *ids[1:]]


def vectors(tensors, config, matrix, text, is_query, fill=True, attend=False):
    """The vectors of a text, (L, D), in float64."""
    if not is_query:
        ids = token_ids(text, DOCUMENT, LENGTHS["document_length"])
        states = families.bert_states(tensors, config, np.array(ids))
        skipped = [sentences.WORDS.index(word) for word in SKIPLIST[:2]]
        return _units(states[~np.isin(ids, skipped)] @ matrix)
    ids = token_ids(text, QUERY, LENGTHS["query_length"])
    seen = len(ids)
    if fill:
        filler = sentences.WORDS.index(MASK)
        ids += [filler] * (LENGTHS["query_length"] - len(ids))
    options = {} if attend or not fill else {"seen": seen}
    return _units(
        families.bert_states(tensors, config, np.array(ids), **options) @ matrix
    )


def _units(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
