"""The catalog as documents: engines, pools, fabrics and models, validated whole.

catalog.py reads a text into a Catalog or into all of its errors; engines.py, pools.py and models.py
hold the sections; source.py reads where weights come from; diff.py tells two catalogs apart.
"""
