"""Whole models: rows, and how attnpy and its peers compute them."""
