"""The page, the stream of steps that it shows, and what explains a result."""
