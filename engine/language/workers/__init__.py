"""Workers beside the event loop and the steps: threads for prompts, processes for work that may hang. Know no model."""
