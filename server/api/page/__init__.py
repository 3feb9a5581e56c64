"""HTTP routes of the page, of its stream of steps and of explanations of results."""
