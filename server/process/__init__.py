"""Process around the app: signals, watchdog, banner, garbage collection, limits of files and of the log."""
