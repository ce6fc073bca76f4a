// One table for all passes, on standard error.
// RUN: meshweave-opt %s --dist-propagate --canonicalize --mlir-timing 2>&1 >/dev/null | filecheck %s

// CHECK: Execution time report
// CHECK: dist-propagate
// CHECK: CanonicalizerPass
// CHECK: Total
func.func @empty() {
  return
}
