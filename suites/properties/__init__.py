"""The specification: what is promised, each promise once, on every backend and kind of arrays.

| file | promise |
|---|---|
| `test_round_trips.py` | a gather has each rank's object, to the last bit, and a broadcast src's |
| `test_plan.py` | the plan deals each sample once, which is proved for all N, W and batch sizes |
| `test_exactly_once.py` | each sample counts once, however it was dealt, or every rank names it |
| `test_same_bits.py` | a metric has one result at every world size, batch size, order, schedule |
| `test_padding.py` | padding never counts: that of shares, shapes, devices and torch's sampler |
| `test_one_error.py` | what fails on one rank is the same error on all, and no rank waits |
| `test_interrupted.py` | an interrupted evaluation that goes on ends as the whole one |

``pytest suites/properties --backend threads`` needs no framework and draws 100 examples of each
promise at each size. With ``--backend torch_cpu``, or under ``mpirun`` or ``torchrun``, 25 of each
travel to the ranks in one order. A promise that does not hold yet is an expected failure with its
reason.
"""
