"""JSON Schema of any draft, brought to one form: 2020-12's keywords, and references within the schema alone."""
