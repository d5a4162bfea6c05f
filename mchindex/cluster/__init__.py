"""An index in shards on Ray, which gives the answers of one index. See docs/cluster.md."""

from mchindex.cluster.index import ClusterIndex

__all__ = ["ClusterIndex"]
