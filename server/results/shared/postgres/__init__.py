"""Tables of the PostgreSQL database, and the queries for files and batches."""
