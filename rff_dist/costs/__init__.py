"""What a fit will take on given workers: rates that are measured, seconds that follow, a simulation."""
