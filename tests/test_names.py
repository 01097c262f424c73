"""One idea has one name: what parameters are called, and what they are by default."""

import ast
import functools
import inspect
from pathlib import Path

import numpy as np
import pytest
from support import public

import attnpy
from attnpy import blocks, cache, layers, masks, models, plot, positions, view

# An idea, what it is called here, and what else it is called elsewhere, or was once.
NAMES = {
    "how many keys exist": ("kv_lengths", "key_lengths kv_seq_lengths seq_lens"),
    "how many of the tokens given exist": ("lengths", "counts"),
    "how many of a context's tokens exist": ("context_lengths", "memory_lengths"),
    "who may attend to whom": ("mask", "attn_mask attention_mask"),
    "which tokens exist": ("token_mask", "padding_mask key_padding_mask"),
    "texts beside rows": ("query_labels", "query_tokens row_labels"),
    "texts beside columns": ("key_labels", "key_tokens column_labels"),
    "names of heads": ("head_labels", "labels head_names"),
    "keys near a position": ("window", "sliding_window left right local_window_size"),
    "no later keys": ("causal", "is_causal alignment"),
    "all biases of a layer": ("bias", "use_bias"),
    "how many layers": ("num_layers", "depth"),
    "how many heads": ("num_heads", "nhead"),
    "how many heads of keys": ("num_kv_heads", "num_key_value_heads kv_heads"),
    "how many threads": ("num_threads", "threads n_jobs workers"),
    "how many buckets of distances": ("num_buckets", "buckets"),
    "how many sequences": ("batch_size", "batch"),
    "how many of the best": ("top_k", "k topk"),
    "size of a token": ("embed_dim", "d_model hidden_size model_dim"),
    "size of a head": ("head_dim", "d_head head_size"),
    "size of a head's values": ("value_head_dim", "head_dim_v value_size"),
    "size inside a network": ("hidden_dim", "dim_feedforward intermediate_size"),
    "size of a context's tokens": ("context_dim", "kdim"),
    "size of what values come from": ("value_dim", "vdim"),
    "added to a variance": ("eps", "epsilon layer_norm_eps norm_eps"),
    "where random numbers come from": ("rng", "seed generator random_state"),
    "weights besides the output": ("return_weights", "need_weights output_attentions"),
    "states besides the output": ("return_hidden_states", "output_hidden_states"),
    "sums of exponentials": ("return_lse", "return_softmax_lse"),
    "which results": ("wanted", "which returns"),
    "a model's scores": ("logits", "lm_head"),
    "position of query 0": ("q_offset", "query_offset past_length"),
    "scale of the scores": ("scale", "scaling_factor softmax_scale"),
    "bound of the scores": ("softcap", "soft_cap logits_soft_cap"),
    "chance of a weight to be dropped": ("dropout", "dropout_p dropout_rate"),
    "texts as numbers": ("token_ids", "input_ids tokens"),
    "a bar": ("progress", "verbose show_progress show_progress_bar"),
    "the most tokens of a model": ("max_length", "max_len max_seq_length"),
    "room of a cache": ("capacity", "max_cache_len"),
    "where results go": ("out", "result"),
    "the gradient of an output": ("grad_output", "grad grad_out"),
}
BANNED = {
    name: f"{idea}: {here}"
    for idea, (here, others) in NAMES.items()
    for name in others.split()
}


