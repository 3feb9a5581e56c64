"""Products with weights, by what the weights and the number of rows are."""
