"""Page that shows the engine at work: its files, and the stream of steps that it reads."""
