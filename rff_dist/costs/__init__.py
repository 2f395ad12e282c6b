"""What a fit costs on given workers: measured rates, times predicted from them, and a simulation."""
