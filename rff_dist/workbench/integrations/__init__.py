"""Other programs: who hears of jobs and of models, and formats that others read."""
