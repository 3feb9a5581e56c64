"""Telemetry for operators: a log line and a trace span per request."""
