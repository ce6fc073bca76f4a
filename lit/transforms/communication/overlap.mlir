// RUN: meshweave-opt %s -p dist-overlap{everywhere=true},canonicalize,cse | filecheck %s
// RUN: meshweave-opt %s -p dist-overlap,canonicalize,cse | filecheck %s --check-prefix=OFF

"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()

// The gather of trip k + 1 stands before what trip k computes; the first comes before the loop, the last trip behind it.
// CHECK-LABEL: func.func @ahead
// CHECK: %[[FIRST:.*]] = "dist.all_gather"
// CHECK: %[[L:.*]]:2 = scf.for %[[K:.*]] = %c0 to %c2 step %c1 iter_args(%[[SUM:.*]] = %{{.*}}, %[[G:.*]] = %[[FIRST]])
// CHECK-NEXT: %[[NEXT:.*]] = arith.addi %[[K]], %c1
// CHECK: extract_slice %arg0[0, %{{.*}}]
// CHECK-NEXT: %[[COMING:.*]] = "dist.all_gather"
// CHECK-NEXT: %[[DONE:.*]] = arith.addf %[[SUM]], %[[G]]
// CHECK-NEXT: scf.yield %[[DONE]], %[[COMING]]
// CHECK: %[[R:.*]] = arith.addf %[[L]]#0, %[[L]]#1
// CHECK-NEXT: return %[[R]]
func.func @ahead(%a: tensor<4x6xf32>, %z: tensor<8x2xf32>) -> tensor<8x2xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %r = scf.for %k = %c0 to %c3 step %c1 iter_args(%s = %z) -> (tensor<8x2xf32>) {
    %o = arith.muli %k, %c2 : index
    %p = tensor.extract_slice %a[0, %o] [4, 2] [1, 1] : tensor<4x6xf32> to tensor<4x2xf32>
    %g = "dist.all_gather"(%p) {axes = ["x"], dim = 0 : i64} : (tensor<4x2xf32>) -> tensor<8x2xf32>
    %n = arith.addf %s, %g : tensor<8x2xf32>
    scf.yield %n : tensor<8x2xf32>
  }
  return %r : tensor<8x2xf32>
}

