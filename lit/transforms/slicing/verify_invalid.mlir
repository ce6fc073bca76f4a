// RUN: meshweave-opt %s -p hint-verify --split-input-file --verify-diagnostics

func.func @never_read(%a: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{the hints of this region were never read: run hint-apply first}}
  %r = "hint.region"() ({
    "hint.yield"(%a) : (tensor<8xf32>) -> ()
  }) {hints = {slice = "t=2"}} : () -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// A region that some pass spliced in before its hints were applied.
// expected-error @below {{the region at f.py:3:1 was dropped by a pass before its hints were applied: slice = "t=2" on math.exp at f.py:4:1 is lost}}
module attributes {hint.ledger = {hints = [{key = "slice", region = 0 : i64, strength = "required", value = "t=2", where = "f.py:3:1"}], ops = [{name = "math.exp", region = 0 : i64, where = "f.py:4:1"}], outcomes = [], regions = [{applied = 0 : i64, parent = -1 : i64, where = "f.py:3:1"}]}} {
  func.func @dropped(%a: tensor<8xf32>) -> tensor<8xf32> {
    %e = math.exp %a {hint.op = 0 : i64} : tensor<8xf32>
    return %e : tensor<8xf32>
  }
}

// -----

// expected-error @below {{hint.ledger is not what hint-apply writes: 'hints'}}
module attributes {hint.ledger = {ops = [], outcomes = [], regions = []}} {
}

// -----

// expected-error @below {{hint.ledger is not what hint-apply writes: a number is out of range}}
module attributes {hint.ledger = {hints = [], ops = [{name = "math.exp", region = 7 : i64, where = "f.py:4:1"}], outcomes = [], regions = []}} {
}
