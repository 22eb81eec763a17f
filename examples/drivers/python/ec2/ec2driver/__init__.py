"""A Common Machine Interface driver for Amazon EC2, on the kit of sdk/python.

Arrows go one way: __main__ → backend → launch → match, catalog → instances, clients, spec, state → errors.
"""
