"""What operators are told of each request: a line of the log, a span of a trace."""
