"""Results in PostgreSQL that several servers share: leases, take-over, and the way to the server that runs a job."""
