// From StableHLO to machine code: every stage prints, and what it prints goes on to the next and runs at last.

// RUN: meshweave-opt %S/../../../examples/mlp/mlp.mlir -p dist-pipeline \
// RUN:   | meshweave-opt - -p lower-collectives | meshweave-opt - -p fuse-kernels | meshweave-opt - -p plan-memory \
// RUN:   | meshweave-opt - -p to-llvm > %t.mlir
// RUN: meshweave run %t.mlir --input  %S/../../../examples/mlp/in0.npy %S/../../../examples/mlp/in1.npy %S/../../../examples/mlp/in2.npy %S/../../../examples/mlp/in3.npy %S/../../../examples/mlp/in4.npy --expect %S/../../../examples/mlp/out0.npy --json | filecheck %s
// CHECK: "max_abs_err"
