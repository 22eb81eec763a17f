"""A Common Machine Interface driver for Amazon EC2.

Arrows go one way: __main__ → services → driver → instances, catalog, clients, spec, volumes → errors → contract.
"""