@functools.cache
def from_types():
    """The options that types of keyword arguments have, by the type and the option."""
    found = set()
    for path in Path(attnpy.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.keywords:  # total=False
                for line in node.body:
                    if isinstance(line, ast.AnnAssign):
                        found.add((node.name, line.target.id))
    return found


def used():
    """All parameters of public functions, with the function."""
    found = set(from_types())
    for function, thing in public.callables().items():
        found |= {(function, name) for name in public.parameters(thing)}
    return found


USED = used()


@pytest.mark.quick
def test_a_parameter_has_the_name_of_its_idea():
    wrong = {
        f"{function}({name}): {BANNED[name]}"
        for function, name in USED
        if name in BANNED
    }
    assert wrong == set()


@pytest.mark.quick
def test_the_table_of_names_is_that_of_this_package():
    names = {here for here, _ in NAMES.values()}
    assert names <= {name for _, name in USED}
    assert not names & BANNED.keys()


@pytest.mark.quick
def test_how_many_is_num():
    counts = {
        f"{f}({n})" for f, n in USED if n.startswith("n_") or n.endswith("_count")
    }
    assert counts == set()


def defaults():
    """The default values of the parameters of public functions, by their names."""
    found = {}
    for function, thing in public.callables().items():
        try:
            parameters = inspect.signature(thing).parameters.values()
        except (TypeError, ValueError):
            continue
        for p in parameters:
            if p.default is not p.empty:
                found.setdefault(p.name, {})[function] = p.default
    return found


# Options that mean the same wherever they are, and so have one default.
SAME = {
    "bias": True,
    "causal": False,
    "checkpoint": False,
    "context": None,
    "growable": False,
    "lengths": None,
    "mask": None,
    "num_threads": None,
    "packed": True,
    "progress": None,
    "q_offset": None,
    "return_hidden_states": False,
    "return_lse": False,
    "return_weights": False,
    "rng": None,
    "title": None,
    "window": None,
}
BUT = {
    ("bias", "attention"): None,  # numbers, of the scores
    ("bias", "MultiHeadAttention.__call__"): None,
    ("bias", "SelfAttention.__call__"): None,
    ("bias", "layers.LayerGradients"): None,
    ("causal", "blocks.DecoderLayer"): True,
    ("causal", "masks.causal"): True,
    ("lengths", "KVCache"): 0,
}


@pytest.mark.quick
@pytest.mark.parametrize("name", SAME)
def test_an_option_has_one_default(name):
    given = defaults()[name]
    assert given == {f: BUT.get((name, f), SAME[name]) for f in given}


@pytest.mark.quick
def test_num_threads_is_a_keyword_in_the_same_words():
    words = (
        "At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result."
    )
    for function, thing in public.callables().items():
        if function == "set_num_threads" or "num_threads" not in public.parameters(
            thing
        ):
            continue
        if hasattr(thing, "_fields"):  # the result of a call
            continue
        signature = inspect.signature(thing).parameters
        assert list(signature)[-1] in ("num_threads", "options"), function
        assert signature["num_threads"].kind is inspect.Parameter.KEYWORD_ONLY, function
        doc = " ".join(inspect.getdoc(thing).split())
        if "num_threads : " in doc:
            assert words in doc, function


X, EYE = np.ones((4, 8)), np.eye(3)
OLD = {
    "alignment": lambda **old: masks.causal(2, **old),
    "left": lambda **old: masks.window(2, 2, **old),
    "n_queries": lambda **old: masks.causal(**old),
    "n_keys": lambda **old: masks.causal(2, **old),
    "lengths": lambda **old: masks.padding(num_keys=4, **old),
    "counts": lambda **old: cache.KVCache(1, 1, 9, 8).append(X, X, **old),
    "batch": lambda **old: layers.MultiHeadAttention(8, 2).new_cache(capacity=3, **old),
    "kdim": lambda **old: layers.MultiHeadAttention(8, 2, **old),
    "vdim": lambda **old: layers.MultiHeadAttention(8, 2, **old),
    "n_layers": lambda **old: blocks.Encoder(1, 8, 2, 8, **old),
    "output_hidden_states": lambda **old: blocks.Encoder(1, 8, 2, 8)(X, **old),
    "mask": lambda **old: models.BertEncoder(1, 8, 2, 8, vocab_size=9)([1], **old),
    "relative_buckets": lambda **old: models.BertEncoder(
        1, 8, 2, 8, vocab_size=9, **old
    ),
    "n_tokens": lambda **old: models.CausalDecoder(1, 8, 2, 8, vocab_size=9).generate(
        [1], **old
    ),
    "scores": lambda **old: models.CausalDecoder.from_config({}, **old),
    "which": lambda **old: attnpy.statistics(X, X, **old),
    "dim": lambda **old: positions.Learned(3, **old),
    "labels": lambda **old: plot.entropy(EYE, **old),
    "query_tokens": lambda **old: view.neuron_view(EYE, EYE, list("abc"), **old),
    "heads": lambda **old: plot.statistics.received(EYE, **old),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", OLD)
def test_a_name_that_was_is_refused_in_one_sentence(name):
    with pytest.raises(TypeError) as caught:
        OLD[name](**{name: 3})
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert repr(name) in text
    assert "unexpected keyword argument" in text
