"""Model families, one module each, and the code that they share."""
