// Attributes of our dialects print as aliases, and what is printed reads back and prints alike.
// RUN: meshweave-opt %s | filecheck %s
// RUN: meshweave-opt %s > %t.once && meshweave-opt %t.once | diff %t.once -

// CHECK:      #layout = #dist.layout<"[x, _]">
// CHECK-NEXT: #layout1 = #dist.layout<"[_, x]">
// CHECK-NEXT: module {
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()

// CHECK-LABEL: func.func @moves
// CHECK-SAME:    (%[[A:.*]]: tensor<8x6xf32> {dist.layout = #layout})
// CHECK-NEXT:  "dist.redistribute"(%[[A]]) {source = #layout, target = #layout1}
func.func @moves(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}) -> tensor<8x6xf32> {
  %0 = "dist.redistribute"(%a) {source = #dist.layout<"[x, _]">, target = #dist.layout<"[_, x]">}
      : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}

// What looks like an attribute inside a string stays as it is.
// CHECK-LABEL: func.func @strings
// CHECK-SAME:    note = "#dist.layout<\22[x]\22>"
func.func @strings() attributes {note = "#dist.layout<\"[x]\">"} {
  return
}
