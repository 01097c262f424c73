"""attnpy within Hugging Face's models, against the same models without it."""

import copy
import functools
import time
from dataclasses import asdict, dataclass

import numpy as np

import attnpy

from ..lazily import torch, transformers
from ..peers import Way
from . import decoders, folders, transformers_ways

BERT_SHAPE = 8, 512  # sentences and tokens


@dataclass(frozen=True)
class InTransformers:
    """A model of Transformers with random weights: BERT-base, or one that reads tokens.

    by: how it gets attnpy's attention, "attn_implementation" or "accelerate()".
    """

    tokens: decoders.Tokens | None
    by: str = "attn_implementation"
    dtype: str = "float32"

    def arrays(self):
        """The tokens, (B, L) or (L,)."""
        if self.tokens is not None:
            return (self.tokens.ids(),)
        return (np.random.default_rng(2).integers(1000, 30000, size=BERT_SHAPE),)

    def n_tokens(self):
        return self.tokens.n_tokens() if self.tokens else int(np.prod(BERT_SHAPE))

    def facts(self):
        found = asdict(self)
        if self.by == "attn_implementation":
            found["attention_share"] = shares(self)
        return found


@functools.lru_cache(maxsize=1)
def model_of(name, dtype):
    """A model with PyTorch's attention; BERT-base where there is no name."""
    torch.manual_seed(1)
    more = {"attn_implementation": "sdpa"}
    with torch.inference_mode(False):  # its weights can be packed, as a user's
        if name is None:
            found = transformers.BertModel(transformers.BertConfig(**more), False)
        else:
            config = transformers.AutoConfig.for_model(**folders.CONFIGS[name])
            found = transformers.AutoModelForCausalLM.from_config(config, **more)
        return found.to(getattr(torch, dtype)).eval()


def with_attention(case, implementation):
    """The case's model with another attention, and the same weights."""
    model = model_of(case.tokens and case.tokens.model, case.dtype)
    same = {id(x): x for x in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, same)
    model.set_attn_implementation(implementation)
    return model


def call_of(case, model, ids):
    """What is timed, of any model; it gives vectors (B, L, E), or scores (V,)."""
    if case.tokens is None:
        ids = torch.from_numpy(ids)
        return lambda: model(input_ids=ids).last_hidden_state.float()
    return transformers_ways.reading(case.tokens, model, model)


def attnpy_ways(case, arrays, n_threads):
    integrations = attnpy.integrations
    if case.by == "attn_implementation":
        model = with_attention(case, integrations.huggingface.register())
        yield Way(case.by, call_of(case, model, *arrays))
        return
    call = call_of(case, with_attention(case, "sdpa"), *arrays)

    def accelerated():
        with integrations.torch.accelerate(num_threads=n_threads):
            return call()

    yield Way(case.by, accelerated)


def torch_ways(case, arrays, n_threads):
    yield Way("sdpa", call_of(case, with_attention(case, "sdpa"), *arrays))


def shares(case):
    """How much of a call's time is attention, in percent, with each of the two."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    own = attnpy.integrations.huggingface
    functions = {"HF": (sdpa_attention_forward, sdpa_mask)}
    functions["attnpy"] = own.attention_forward, own.attention_mask
    found = {}
    for name, (attend, make_mask) in functions.items():
        spent = []
        timed = functools.partial(time_into, spent, attend)
        transformers.AttentionInterface.register("timed", timed)
        transformers.AttentionMaskInterface.register("timed", make_mask)
        call = call_of(case, with_attention(case, "timed"), *case.arrays())
        call()
        spent.clear()
        begin = time.perf_counter()
        call()
        found[name] = 100 * sum(spent) / (time.perf_counter() - begin)
    return found


def time_into(spent, call, *arguments, **options):
    begin = time.perf_counter()
    result = call(*arguments, **options)
    spent.append(time.perf_counter() - begin)
    return result


WAYS = {"attnpy": attnpy_ways, "transformers": torch_ways}
