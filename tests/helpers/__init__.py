"""What tests share: oracles, sample codes, pictures, small models."""
