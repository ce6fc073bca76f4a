// Wrong usage and wrong programs are one line. (tests/tools/test_run.py holds the exit statuses.)
// RUN: not meshweave run %s 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not meshweave run %s --mesh x=0 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not meshweave run %s --engine mpj 2>&1 | filecheck %s --check-prefix=ENGINE
// RUN: not meshweave run %s --dmup out 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not meshweave rnu %s 2>&1 | filecheck %s --check-prefix=COMMAND
// RUN: not meshweave run %t.none 2>&1 | filecheck %s --check-prefix=FILE
// RUN: not meshweave run - < /dev/null 2>&1 | filecheck %s --check-prefix=EMPTY

// AXIS: meshweave: error: {{.*}}run_usage.mlir:18:1: dist.layout: layout [z, _]: no axis "z" in mesh (x=2)
// SIZE: meshweave: error: --mesh: axis x=0: a size is at least 1
// ENGINE: meshweave: error: no engine "mpj"; did you mean "mpi"?
// OPTION: meshweave: error: no option "--dmup"; did you mean "--dump"?; see meshweave run --help
// COMMAND: meshweave: error: no command "rnu"; did you mean "run"?
// FILE: meshweave: error: cannot read {{.*}}.none: No such file or directory
// EMPTY: meshweave: error: <stdin>: the program is empty
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @main(%a: tensor<8x3xf32> {dist.layout = #dist.layout<"[z, _]">}) -> tensor<8x3xf32> {
  return %a : tensor<8x3xf32>
}
