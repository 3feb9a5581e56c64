"""Models without a class of their own here: transformers' modules over our ragged batch, paged cache and products."""
