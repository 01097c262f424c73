"""Words that people search for, and the pages that answer: entries of the index.

Sphinx's search shows such a page first for the word, as if it were its title.
"""

from sphinx import addnodes
from sphinx.errors import ExtensionError

SYNONYMS = {
    "docs/install": (
        "install, installation, pip, windows, wsl, docker, dockerfile, container, "
        "colab, kaggle, macos, conda, compiler, gcc, offline, alpine"
    ),
    "docs/sentences": (
        "embedding, embeddings, semantic search, sentence-transformers, similarity, "
        "retrieval, vector search, rag, pandas"
    ),
    "docs/reranking": "rerank, reranker, cross-encoder, crossencoder, bge-reranker",
    "docs/models": (
        "llama, bert, gpt2, gpt-2, qwen, mistral, gemma, phi, roberta, hugging face, "
        "huggingface, checkpoint, safetensors, classify, classification, "
        "save, save_pretrained, load model"
    ),
    "docs/guide/language_models": (
        "gguf, ollama, llama.cpp, chat, generate, text generation, sampling, "
        "temperature, llm, prompt"
    ),
    "docs/guide/quantised_weights": (
        "int8, int4, 8-bit, 4-bit, 8 bit, 4 bit, quantize, quantise, quantization, "
        "quantisation, quantized"
    ),
    "docs/guide/fine_tuning": (
        "fine-tune, finetune, finetuning, lora, transfer learning"
    ),
    "docs/guide/training": "train, gradient, gradients, backward, autograd, loss, vjp",
    "docs/guide/masks_and_lengths": (
        "mask, masks, padding, pad, attention mask, attn_mask, causal mask, "
        "variable length, ragged, sliding window"
    ),
    "docs/guide/caches_and_decoding": (
        "kv cache, kvcache, cache, key value cache, decoding, decode, paged"
    ),
    "docs/guide/threads": "thread, threads, num_threads, parallel, cores, omp",
    "docs/guide/dtypes": (
        "dtype, float16, bfloat16, half precision, bf16, fp16, float32"
    ),
    "docs/guide/performance": "slow, faster, speed up, memory layout, plan",
    "docs/performance": "benchmark, benchmarks, speed, how fast, flops",
    "docs/guide/coming_from_pytorch": (
        "pytorch, torch, scaled_dot_product_attention, sdpa, nn.multiheadattention"
    ),
    "docs/guide/coming_from_jax_keras_onnx": "keras, tensorflow, coming from jax",
    "docs/integrations/torch": "accelerate, torch.compile",
    "docs/integrations/jax": "jax, jit",
    "docs/integrations/onnx": "onnx, onnxruntime",
    "docs/integrations/dask": "dask",
    "docs/integrations/sklearn": "scikit-learn, sklearn, pipeline",
    "docs/gallery/index": (
        "plot, picture, pictures, image, heat map, heatmap, figure, visualize, "
        "visualise, visualization, bertviz, head_view, explain"
    ),
    "docs/guide/reproducibility": "same bits, deterministic, reproducible, seed",
    "docs/guide/deployment": "deploy, server, production, wheel, wheels, memory",
    "docs/tutorials/index": "tutorial, tutorials, notebook, notebooks, course, example",
    "docs/tasks": "task, tasks, translate, translation, summarize, how do i",
    "docs/faq": "gpu, cuda, question",
    "docs/integrations/huggingface": "transformers, attn_implementation",
}


def add(app, doctree):
    """Add an entry for each word of a page, with the page as the main place."""
    words = SYNONYMS.get(app.env.docname, "").split(",")
    entries = [("single", word.strip(), "", "main", None) for word in words if word]
    if entries:
        doctree.append(addnodes.index(entries=entries))


def check(app, env):
    """Require that each of the pages is there."""
    missing = SYNONYMS.keys() - env.found_docs
    if missing:
        raise ExtensionError(f"synonyms.py: expected pages, got {sorted(missing)}")


def setup(app):
    """Add them to each page that is read."""
    app.connect("doctree-read", add)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
