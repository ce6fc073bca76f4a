// Wrong usage is one line that says what was probably meant. (tests/tools/test_opt.py holds the exit statuses.)
// RUN: not meshweave-opt %s -p dist-propagat 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not meshweave-opt %s -p "canonicalize{max-iteration=2}" 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not meshweave-opt %s -p "canonicalize{max-iterations=many}" 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not meshweave-opt %s -p "func.func(dist-propagate)" 2>&1 | filecheck %s --check-prefix=NEST
// RUN: not meshweave-opt %s -p "func.func(one-shot-bufferize)" 2>&1 | filecheck %s --check-prefix=MODULE
// RUN: not meshweave-opt %s -p "gpu.modul(cse)" 2>&1 | filecheck %s --check-prefix=ANCHOR
// RUN: not meshweave-opt %s -p "cse(" 2>&1 | filecheck %s --check-prefix=SYNTAX
// RUN: not meshweave-opt %s --split-input-fil 2>&1 | filecheck %s --check-prefix=FLAG

// PASS:   meshweave-opt: no pass "dist-propagat"; did you mean "dist-propagate"?
// OPTION: meshweave-opt: canonicalize has no option "max-iteration"; did you mean "max-iterations"?
// VALUE:  meshweave-opt: canonicalize does not take {max-iterations=many} as options
// NEST:   meshweave-opt: dist-propagate runs on the whole module: write it outside of func.func(...)
// MODULE: meshweave-opt: one-shot-bufferize runs on builtin.module, not on func.func: write it outside
// ANCHOR: meshweave-opt: no op "gpu.modul" to nest passes in; did you mean "gpu.module"?
// SYNTAX: meshweave-opt: pipeline: expected the name of a pass at character 5 (the end)
// FLAG:   meshweave-opt: no option or pass "--split-input-fil"; did you mean "--split-input-file"?
func.func @empty() {
  return
}
