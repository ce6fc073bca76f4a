// RUN: meshweave-opt %s -p "dist-specialize-mesh{sizes=N=4}" | filecheck %s
// RUN: meshweave-opt %s -p "dist-specialize-mesh{mesh=\"x=3, y=5\"}" | filecheck %s --check-prefix=WHOLE
// RUN: not meshweave-opt %s -p "dist-specialize-mesh{sizes=M=4}" 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: not meshweave-opt %s -p dist-specialize-mesh 2>&1 | filecheck %s --check-prefix=LEFT

// CHECK: "dist.mesh"() {axes = "x=4, y=2"
// WHOLE: "dist.mesh"() {axes = "x=3, y=5"
// WRONG: no symbol "M" in mesh (x=N, y=2)
// LEFT: mesh (x=N, y=2) still has symbolic sizes
"dist.mesh"() {sym_name = "mesh", axes = "x=N, y=2"} : () -> ()
