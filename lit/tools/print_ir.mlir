// The module before and after passes, ours and MLIR's, nested or not, in the order they run.
// RUN: meshweave-opt %s -p "builtin.module(dist-propagate,func.func(canonicalize,cse),symbol-dce)" --mlir-print-ir-after-all -o /dev/null 2>&1 | filecheck %s --check-prefix=ALL
// RUN: meshweave-opt %s -p "dist-propagate,func.func(canonicalize,cse)" --mlir-print-ir-before-all -o /dev/null 2>&1 | filecheck %s --check-prefix=BEFORE
// RUN: meshweave-opt %s -p "dist-propagate,func.func(canonicalize,cse)" --mlir-print-ir-before=cse --mlir-print-ir-after=dist-propagate -o /dev/null 2>&1 | filecheck %s --check-prefix=SOME

// ALL:      IR Dump After dist-propagate
// ALL:      arith.addi
// ALL:      IR Dump After canonicalize
// ALL-NOT:  arith.addi
// ALL:      IR Dump After cse
// ALL:      IR Dump After symbol-dce
// ALL-NOT:  IR Dump

// BEFORE:     IR Dump Before dist-propagate
// BEFORE:     IR Dump Before canonicalize
// BEFORE:     IR Dump Before cse
// BEFORE-NOT: IR Dump

// SOME:     IR Dump After dist-propagate
// SOME:     IR Dump Before cse
// SOME-NOT: IR Dump
func.func @constant() -> i32 {
  %0 = arith.constant 1 : i32
  %1 = arith.addi %0, %0 : i32
  return %1 : i32
}
