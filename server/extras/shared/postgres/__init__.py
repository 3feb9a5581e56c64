"""The tables of a PostgreSQL database, and what is done with those of files and batches."""
