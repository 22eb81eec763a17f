"""A Common Machine Interface driver for Amazon EC2.

Arrows go one way: __main__ → services → driver → launch → claim, catalog → instances, clients, spec, state, volumes →
errors → contract.
"""
