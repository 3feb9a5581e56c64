"""The scheduler without a model: simulated time, recorded schedules, pictures. No torch."""
