"""Parts of `chat` and `generate`: the model that answers, here or at a URL, and the view of its answer."""
