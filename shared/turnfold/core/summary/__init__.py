"""Write, check and merge summaries without a model, and prepare the input of a model."""
