"""What mean-field variational inference is made of: layers that draw, and priors."""
