"""Write, check and merge summaries without a model, and prepare the input of one that uses a model."""