// What the loop carries cannot be sent before it is there.
// CHECK-LABEL: func.func @carried
// CHECK: scf.for {{.*}} -> (tensor<4xf32>) {
// CHECK-NEXT: "dist.all_reduce"
// CHECK-NOT: dist.all_reduce
func.func @carried(%a: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %r = scf.for %k = %c0 to %c3 step %c1 iter_args(%s = %a) -> (tensor<4xf32>) {
    %n = "dist.all_reduce"(%s) {axes = ["x"], kind = "sum"} : (tensor<4xf32>) -> tensor<4xf32>
    scf.yield %n : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}

// What is sent is computed: that of the next trip while this trip's is on its way. What the result goes into waits.
// CHECK-LABEL: func.func @behind
// CHECK: %[[P:.*]] = math.exp
// CHECK: %[[L:.*]]:2 = scf.for %[[K:.*]] = %c0 to %c2 step %c1 iter_args(%[[INTO:.*]] = %{{.*}}, %[[SENT:.*]] = %[[P]])
// CHECK: %[[R:.*]] = "dist.all_reduce"(%[[SENT]]) {axes = ["x"], dist.early, kind = "sum"}
// CHECK: %[[NEXT:.*]] = math.exp
// CHECK: %[[DONE:.*]] = tensor.insert_slice %[[R]] into %[[INTO]][0, %{{.*}}]
// CHECK-NEXT: scf.yield %[[DONE]], %[[NEXT]]
// CHECK: %[[LAST:.*]] = "dist.all_reduce"(%[[L]]#1) {axes = ["x"], kind = "sum"}
// CHECK: tensor.insert_slice %[[LAST]] into %[[L]]#0[0, 4]
func.func @behind(%a: tensor<4x6xf32>, %z: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %r = scf.for %k = %c0 to %c3 step %c1 iter_args(%s = %z) -> (tensor<4x6xf32>) {
    %o = arith.muli %k, %c2 : index
    %p = tensor.extract_slice %a[0, %o] [4, 2] [1, 1] : tensor<4x6xf32> to tensor<4x2xf32>
    %e = math.exp %p : tensor<4x2xf32>
    %g = "dist.all_reduce"(%e) {axes = ["x"], kind = "sum"} : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %n = tensor.insert_slice %g into %s[0, %o] [4, 2] [1, 1] : tensor<4x2xf32> into tensor<4x6xf32>
    scf.yield %n : tensor<4x6xf32>
  }
  return %r : tensor<4x6xf32>
}

// A state that the first part steps on is a trip ahead too; what the second part reads of the first is handed on.
// CHECK-LABEL: func.func @with_a_state
// CHECK: %[[S0:.*]] = math.exp %arg0
// CHECK-NEXT: %[[L:.*]]:2 = scf.for {{.*}} iter_args(%[[S:.*]] = %[[S0]], %[[T:.*]] = %arg1)
// CHECK-NEXT: %[[R:.*]] = "dist.all_reduce"(%[[S]]) {axes = ["x"], dist.early, kind = "max"}
// CHECK-NEXT: %[[S1:.*]] = math.exp %[[S]]
// CHECK-NEXT: %[[Y:.*]] = arith.addf %[[R]], %[[S]]
// CHECK-NEXT: %[[T1:.*]] = arith.addf %[[T]], %[[Y]]
// CHECK-NEXT: scf.yield %[[S1]], %[[T1]]
// CHECK: %[[R1:.*]] = "dist.all_reduce"(%[[L]]#0) {axes = ["x"], kind = "max"}
func.func @with_a_state(%a: tensor<4xf32>, %z: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %r:2 = scf.for %k = %c0 to %c3 step %c1 iter_args(%s = %a, %t = %z) -> (tensor<4xf32>, tensor<4xf32>) {
    %e = math.exp %s : tensor<4xf32>
    %g = "dist.all_reduce"(%e) {axes = ["x"], kind = "max"} : (tensor<4xf32>) -> tensor<4xf32>
    %y = arith.addf %g, %e : tensor<4xf32>
    %n = arith.addf %t, %y : tensor<4xf32>
    scf.yield %e, %n : tensor<4xf32>, tensor<4xf32>
  }
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xf32>
}

// A ring: what goes on is sent before it is read.
// CHECK-LABEL: func.func @around
// CHECK: scf.for
// CHECK-NEXT: "dist.permute"({{.*}}) {axes = ["x"], dist.early
// CHECK-NEXT: arith.addf
// CHECK-NEXT: scf.yield
func.func @around(%a: tensor<4xf32>, %z: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %r:2 = scf.for %k = %c0 to %c3 step %c1 iter_args(%s = %a, %t = %z) -> (tensor<4xf32>, tensor<4xf32>) {
    %g = "dist.permute"(%s) {axes = ["x"], sources = [1, 0]} : (tensor<4xf32>) -> tensor<4xf32>
    %n = arith.addf %t, %s : tensor<4xf32>
    scf.yield %g, %n : tensor<4xf32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}

// Slices that are written out: what needs the first sum stands back until the second has been issued.
// CHECK-LABEL: func.func @written_out
// CHECK: %[[P:.*]] = math.exp %arg0
// CHECK-NEXT: %[[R:.*]] = "dist.all_reduce"(%[[P]]) {axes = ["x"], dist.early, kind = "sum"}
// CHECK-NEXT: %[[Q:.*]] = math.exp %arg1
// CHECK-NEXT: %[[S:.*]] = "dist.all_reduce"(%[[Q]]) {axes = ["x"], dist.early, kind = "sum"}
// CHECK-NEXT: %[[X:.*]] = math.tanh %[[R]]
// CHECK-NEXT: %[[Y:.*]] = math.tanh %[[S]]
func.func @written_out(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %p = math.exp %a : tensor<4xf32>
  %r = "dist.all_reduce"(%p) {axes = ["x"], kind = "sum"} : (tensor<4xf32>) -> tensor<4xf32>
  %x = math.tanh %r : tensor<4xf32>
  %q = math.exp %b : tensor<4xf32>
  %s = "dist.all_reduce"(%q) {axes = ["x"], kind = "sum"} : (tensor<4xf32>) -> tensor<4xf32>
  %y = math.tanh %s : tensor<4xf32>
  return %x, %y : tensor<4xf32>, tensor<4xf32>
}

// Without a hint, and with nothing that says everywhere, nothing moves.
// OFF-NOT: dist.early
// OFF-LABEL: func.func @written_out
// OFF: math.tanh
// OFF: math.exp
