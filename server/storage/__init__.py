"""Storage of kept jobs, files and batches: in SQLite, in PostgreSQL or in memory."""
