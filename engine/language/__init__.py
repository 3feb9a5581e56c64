"""Text and its forms: tokenizers, conversations, grammars, and the processes that read hostile text."""
