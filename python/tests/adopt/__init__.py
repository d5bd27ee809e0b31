"""Outputs over the memory of several tensors."""
