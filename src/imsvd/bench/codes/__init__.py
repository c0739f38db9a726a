"""`imsvd bench codes`: our code against what people would use instead, at equal bits.

`quantizers` and `autoencoder` are the alternatives, `ours` trains the head, `retrieval` and `measures`
are what is measured, `run` is the entry, `report` writes the tables.
"""

from imsvd.bench.codes.run import CodesSettings, compare_codes

__all__ = ["CodesSettings", "compare_codes"]
