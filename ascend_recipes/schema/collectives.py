"""Rows of `registry/collectives/`: what a communication library does unless told otherwise."""

from ascend_recipes.schema.base import Count
from ascend_recipes.schema.rows import FactRow


class CollectivesRow(FactRow):
    """A library of collective operations: its own ports and buffers."""

    first_port: Count
    """First port that it takes on a host."""
    host_ports: Count
    """Number of consecutive ports that it takes there."""
    device_port: Count
    """Port that it takes on each device."""
    buffer_mib: Count
    """Buffer of a communicator in MiB."""
