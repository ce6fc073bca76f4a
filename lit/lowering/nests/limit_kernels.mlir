// RUN: meshweave-opt %s --split-input-file -p lower-collectives,fuse-kernels,limit-kernels | filecheck %s

// Rows that nobody reads are not computed, and a mean ends where its mask does, which is gone.

// CHECK:      "mw.kernel"
// CHECK-NOT:    arith.select
// CHECK:        "mw.accumulator"
// CHECK:      {inputs = [tensor<64x8xf32>, index], limits = array<i64: 1, 1>, {{.*}}reductions = array<i64: 1>, sizes = array<i64: 8, 64>
// CHECK:      "mw.kernel"
// CHECK:        arith.subf
// CHECK:      {inputs = [tensor<64x8xf32>, tensor<8xf32>, index], limits = array<i64: 0, 2>, {{.*}}sizes = array<i64: 64, 8>
// CHECK-LABEL: func.func @main
// CHECK-NEXT:    %[[N:.*]] = tensor.extract %arg1[]
// CHECK-NEXT:    %[[END:.*]] = arith.index_cast %[[N]]
// CHECK:         %[[SUM:.*]] = "mw.launch"(%arg0, %[[END]], %{{.*}}) {kernel = @k{{.*}}, outs = 1 : i64}
// CHECK:         "mw.launch"(%arg0, %[[SUM]], %[[END]], %{{.*}}) {kernel = @k{{.*}}, outs = 1 : i64}
func.func @main(%x: tensor<64x8xf32> {dist.lengths = ["n", ""]}, %n: tensor<i64> {dist.length = "n"}) -> (tensor<64x8xf32> {dist.lengths = ["n", ""]}) {
  %size = tensor.extract %n[] : tensor<i64>
  %end = arith.index_cast %size : i64 to index
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8xf32>
  %start = linalg.fill ins(%zero : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
  %sum = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<64x8xf32>) outs(%start : tensor<8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %valid = arith.cmpi ult, %i, %end : index
    %kept = arith.select %valid, %in, %zero : f32
    %s = arith.addf %out, %kept : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  %e2 = tensor.empty() : tensor<64x8xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x, %sum : tensor<64x8xf32>, tensor<8xf32>) outs(%e2 : tensor<64x8xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %d = arith.subf %a, %b : f32
    linalg.yield %d : f32
  } -> tensor<64x8xf32>
  return %y : tensor<64x8xf32>
}

// -----

// A product whose depth ends: both operands hold zeros behind it, so their copies go, and the loop ends there.

// CHECK:      "mw.kernel"
// CHECK:        arith.mulf
// CHECK:      {contraction, inputs = [tensor<8x64xf32>, tensor<64x4xf32>, index], limits = array<i64: 2, 2>, {{.*}}sizes = array<i64: 8, 4, 64>
// CHECK-NOT:  "mw.kernel"
// CHECK-LABEL: func.func @main
// CHECK:         "mw.launch"(%arg0, %arg1, %{{.*}}, %{{.*}}) {kernel = @k{{.*}}, outs = 1 : i64}
// CHECK-NEXT:    return
func.func @main(%a: tensor<8x64xf32> {dist.lengths = ["", "n"]}, %b: tensor<64x4xf32>, %n: tensor<i64> {dist.length = "n"}) -> tensor<8x4xf32> {
  %size = tensor.extract %n[] : tensor<i64>
  %end = arith.index_cast %size : i64 to index
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<8x64xf32>
  %a0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<8x64xf32>) outs(%e0 : tensor<8x64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %valid = arith.cmpi ult, %i, %end : index
    %kept = arith.select %valid, %in, %zero : f32
    linalg.yield %kept : f32
  } -> tensor<8x64xf32>
  %e1 = tensor.empty() : tensor<64x4xf32>
  %b0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<64x4xf32>) outs(%e1 : tensor<64x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 0 : index
    %valid = arith.cmpi ult, %i, %end : index
    %kept = arith.select %valid, %in, %zero : f32
    linalg.yield %kept : f32
  } -> tensor<64x4xf32>
  %e2 = tensor.empty() : tensor<8x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%e2 : tensor<8x4xf32>) -> tensor<8x4xf32>
  %c = linalg.matmul ins(%a0, %b0 : tensor<8x64xf32>, tensor<64x4xf32>) outs(%start : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %c : tensor<8x4xf32>
}

