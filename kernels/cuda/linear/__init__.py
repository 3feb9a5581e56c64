"""Products with weights, by the kind of weight and the number of rows."""
