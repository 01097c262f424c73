"""Whole models: rows, and how attnpy and its peers compute them.

encoders, decoders, generation, reuse, translation, sentences, pairs, pictures,
training, loading                what is measured
accuracy                         what 8 and 4 bits change in a trained model
in_transformers                  attnpy within Hugging Face's models
rows                             which cases, and what they should reach
folders                          random weights that every library reads
gguf_files                       the same in GGUF files, and trained ones of a package
exported                         BERT as PyTorch exports it
torch_decoder, transformers_ways, openvino_ways, ctranslate2_ways, llamacpp_ways
                                 how each library computes them
"""
