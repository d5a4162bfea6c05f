"""What `mch demo` runs: one hash code per image compared with several.

`scenes_demo` draws pictures, trains a model on them, and measures an index with one code per image
against one with several. `photos_demo` indexes a folder of the user's pictures and searches for
some of them. Each writes one HTML page.
"""

from mchindex.demo.buckets import BucketsNeeded
from mchindex.demo.examples import ExampleAnswer, ExampleHit, ExampleQuery
from mchindex.demo.photos import PhotosDemo, photos_demo
from mchindex.demo.scenes import IMAGES, MODEL, PICTURES, ScenesDemo, scenes_demo

__all__ = [
    "IMAGES",
    "MODEL",
    "PICTURES",
    "BucketsNeeded",
    "ExampleAnswer",
    "ExampleHit",
    "ExampleQuery",
    "PhotosDemo",
    "ScenesDemo",
    "photos_demo",
    "scenes_demo",
]
