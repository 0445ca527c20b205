"""What a site allows of pods, and what a task may ask of its own."""
