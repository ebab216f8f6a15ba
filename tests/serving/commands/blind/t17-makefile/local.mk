# this machine has one free H200
TP   = 1
GPUS = 3
SEQS = 64
