"""Files of models: names, folders and GGUF files, their tensors, formats of quantized weights, tokenizers."""
