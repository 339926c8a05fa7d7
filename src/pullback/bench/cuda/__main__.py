"""python -m pullback.bench.cuda: all cases, or those whose names are given."""

from pullback.bench.cuda.run import main

main()
