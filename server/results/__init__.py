"""Results that outlive a request, a folder each: SQLite, PostgreSQL, batches. Any of them can be deleted."""
