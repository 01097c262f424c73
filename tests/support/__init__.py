"""What the test files share.

reference    the oracle: attention in float64, obviously right
plain        the formula as a careful user would write it, and the error bound it sets
backward     the oracle of gradients
formulas     the oracles of layers: norms, activations, heads
families     small models in the names of their checkpoints, likewise
drawn        problems of any kind, for hypothesis
arrays       numbers, and the ways in which arrays may be stored
comparisons  equal bits, or within a bound of what is exact
errors       errors that name their argument
calls        the extension module on one instruction set: its only caller in the tests
processes    scripts in an interpreter of their own
pages        the examples on a page of docs/
faults       entry points called while allocations fail; faults.c makes them
guarded      arrays that touch pages which may not be read
tutorial     the numbers that a tutorial prints
minilm       whether a real model is installed
"""
