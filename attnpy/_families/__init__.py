"""The supported families of models, each declared in one file.

A declaration is data: how fields of a configuration are used, how the model is built
from them, and the names in its checkpoints. `models` uses it to make models, and
`checkpoints` uses the names.
"""

from __future__ import annotations

from attnpy._families.albert import ALBERT
from attnpy._families.arcee import ARCEE
from attnpy._families.bart import BART, M2M100, MARIAN, MBART, PEGASUS
from attnpy._families.bert import BERT
from attnpy._families.bloom import BLOOM
from attnpy._families.clip import (
    CLIP,
    CLIP_TEXT,
    CLIP_VISION,
    SIGLIP,
    SIGLIP_TEXT,
    SIGLIP_VISION,
)
from attnpy._families.cohere import COHERE, COHERE2
from attnpy._families.deberta import DEBERTA, DEBERTA_V2
from attnpy._families.declaration import Declaration
from attnpy._families.distilbert import DISTILBERT
from attnpy._families.electra import ELECTRA
from attnpy._families.embedding_gemma import EMBEDDING_GEMMA2
from attnpy._families.ernie import ERNIE4_5
from attnpy._families.esm import ESM
from attnpy._families.eurobert import EUROBERT
from attnpy._families.exaone import EXAONE, EXAONE4
from attnpy._families.falcon import FALCON
from attnpy._families.gemma import GEMMA, GEMMA2, GEMMA3
from attnpy._families.glm import GLM, GLM4
from attnpy._families.gpt2 import GPT2
from attnpy._families.gpt_bigcode import GPT_BIGCODE
from attnpy._families.gpt_neo import GPT_NEO
from attnpy._families.gpt_neox import GPT_NEOX
from attnpy._families.gpt_oss import GPT_OSS
from attnpy._families.gptj import GPTJ
from attnpy._families.granite import GRANITE, GRANITE4, GRANITEMOE
from attnpy._families.gte import GTE, GTE_NEW
from attnpy._families.jina import JINA_V3
from attnpy._families.jina_bert import JINA_BERT, JINA_BERT_CODE
from attnpy._families.llama import LLAMA
from attnpy._families.mistral import MISTRAL
from attnpy._families.mixtral import MIXTRAL
from attnpy._families.modernbert import MODERNBERT
from attnpy._families.mpnet import MPNET
from attnpy._families.mpt import MPT
from attnpy._families.nemotron import NEMOTRON
from attnpy._families.nomic_bert import NOMIC_BERT
from attnpy._families.olmo import OLMO2, OLMO3
from attnpy._families.olmoe import OLMOE
from attnpy._families.opt import OPT
from attnpy._families.phi import PHI
from attnpy._families.phi3 import PHI3
from attnpy._families.qwen import QWEN2, QWEN3
from attnpy._families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from attnpy._families.roberta import (
    CAMEMBERT,
    DATA2VEC_TEXT,
    ROBERTA,
    ROBERTA_PRELAYERNORM,
    XLM_ROBERTA,
    XLM_ROBERTA_XL,
)
from attnpy._families.seed_oss import SEED_OSS
from attnpy._families.smollm3 import SMOLLM3
from attnpy._families.stablelm import STABLELM
from attnpy._families.starcoder import STARCODER2
from attnpy._families.t5 import MT5, T5, T5_ENCODER
from attnpy._families.vit import DEIT, VIT

# By `model_type`, in the order in which messages name them.
FAMILIES: dict[str, Declaration] = {
    family.model_type: family
    for family in (
        *(
            BERT,
            ROBERTA,
            XLM_ROBERTA,
            XLM_ROBERTA_XL,
            ROBERTA_PRELAYERNORM,
            CAMEMBERT,
            DATA2VEC_TEXT,
            DISTILBERT,
            MPNET,
            ELECTRA,
            ALBERT,
        ),
        *(DEBERTA, DEBERTA_V2),
        *(MODERNBERT, EUROBERT, NOMIC_BERT, GTE, GTE_NEW, T5_ENCODER, ESM, JINA_V3),
        *(JINA_BERT_CODE, JINA_BERT),  # whose code is told by the longer name
        *(VIT, DEIT, CLIP, CLIP_VISION, CLIP_TEXT, SIGLIP, SIGLIP_VISION, SIGLIP_TEXT),
        *(GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, GEMMA, GEMMA2, GEMMA3, SMOLLM3),
        *(GRANITE, PHI, GPT_NEOX, OLMO2, OLMO3, EXAONE, EXAONE4, ERNIE4_5),
        *(GRANITE4, GPT_NEO, GPT_BIGCODE, OPT, GPTJ, FALCON, BLOOM, MPT),
        *(STARCODER2, STABLELM, NEMOTRON, COHERE, COHERE2, GLM, GLM4, ARCEE, SEED_OSS),
        *(MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE, GRANITEMOE, GPT_OSS, EMBEDDING_GEMMA2),
        *(T5, MT5, BART, MBART, MARIAN, PEGASUS, M2M100),
    )
}
