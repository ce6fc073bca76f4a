// Errors are compared with what comments expect, by line and text.
// RUN: meshweave-opt %s --split-input-file --verify-diagnostics
// RUN: sed -e 's/undeclared/declared/' %s | not meshweave-opt --split-input-file --verify-diagnostics 2>&1 | filecheck %s

// CHECK: <stdin>:{{[0-9]+}}:{{[0-9]+}}: error: unexpected error: use of undeclared SSA value name
// CHECK: <stdin>:{{[0-9]+}}:1: error: expected error "use of declared SSA value name" was not produced
func.func @below() -> i32 {
  // expected-error @below {{use of undeclared SSA value name}}
  return %0 : i32
}

// -----

// expected-error @+2 {{expect{{ed|ing}} '('}}

func.func @two_lines_up {}

// -----

func.func @same_line() -> i32 {
  return %0 : i32 // expected-error {{undeclared}}
}

// -----

// Our dialects have no syntax of their own, which MLIR's parser does not say.
// expected-error @below {{dist.mesh is written in generic form, "dist.mesh"(...)}}
dist.mesh @mesh

// -----

// expected-note @below {{existing symbol}}
func.func @twice() { return }
// expected-error @below {{redefinition of symbol named 'twice'}}
func.func @twice() { return }
