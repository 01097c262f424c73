"""What the test files share.

reference    the oracle: attention in float64, obviously right
plain        the formula as a careful user would write it, and the error bound it sets
families     small models in the names of their checkpoints, likewise in float64
arrays       numbers, and the ways that arrays may be stored
comparisons  equal bits, or within a bound of what is exact
calls        the extension module on one instruction set: its only caller in the tests
processes    scripts in an interpreter of their own
guarded      arrays that touch pages which may not be read
minilm       whether a real model is installed
"""
