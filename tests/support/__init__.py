"""What the test files share.

reference    the oracle: attention in float64, obviously right
plain        the formula as a careful user would write it, and the error bound it sets
backward     the oracle of gradients
quotients    gradients against difference quotients
formulas     the oracles of layers: norms, activations, heads
statistics   the oracle of statistics: their formulas, from all weights
families     small models in the names of their checkpoints, and their arithmetic
embedding_gemma   the same of EmbeddingGemma 2
encoder_decoders   the same of those that translate, and a beam search
pictures     the same of models of pictures, and folders of them
fields       the tables of docs/models.md; hf_fields.json: fields of configurations
sentences    small folders of sentence-transformers
adapters     the same with adapters of tasks, as jina-embeddings-v3 has them
multi_vectors   small folders with late interaction, and the arithmetic of their vectors
rerankers    folders of language models that score pairs
readers      a folder for each class that reads one, and a call of it
drawn        problems of any kind, for hypothesis
arrays       numbers, and the ways in which arrays may be stored
comparisons  equal bits, or within a bound of what is exact
errors       errors that name their argument
calls        the extension module on one instruction set: its only caller in the tests
right_calls  a right call of each of its functions
public       all that is public
objects      an object of each public class
pool         calls of all that uses threads, and how many threads they use
processes    scripts in an interpreter of their own
pages        the examples on a page of docs/
deadly       peers of the benchmarks that end their process
faults       entry points called while allocations fail; faults.c makes them fail
pyconfig     pyconfig.h: what Python's headers ask about Windows, for tests/windows
guarded      arrays that touch pages which may not be read
kept         results in memory that held other results
interrupts   Ctrl-C at every moment of a call
reentry      code that runs in the middle of a call
tiny         a core of two files, for tests of setup.py
tutorial     the numbers that a tutorial prints
integers     the oracle of products with quantised matrices
gguf_files   small GGUF files, and models in them
compressed   folders of compressed-tensors
torch_files  files as PyTorch writes them
torch_models small models of Transformers, and inputs of several rows
torch_tools  PyTorch on one thread, and a tensor that wraps another
minilm       whether a real model is installed; smollm2, whether a language model is
"""