// -----

// What a gather may read has all its rows, and with them whatever they are computed from.

// CHECK-NOT:  limits = array<i64: 0
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x8xf32> {dist.lengths = ["n", ""]}, %places: tensor<4xindex>, %n: tensor<i64> {dist.length = "n"}) -> tensor<4x8xf32> {
  %e0 = tensor.empty() : tensor<64x8xf32>
  %y = linalg.exp ins(%x : tensor<64x8xf32>) outs(%e0 : tensor<64x8xf32>) -> tensor<64x8xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%places : tensor<4xindex>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%p: index, %out: f32):
    %j = linalg.index 1 : index
    %v = tensor.extract %y[%p, %j] : tensor<64x8xf32>
    linalg.yield %v : f32
  } -> tensor<4x8xf32>
  return %z : tensor<4x8xf32>
}

// -----

// Ranks that share rows compute those of their blocks that there are, also where a gather puts them together.

// CHECK-LABEL: func.func {{.*}}@main
// CHECK:         %[[N:.*]] = arith.index_cast
// CHECK:         %[[M:.*]] = "mw.member"() {group = 0 : i64}
// CHECK:         %[[AT:.*]] = arith.muli %[[M]], %{{.*}} : index
// CHECK-NEXT:    %[[LEFT:.*]] = arith.subi %[[N]], %[[AT]] : index
// CHECK:         %[[ROWS:.*]] = arith.minsi %{{.*}}, %{{.*}} : index
// CHECK:         %[[E:.*]] = "mw.launch"(%arg0, %[[ROWS]], %{{.*}})
// CHECK:         "mw.collective"(%[[E]], %{{.*}})
// CHECK:         "mw.launch"(%{{.*}}, %{{.*}}, %[[ROWS]], %[[N]], %{{.*}})
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func public @main(%x: tensor<8x4xf32> {dist.layout = #dist.layout<"[x, _]">, dist.global = tensor<16x4xf32>, dist.lengths = ["n", ""]}, %n: tensor<i64> {dist.length = "n", dist.layout = #dist.layout<"[]">, dist.global = tensor<i64>}) -> (tensor<8x16xf32> {dist.layout = #dist.layout<"[x, _]">, dist.global = tensor<16x16xf32>, dist.lengths = ["n", "n"]}) {
  %e0 = tensor.empty() : tensor<8x4xf32>
  %y = linalg.exp ins(%x : tensor<8x4xf32>) outs(%e0 : tensor<8x4xf32>) -> tensor<8x4xf32>
  %all = "dist.all_gather"(%y) {axes = ["x"], dim = 0 : i64} : (tensor<8x4xf32>) -> tensor<16x4xf32>
  %zero = arith.constant 0.0 : f32
  %e1 = tensor.empty() : tensor<8x16xf32>
  %start = linalg.fill ins(%zero : f32) outs(%e1 : tensor<8x16xf32>) -> tensor<8x16xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (j, k)>, affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%y, %all : tensor<8x4xf32>, tensor<16x4xf32>) outs(%start : tensor<8x16xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %p = arith.mulf %a, %b : f32
    %s = arith.addf %out, %p : f32
    linalg.yield %s : f32
  } -> tensor<8x16xf32>
  return %z : tensor<8x16xf32>
}

// -----

// The last row that there is comes behind all others: n are computed.

