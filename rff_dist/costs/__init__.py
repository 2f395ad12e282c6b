"""What a fit will take on given workers: rates that are measured, and seconds that follow."""
