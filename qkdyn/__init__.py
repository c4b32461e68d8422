"""A laboratory for one question: what happens to attention when the query-key circuit learns faster?"""

__version__ = "0.1.0"
