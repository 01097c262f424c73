"""Programs that look for what no test thought of: see `python tests/fuzz --help`.

calls      every public function, with arguments that are right and that are not
changing   arguments that change while they are looked at, and after
gradients  all that has gradients, against float64 and difference quotients
kept       results in memory that was another's before them
reentry    finalisers and other code that changes arrays inside of calls
files      configurations, weights and arrays in files, damaged
runs       files of training runs, damaged
saves      signals and kills while files are written, and while runs are read
signals    handlers that raise, return or call at random moments of calls
values     what arguments are made of
findings   what is a finding, and what a call may raise
"""