// CHECK:      limits = array<i64: 0, 2>, {{.*}}sizes = array<i64: 64, 4, 8>
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<64x8xf32> {dist.lengths = ["n", ""]}, %w: tensor<8x4xf32>, %n: tensor<i64> {dist.length = "n"}) -> tensor<4xf32> {
  %size = tensor.extract %n[] : tensor<i64>
  %one = arith.constant -1 : i64
  %before = arith.addi %size, %one : i64
  %last = arith.index_cast %before : i64 to index
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%e : tensor<64x4xf32>) -> tensor<64x4xf32>
  %y = linalg.matmul ins(%x, %w : tensor<64x8xf32>, tensor<8x4xf32>) outs(%start : tensor<64x4xf32>) -> tensor<64x4xf32>
  %row = tensor.extract_slice %y[%last, 0] [1, 4] [1, 1] : tensor<64x4xf32> to tensor<4xf32>
  %e1 = tensor.empty() : tensor<4xf32>
  %z = linalg.log ins(%row : tensor<4xf32>) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
  return %z : tensor<4xf32>
}

// -----

// What is put in front of a dim has one row less than all, and what that is made of.

// CHECK:      limits = array<i64: 0, 1>, {{.*}}sizes = array<i64: 63, 8>
// CHECK-LABEL: func.func @main
// CHECK:         %[[N:.*]] = arith.index_cast
// CHECK:         "mw.launch"(%arg0, %[[N]], %{{.*}})
func.func @main(%x: tensor<63x8xf32> {dist.lengths = ["n", ""]}, %n: tensor<i64> {dist.length = "n"}) -> (tensor<64x8xf32> {dist.lengths = ["n + 1", ""]}) {
  %size = tensor.extract %n[] : tensor<i64>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<63x8xf32>
  %y = linalg.exp ins(%x : tensor<63x8xf32>) outs(%e : tensor<63x8xf32>) -> tensor<63x8xf32>
  %e1 = tensor.empty() : tensor<64x8xf32>
  %start = linalg.fill ins(%zero : f32) outs(%e1 : tensor<64x8xf32>) -> tensor<64x8xf32>
  %z = tensor.insert_slice %y into %start[1, 0] [63, 8] [1, 1] : tensor<63x8xf32> into tensor<64x8xf32>
  return %z : tensor<64x8xf32>
}

// -----

// A scatter asks flags whether there is a row: its rounds end where these do, and the rows that it puts.

// CHECK:      limits = array<i64: 0, 1>, {{.*}}sizes = array<i64: 64, 8>
// CHECK-LABEL: func.func @main
// CHECK:         %[[N:.*]] = arith.index_cast
// CHECK:         scf.for %{{.*}} = %{{.*}} to %[[N]] step
func.func @main(%state: tensor<9x8xf32>, %places: tensor<64xindex> {dist.lengths = ["n"]}, %x: tensor<64x8xf32> {dist.lengths = ["n", ""]}, %n: tensor<i64> {dist.length = "n"}) -> tensor<9x8xf32> {
  %size = tensor.extract %n[] : tensor<i64>
  %end = arith.index_cast %size : i64 to index
  %e = tensor.empty() : tensor<64x8xf32>
  %y = linalg.exp ins(%x : tensor<64x8xf32>) outs(%e : tensor<64x8xf32>) -> tensor<64x8xf32>
  %e1 = tensor.empty() : tensor<64xi1>
  %flags = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]} outs(%e1 : tensor<64xi1>) {
  ^bb0(%out: i1):
    %i = linalg.index 0 : index
    %holds = arith.cmpi ult, %i, %end : index
    linalg.yield %holds : i1
  } -> tensor<64xi1>
  %begin = arith.constant 0 : index
  %all = arith.constant 64 : index
  %step = arith.constant 1 : index
  %made = scf.for %k = %begin to %all step %step iter_args(%now = %state) -> tensor<9x8xf32> {
    %there = tensor.extract %flags[%k] : tensor<64xi1>
    %next = scf.if %there -> tensor<9x8xf32> {
      %place = tensor.extract %places[%k] : tensor<64xindex>
      %row = tensor.extract_slice %y[%k, 0] [1, 8] [1, 1] : tensor<64x8xf32> to tensor<8xf32>
      %put = tensor.insert_slice %row into %now[%place, 0] [1, 8] [1, 1] : tensor<8xf32> into tensor<9x8xf32>
      scf.yield %put : tensor<9x8xf32>
    } else {
      scf.yield %now : tensor<9x8xf32>
    }
    scf.yield %next : tensor<9x8xf32>
  }
  return %made : tensor<9x8xf32>
}

