"""Refusal of a model that does not pool, in one line for all entries."""

NO_POOLING = (
    "this model makes text and no embeddings; serve an embedding model, or start with "
    '--pooler-config \'{"pooling_type": "LAST"}\' to take its last hidden states'
)
