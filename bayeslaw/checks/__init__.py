"""What is wrong with a fit, found without a statistician."""
