"""flatten_ and cat_."""
