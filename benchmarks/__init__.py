"""What is fast, and compared with what: `python -m benchmarks`. See README.md here.

cases, layers, backward          problems: shapes, options, arrays, amount of work
rows, groups                     which cases are measured, and what they should reach
peers, ways, onnx_ways, tensors, lazily      how each library computes a case
measure, apart, children         one row timed; libraries in processes of their own
machine, quiet                   the machine's limits, by peak.c; who disturbs a sample
memory, footprint, overhead      memory of a call, size of an installation, a tiny call
compare                          two revisions
bounds, kinds                    what a row's time goes to, by samples of perf
experiments                      measurements that compare nothing
run, report                      rows measured, shown and kept
pages, plots                     docs/performance from what is kept
models                           whole models
"""