// -----

// Rounds put blocks of 16 rows side by side: they end behind the last block that has a row, and so do the rows that they read.

// CHECK:      limits = array<i64: 0, 2>, {{.*}}sizes = array<i64: 64, 8, 8>
// CHECK-LABEL: func.func @main
// CHECK:         %[[N:.*]] = arith.index_cast
// CHECK-DAG:     %[[UP:.*]] = arith.ceildivsi %[[N]], %{{.*}}
// CHECK-DAG:     arith.muli %[[UP]]
// CHECK-DAG:     %[[BLOCKS:.*]] = arith.ceildivsi %[[N]], %{{.*}}
// CHECK:         scf.for %{{.*}} = %{{.*}} to %{{.*}} step
func.func @main(%x: tensor<64x8xf32> {dist.lengths = ["n", ""]}, %w: tensor<8x8xf32>, %n: tensor<i64> {dist.length = "n"}) -> (tensor<64x8xf32> {dist.lengths = ["n", ""]}) {
  %begin = arith.constant 0 : index
  %all = arith.constant 4 : index
  %step = arith.constant 1 : index
  %size = arith.constant 16 : index
  %e = tensor.empty() : tensor<64x8xf32>
  %zero = arith.constant 0.0 : f32
  %zeros = linalg.fill ins(%zero : f32) outs(%e : tensor<64x8xf32>) -> tensor<64x8xf32>
  %y = linalg.matmul ins(%x, %w : tensor<64x8xf32>, tensor<8x8xf32>) outs(%zeros : tensor<64x8xf32>) -> tensor<64x8xf32>
  %e1 = tensor.empty() : tensor<64x8xf32>
  %made = scf.for %k = %begin to %all step %step iter_args(%now = %e1) -> tensor<64x8xf32> {
    %place = arith.muli %k, %size : index
    %rows = tensor.extract_slice %y[%place, 0] [16, 8] [1, 1] : tensor<64x8xf32> to tensor<16x8xf32>
    %e2 = tensor.empty() : tensor<16x8xf32>
    %z = linalg.log ins(%rows : tensor<16x8xf32>) outs(%e2 : tensor<16x8xf32>) -> tensor<16x8xf32>
    %put = tensor.insert_slice %z into %now[%place, 0] [16, 8] [1, 1] : tensor<16x8xf32> into tensor<64x8xf32>
    scf.yield %put : tensor<64x8xf32>
  }
  return %made : tensor<64x8xf32>
}

// -----

// Blocks that a later round reads are all put.

// CHECK-LABEL: func.func @main
// CHECK:         %[[ALL:.*]] = arith.constant 4 : index
// CHECK:         scf.for %{{.*}} = %{{.*}} to %[[ALL]] step
func.func @main(%x: tensor<64x8xf32> {dist.lengths = ["n", ""]}, %n: tensor<i64> {dist.length = "n"}) -> (tensor<64x8xf32> {dist.lengths = ["n", ""]}) {
  %begin = arith.constant 0 : index
  %all = arith.constant 4 : index
  %step = arith.constant 1 : index
  %size = arith.constant 16 : index
  %made = scf.for %k = %begin to %all step %step iter_args(%now = %x) -> tensor<64x8xf32> {
    %place = arith.muli %k, %size : index
    %rows = tensor.extract_slice %now[0, 0] [16, 8] [1, 1] : tensor<64x8xf32> to tensor<16x8xf32>
    %e2 = tensor.empty() : tensor<16x8xf32>
    %z = linalg.log ins(%rows : tensor<16x8xf32>) outs(%e2 : tensor<16x8xf32>) -> tensor<16x8xf32>
    %put = tensor.insert_slice %z into %now[%place, 0] [16, 8] [1, 1] : tensor<16x8xf32> into tensor<64x8xf32>
    scf.yield %put : tensor<64x8xf32>
  }
  return %made : tensor<64x8xf32>
}
