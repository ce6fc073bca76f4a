// Parts are files of their own, and keep the line numbers of the whole.
// RUN: meshweave-opt %s --split-input-file --mlir-print-debuginfo | filecheck %s
// RUN: meshweave-opt --split-input-file < %s | filecheck %s --check-prefix=STDIN

// CHECK: func.func @same_name
// CHECK: loc("{{.*}}split_input_file.mlir":8:1)
// STDIN-COUNT-2: func.func @same_name
func.func @same_name() {
  return
}

// -----

// CHECK: // -----
// CHECK: func.func @same_name
// CHECK: loc("{{.*}}split_input_file.mlir":17:1)
func.func @same_name() {
  return
}
