"""What every fit shares: options, the memory plan, measured columns, predictions."""
