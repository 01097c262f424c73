"""Small folders of language models that score pairs of texts."""

import numpy as np

from support import families, gguf_files
from support.sentences import put

WORDS = [
    *("[UNK]", "[PAD]", "[END]", "yes", "no", "0", "1", "2", "3", "4", ":", ".", "?"),
    *("query", "document", "find", "cat", "dog", "sun", "moon", "red", "blue", "the"),
    *("a", "is", "under", "sea", "answer", "sleeps"),
]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}find : {{ m.content }} . "
    "{% else %}{{ m.role }} : {{ m.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}? answer : {{ eos_token }}{% endif %}"
)

LABELS = "classifier.output_labels"


def write_tokenizer(folder, **settings):
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    vocab = {word: i for i, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="$A [END]",
        pair="$A . $B [END]",
        special_tokens=[("[END]", 2), (".", 11)],
    )
    made.add_special_tokens(["[UNK]", "[PAD]", "[END]"])
    made.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[END]"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left"}
    put(folder / "tokenizer_config.json", {**names, **kind, **settings})


def write(folder, kind="qwen3", n_labels=None, template=TEMPLATE, **settings):
    """Write the folder of a model, with labels or without; its arrays and config."""
    from safetensors.numpy import save_file

    owner = families.DECODERS[kind]
    stem = {"qwen3": "Qwen3", "llama": "Llama", "gpt2": "GPT2"}[kind]
    config = {**owner, "vocab_size": len(WORDS), "pad_token_id": 1}
    tensors = families.tensors(config)
    config["architectures"] = [f"{stem}ForCausalLM"]
    if n_labels is not None:
        labels = {str(i): f"label {i}" for i in range(n_labels)}
        config |= {"id2label": labels}
        config["architectures"] = [f"{stem}ForSequenceClassification"]
        tensors.pop("lm_head.weight", None)
        rng, size = np.random.default_rng(3), owner.get("hidden_size", 12)
        tensors["score.weight"] = rng.standard_normal((n_labels, size), np.float32)
    save_file(tensors, folder / "model.safetensors")
    put(folder / "config.json", config)
    write_tokenizer(folder, **settings)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return tensors, config


def write_modules(folder, scores=None, said=None, variables=None, **config):
    """Add what sentence-transformers writes beside a model."""
    kinds = ("base.modules.transformer.Transformer", "")
    kinds = [kinds, ("cross_encoder.modules.logit_score.LogitScore", "1_LogitScore")]
    put(
        folder / "modules.json",
        [
            {
                "idx": i,
                "name": str(i),
                "path": path,
                "type": f"sentence_transformers.{x}",
            }
            for i, (x, path) in enumerate(kinds)
        ],
    )
    (folder / "1_LogitScore").mkdir(exist_ok=True)
    scores = {"true_token_id": 3, "false_token_id": 4} if scores is None else scores
    put(folder / "1_LogitScore" / "config.json", scores)
    by_text = {"method": "forward", "method_output_name": "logits"}
    message = {**by_text, "format": "flat"}
    module = {
        "transformer_task": "text-generation",
        "module_output_name": "causal_logits",
        "modality_config": {"text": by_text, "message": message} | (said or {}),
    }
    variables = {"add_generation_prompt": True} if variables is None else variables
    module["processing_kwargs"] = {"chat_template": variables}
    put(folder / "sentence_bert_config.json", module)
    put(folder / "config_sentence_transformers.json", config)


def in_gguf(labels=("yes", "no"), kind="qwen3", has_head=True, **size):
    """The metadata and the arrays of a file, and the numbers of "yes" and "no".

    The head is what llama.cpp's converter makes of the rows of tokens.
    """
    text = gguf_files.bytes_tokenizer(("y e", "ye s", "n o"))
    tokens = text["tokenizer.ggml.tokens"]
    numbers = {name: tokens.index(name) for name in ("yes", "no")}
    size |= {"vocab_size": len(tokens), "tie_word_embeddings": kind == "qwen3"}
    size["max_position_embeddings"] = 512
    metadata, arrays = gguf_files.model({**families.DECODERS[kind], **size})
    if has_head:
        table = arrays.pop("output.weight", arrays["token_embd.weight"])
        rows = [numbers.get(label, i) for i, label in enumerate(labels)]
        arrays["cls.output.weight"] = table[rows]
        metadata |= {f"{kind}.pooling_type": 4, f"{kind}.{LABELS}": list(labels)}
    return metadata | text, arrays, [*numbers.values()]
