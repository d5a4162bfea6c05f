"""What `mch demo` runs: one hash code per image compared with several.

`scenes_demo` draws pictures, trains a model on them, and measures an index with one code per image
against one with several. `photos_demo` indexes a folder of the user's pictures and searches for
some of them. Each writes one HTML page.
"""
