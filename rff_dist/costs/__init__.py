"""What a fit costs on given workers: measured rates, and times predicted from them."""
