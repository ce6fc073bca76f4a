// From StableHLO to machine code: every stage prints, and what it prints goes on to the next and runs at last.

// RUN: meshweave-opt %S/../../../examples/block/block.mlir -p dist-pipeline \
// RUN:   | meshweave-opt - -p lower-collectives | meshweave-opt - -p fuse-kernels | meshweave-opt - -p plan-memory \
// RUN:   | meshweave-opt - -p to-llvm > %t.mlir
// RUN: meshweave run %t.mlir --input  %S/../../../examples/block/in0.npy %S/../../../examples/block/in1.npy %S/../../../examples/block/in2.npy %S/../../../examples/block/in3.npy %S/../../../examples/block/in4.npy %S/../../../examples/block/in5.npy %S/../../../examples/block/in6.npy %S/../../../examples/block/in7.npy %S/../../../examples/block/in8.npy --expect %S/../../../examples/block/out0.npy --json | filecheck %s
// CHECK: "max_abs_err"
