// From StableHLO to machine code: every stage prints, and what it prints goes on to the next and runs at last.

// RUN: meshweave-opt %S/../../../examples/gpt2l/gpt2l.mlir -p dist-pipeline \
// RUN:   | meshweave-opt - -p lower-collectives | meshweave-opt - -p fuse-kernels | meshweave-opt - -p plan-memory \
// RUN:   | meshweave-opt - -p to-llvm > %t.mlir
// RUN: meshweave run %t.mlir --input  %S/../../../examples/gpt2l/in0.npy %S/../../../examples/gpt2l/in1.npy %S/../../../examples/gpt2l/in2.npy %S/../../../examples/gpt2l/in3.npy %S/../../../examples/gpt2l/in4.npy %S/../../../examples/gpt2l/in5.npy %S/../../../examples/gpt2l/in6.npy %S/../../../examples/gpt2l/in7.npy %S/../../../examples/gpt2l/in8.npy %S/../../../examples/gpt2l/in9.npy %S/../../../examples/gpt2l/in10.npy %S/../../../examples/gpt2l/in11.npy %S/../../../examples/gpt2l/in12.npy %S/../../../examples/gpt2l/in13.npy %S/../../../examples/gpt2l/in14.npy %S/../../../examples/gpt2l/in15.npy %S/../../../examples/gpt2l/in16.npy %S/../../../examples/gpt2l/in17.npy %S/../../../examples/gpt2l/in18.npy --expect %S/../../../examples/gpt2l/out0.npy --json | filecheck %s
// CHECK: "max_abs_err"
