"""The process around the app: signals, banner, garbage collection, file limits."""
