"""Keywords of other libraries, and what to write here instead.

`answering` makes functions and classes say so where they are called with one.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable
    from types import CodeType

    Thing = TypeVar("Thing")

RNG = "write rng=numpy.random.default_rng(seed)"
LOCAL = "nothing is downloaded: `hf download name --local-dir folder` fetches a folder"
LENGTHS = "write lengths=, for rows padded at their ends"
ROTARY = "write rotary=attnpy.positions.Rotary(head_dim, base=...)"
SAMPLE = "write temperature=1 and rng=numpy.random.default_rng() to sample"
BEAMS = (
    "beams are for EncoderDecoder; num_samples= and a temperature draw several texts"
)
SCORES = "change the scores of logits(), and draw from them by sample()"
ARRAYS = "results are NumPy arrays"
MASK = "write mask=, True where a query may attend"
KV_LENGTHS = "write kv_lengths=, or mask=, True where a query may attend"
TOKEN_MASK = "write lengths=, or token_mask=, True where a token exists"

# Parameters that a function has, what they are called in PyTorch, Hugging Face,
# sentence-transformers, JAX or FlashAttention; what to say, by default "write name=".
# The first line that fits is used. Without a parameter it fits every function.
LINES = (
    # attention
    ("causal", "is_causal", "write causal=True, or 'top_left' for PyTorch's alignment"),
    ("mask bias", "attn_mask attention_mask", f"{MASK}, or bias= for numbers"),
    ("mask", "attn_mask attention_mask src_mask tgt_mask", MASK),
    ("kv_lengths", "key_padding_mask src_key_padding_mask", KV_LENGTHS),
    ("kv_lengths", "tgt_key_padding_mask attention_mask", KV_LENGTHS),
    ("kv_lengths", "lengths", ""),
    ("token_mask", "attention_mask key_padding_mask", TOKEN_MASK),
    ("lengths token_ids", "attention_mask", LENGTHS),
    ("kv_lengths", "key_value_seq_lengths cache_seqlens seq_lens", ""),
    ("mask bias", "alibi_slopes", "write bias=attnpy.positions.alibi_bias(...)"),
    ("bias", "attn_bias use_bias", ""),
    ("mask scale", "softmax_scale sm_scale", "write scale="),
    ("softcap", "logits_soft_cap logit_cap", ""),
    ("window", "sliding_window window_size local_window_size", "write window=(left, "
     "right)"),
    ("seq_offsets", "cu_seqlens cu_seqlens_q cu_seqlens_k cu_seq_q cu_seq_k", ""),
    ("dropout", "dropout_p dropout_rate", "write dropout=, and dropout_seed="),
    ("return_weights", "need_weights output_attentions return_attn_probs "
     "return_attention", ""),
    ("return_lse", "return_softmax_lse return_residual return_aux", ""),
    ("average_weights", "average_attn_weights", ""),
    ("", "is_causal", "attention() and attention layers have causal="),
    ("", "average_attn_weights", "MultiHeadAttention has average_weights="),
    ("", "dropout dropout_p", "attention() has dropout=, and the vjp of attention "
     "layers"),
    ("", "enable_gqa", "heads are grouped wherever there are fewer of the keys"),
    ("mask scale", "num_heads nhead n_heads", "heads are an axis, (B, H, L, D); "
     "MultiHeadAttention splits tokens (B, L, E) into heads"),
    # layers
    ("embed_dim", "d_model hidden_size model_dim n_embd", ""),
    ("num_heads", "nhead n_head n_heads num_attention_heads", ""),
    ("num_kv_heads", "num_key_value_heads n_kv_heads", ""),
    ("hidden_dim", "dim_feedforward intermediate_size ffn_dim d_ff", ""),
    ("num_layers", "num_hidden_layers num_encoder_layers num_decoder_layers", ""),
    ("num_layers", "n_layer n_layers depth", ""),
    ("head_dim", "d_head head_size dim", ""),
    ("context_dim", "kdim", ""),
    ("value_dim", "vdim", ""),
    ("eps", "layer_norm_eps rms_norm_eps epsilon", ""),
    ("dim", "normalized_shape hidden_size", ""),
    ("base", "rope_theta theta", ""),
    ("rotary", "rope_theta", ROTARY),
    ("max_length", "max_position_embeddings max_seq_length n_positions", ""),
    ("context", "memory encoder_hidden_states", ""),
    ("context", "key", "write context=, and value= where values come from elsewhere"),
    ("context_mask", "memory_mask", "write context_mask=, True where a query may "
     "attend"),
    ("context_lengths", "memory_key_padding_mask", "write context_lengths="),
    ("caches", "past_key_values past_key_value use_cache", "write caches=, from "
     "new_caches()"),
    ("cache", "past_key_values past_key_value use_cache", "write cache=, a KVCache"),
    ("capacity", "max_cache_len max_seq_len max_length", ""),
    ("batch_size", "max_batch_size", ""),
    ("return_hidden_states", "output_hidden_states", ""),
    ("", "output_hidden_states return_hidden_states", "the stacks Encoder and Decoder "
     "have return_hidden_states=, and the models"),
    ("", "batch_first", "the batch is always the first axis: (B, L, E)"),
    # models
    ("token_ids", "input_ids", ""),
    ("source_ids", "input_ids", ""),
    ("target_ids", "decoder_input_ids labels", ""),
    ("target_lengths", "decoder_attention_mask", "write target_lengths="),
    ("lengths source_ids", "attention_mask", LENGTHS),
    ("num_tokens start", "decoder_start_token_id decoder_input_ids", "write start="),
    ("min_tokens", "min_new_tokens min_length", ""),
    ("bad_words", "bad_words_ids", ""),
    ("forced_bos", "forced_bos_token_id", ""),
    ("forced_eos", "forced_eos_token_id", ""),
    ("return_scores", "output_scores return_dict_in_generate", ""),
    ("token_types", "token_type_ids", ""),
    ("num_tokens", "max_new_tokens max_tokens max_length", ""),
    ("temperature", "do_sample", SAMPLE),
    ("num_tokens stop", "eos_token_id stop_token_ids", "write stop="),
    ("callback", "streamer stream", "write callback=, or call stream()"),
    ("num_samples", "stream streamer callback", "tokens come one by one anyway"),
    ("num_tokens prefix", "stream streamer callback", "step() returns each "
     "token"),
    ("num_tokens", "stream streamer callback", "texts are returned as a whole: beams "
     "may replace all of one; CausalDecoder has stream()"),
    ("num_samples", "num_return_sequences", ""),
    ("num_samples", "num_beams length_penalty early_stopping num_beam_groups", BEAMS),
    ("num_samples", "repetition_penalty no_repeat_ngram_size min_tokens bad_words_ids "
     "suppress_tokens", SCORES),
    ("draft", "assistant_model", ""),
    ("draft", "prompt_lookup_num_tokens", 'write draft="lookup"'),
    ("num_tokens", "generation_config", "write its settings as arguments"),
    ("target_language", "tgt_lang", ""),
    ("source_language", "src_lang", ""),
    ("num_tokens progress", "target_language tgt_lang source_language src_lang",
     "TextToText.from_pretrained() has source_language= and target_language=, and "
     "tokens of languages are forced_bos="),
    ("dtype", "torch_dtype", ""),
    ("weights packed", "load_in_8bit quantization_config", 'write weights="int8"'),
    ("weights packed", "load_in_4bit", 'write weights="int4"'),
    ("weights packed", "quantize quantization bits", 'write weights="int8" or "int4"'),
    ("folder", "model_name_or_path pretrained_model_name_or_path model_id", ""),
    ("folder", "save_directory", ""),
    ("folder", "safe_serialization max_shard_size", "weights are one safetensors file"),
    ("folder", "push_to_hub repo_id", "nothing is uploaded"),
    ("", "trust_remote_code revision cache_dir token local_files_only", LOCAL),
    ("", "device device_map", "everything is computed on the CPU"),
    # texts
    ("progress", "show_progress_bar show_progress verbose", ""),
    ("normalize", "normalize_embeddings", ""),
    ("normalize truncate_dim", "precision", "vectors are numbers of the model's dtype; "
     'from_pretrained(weights="int8") quantises the model'),
    ("activation_fn", "activation_fct", ""),
    ("texts", "sentences", ""),
    ("pairs", "sentences inputs", ""),
    ("corpus", "corpus_embeddings passages", ""),
    ("query", "query_embeddings", ""),
    ("top_k", "topk k n", ""),
    ("", "convert_to_numpy convert_to_tensor return_tensors", ARRAYS),
    # training, pictures
    ("parameters", "params", ""),
    ("lr", "learning_rate", ""),
    ("max_norm", "max_grad_norm", ""),
    ("targets", "target labels", ""),
    ("logits", "input", ""),
    ("warmup_steps", "num_warmup_steps", ""),
    ("total_steps", "num_training_steps", ""),
    ("weights query_labels", "attention attentions", "write weights="),
    ("query_labels", "tokens", ""),
    ("dropout_seed", "seed generator rng", ""),
    ("rng", "seed random_state generator", RNG),
)  # fmt: skip

# Functions and classes of others, and what is nearest to them in `attnpy`.
NAMES = {
    "scaled_dot_product_attention": "attention",
    "dot_product_attention": "attention",
    "flash_attn_func": "attention",
    "softmax": "attention, which has the softmax in it",
    "MultiheadAttention": "MultiHeadAttention",
    "TransformerEncoder": "blocks.Encoder",
    "TransformerEncoderLayer": "blocks.EncoderLayer",
    "TransformerDecoder": "blocks.Decoder",
    "TransformerDecoderLayer": "blocks.DecoderLayer",
    "Transformer": "blocks.Encoder and attnpy.blocks.Decoder",
    "RotaryEmbedding": "positions.Rotary",
    "Encoder": "blocks.Encoder",
    "EncoderLayer": "blocks.EncoderLayer",
    "Decoder": "blocks.Decoder",
    "DecoderLayer": "blocks.DecoderLayer",
    "FeedForward": "blocks.FeedForward",
    "positional_encoding": "positions.sinusoidal",
    "Rotary": "positions.Rotary",
    "LayerNorm": "blocks.LayerNorm",
    "RMSNorm": "blocks.RMSNorm",
    "AutoModelForCausalLM": "models.CausalDecoder",
    "AutoModelForSeq2SeqLM": "models.EncoderDecoder",
    "AutoModel": "models.BertEncoder",
    "SentenceTransformer": "models.SentenceEncoder",
    "SentenceEncoder": "models.SentenceEncoder",
    "MultiVectorEncoder": "models.MultiVectorEncoder",
    "ColBERT": "models.MultiVectorEncoder",
    "CrossEncoder": "models.CrossEncoder",
    "CausalDecoder": "models.CausalDecoder",
    "causal_mask": "masks.causal",
    "heat_map": "plot.heat_map",
    "head_view": "view.head_view",
    "model_view": "view.model_view",
    "AdamW": "training.AdamW",
}


def hint(keyword: str, parameters: Container[str]) -> str:
    """Return what to write instead, in a function with these parameters, or nothing."""
    for own, sentence in _elsewhere().get(keyword, ()):
        if all(name in parameters for name in own):
            return sentence
    return ""


@functools.cache
def _elsewhere() -> dict[str, list[tuple[list[str], str]]]:
    found: dict[str, list[tuple[list[str], str]]] = {}
    for own, names, said in LINES:
        for name in names.split():
            sentence = said or f"write {own}="
            found.setdefault(name, []).append((own.split(), sentence))
    return found


def refuse(given: Iterable[str], known: Collection[str], caller: str) -> None:
    """Refuse keywords that the calling function does not know, as Python does."""
    for name in given:
        if name not in known:
            parameters = {*known, *_parameters(sys._getframe(1).f_code)}
            raise _error(name, parameters, caller)


def _error(name: str, parameters: Container[str], caller: str) -> TypeError:
    said = hint(name, parameters)
    ending = f": {said}" if said else ""
    return TypeError(f"{caller} got an unexpected keyword argument {name!r}{ending}")


def _parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


if TYPE_CHECKING:  # changes no type

    def answering(thing: Thing) -> Thing: ...

else:

    def answering(thing):
        """Make a function, or the methods of a class, answer others' keywords.

        Functions that take any keyword call `refuse` instead. Classes that read
        folders say so if they are called with the name of one.
        """
        if not inspect.isclass(thing):
            return _wrapped(thing)
        for name, method in list(vars(thing).items()):
            if name.startswith("_") and name not in ("__init__", "__call__"):
                continue
            if isinstance(method, classmethod | staticmethod):
                setattr(thing, name, type(method)(_wrapped(method.__func__)))
            elif inspect.isfunction(method):
                setattr(thing, name, _wrapped(method))
        if hasattr(thing, "from_pretrained"):
            thing.__init__ = _telling_readers(thing.__init__)
        return thing

    def _wrapped(function):
        code = inspect.unwrap(function).__code__
        parameters = _parameters(code)
        if code.co_flags & inspect.CO_VARKEYWORDS or not _OWN & set(parameters):
            return function

        @functools.wraps(function)
        def call(*args, **keywords):
            try:
                return function(*args, **keywords)
            except TypeError:
                for name in keywords:
                    if name not in parameters and hint(name, parameters):
                        caller = f"{function.__qualname__}()"
                        raise _error(name, parameters, caller) from None
                raise

        return call

    def _telling_readers(init):
        @functools.wraps(init)
        def call(self, *args, **keywords):
            try:
                init(self, *args, **keywords)
            except TypeError as error:
                if not args or not isinstance(args[0], str | os.PathLike):
                    raise
                reads = f"{type(self).__name__}.from_pretrained(folder) reads a folder"
                raise TypeError(f"{error}: {reads}") from None

        return call

    _OWN = {name for own, _, _ in LINES for name in own.split()}
