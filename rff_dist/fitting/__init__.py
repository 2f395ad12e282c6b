"""What every fit shares: options, the memory plan, measured columns, and predicting passes."""
