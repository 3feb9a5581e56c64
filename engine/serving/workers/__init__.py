"""What works beside the event loop and the steps: threads for prompts, processes for what may hang. Knows no model."""
