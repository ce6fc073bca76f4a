// A builtin function of Python that calls compiled code on small Arrays of one rank: what it does by itself costs less
// than a call of a function that is written in Python. It runs with the interpreter lock, which also guards what it
// writes: the table and the buffer of a result. abi.DirectCall says what its `self`, an array of NumPy's, has in memory.
//
// What it cannot take (an Array that is elsewhere or was donated, a shard that is not contiguous, code that fails) goes
// to a function of Python's, which computes it or says what is wrong.
//
// RUN: meshweave-opt %s -p convert-scf-to-cf,convert-arith-to-llvm,convert-cf-to-llvm | filecheck %s
// CHECK-LABEL: llvm.func @shard_of
// CHECK: llvm.call @PyTuple_GetItem
// CHECK-LABEL: llvm.func @read_argument
// CHECK: llvm.call @elements_of
// CHECK-LABEL: llvm.func @mw_direct(
// CHECK: llvm.call @new_array
// CHECK-LABEL: llvm.func @mw_direct_move
// CHECK: llvm.call @moved

#DirectCall_ARGUMENTS = 0 : i64
#DirectCall_HELD = 8 : i64
#DirectCall_KIND = 16 : i64
#DirectCall_ALONE = 24 : i64
#DirectCall_ARRAY = 32 : i64
#DirectCall_NEW = 40 : i64
#DirectCall_NO_ARGUMENTS = 48 : i64
#DirectCall_NONE = 56 : i64
#DirectCall_TRUE = 64 : i64
#DirectCall_LIKE = 72 : i64
#DirectCall_TEMPLATE = 80 : i64
#DirectCall_RESULT = 88 : i64
#DirectCall_SLOW = 96 : i64
#DirectCall_RUN = 104 : i64
#DirectCall_TABLE = 112 : i64
#DirectCall_FIRST = 120 : i64
#DirectCall_OUTPUT = 128 : i64
#DirectCall_BUFFER = 136 : i64
#DirectCall_NBYTES = 144 : i64
#DirectCall_COUNT = 152 : i64
#DirectCall_STEPS = 160 : i64
#DirectCall_DATA = 168 : i64
#DirectCall_FORMS = 176 : i64
#DirectCall_NUMBERS = 208 : i64
#DirectCall_CALLED = 240 : i64
#DirectCall_KINDS = 248 : i64
#DirectCall_SHAPE = 256 : i64
#DirectCall_NDARRAY = 264 : i64
#DirectCall_COPY = 272 : i64
#DirectCall_OF_SCALAR = 280 : i64
#DirectCall_ITEMSIZE = 288 : i64
#DirectCall_LOWEST = 296 : i64
#DirectCall_HIGHEST = 304 : i64
#DirectCall_EXCEPTION = 312 : i64
#DirectCall_AN_ARRAY = 0 : i64
#DirectCall_F32 = 1 : i64
#DirectCall_AN_INTEGER = 3 : i64
#DirectCall_OF_AN_INTEGER = 4 : i64
#EXACT = 9007199254740992 : i64  // an f64 holds all integers up to here
#ndarray_DATA = 16 : i64    // of NumPy's struct PyArrayObject
#ndarray_NDIM = 24 : i64
#ndarray_SHAPE = 32 : i64
#ndarray_BASE = 48 : i64
#ndarray_FLAGS = 64 : i64
#object_TYPE = 8 : i64      // of Python's struct PyObject
#READABLE = 257 : i32       // of these: C_CONTIGUOUS and ALIGNED

llvm.func @PyTuple_GetItem(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @PyTuple_New(i64) -> !llvm.ptr
llvm.func @PyTuple_SetItem(!llvm.ptr, i64, !llvm.ptr) -> i32
llvm.func @PyFloat_AsDouble(!llvm.ptr) -> f64
llvm.func @PyObject_GetAttr(!llvm.ptr, !llvm.ptr) -> !llvm.ptr
llvm.func @PyObject_GetItem(!llvm.ptr, !llvm.ptr) -> !llvm.ptr
llvm.func @PyDict_GetItem(!llvm.ptr, !llvm.ptr) -> !llvm.ptr
llvm.func @PyObject_CallObject(!llvm.ptr, !llvm.ptr) -> !llvm.ptr
llvm.func @PyLong_AsLongLong(!llvm.ptr) -> i64
llvm.func @PyErr_Occurred() -> !llvm.ptr
llvm.func @PyErr_Clear()
llvm.func @PyErr_GivenExceptionMatches(!llvm.ptr, !llvm.ptr) -> i32
llvm.func @Py_IncRef(!llvm.ptr)
llvm.func @Py_DecRef(!llvm.ptr)
llvm.func @load_i64(!llvm.ptr, i64) -> i64
llvm.func @load_ptr(!llvm.ptr, i64) -> !llvm.ptr
llvm.func @is_ok(i32) -> i1

// Store a reference in a slot of a new object.
llvm.func @set_slot(%object: !llvm.ptr, %offset: i64, %value: !llvm.ptr) attributes {always_inline} {
  %at = llvm.getelementptr %object[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.store %value, %at : !llvm.ptr, !llvm.ptr
  llvm.return
}

// The only shard of an Array, borrowed, where it lies as code can read it; else null.
llvm.func @shard_of(%block: !llvm.ptr, %array: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %held_field = arith.constant #DirectCall_HELD
  %none_field = arith.constant #DirectCall_NONE
  %offset = llvm.call @load_i64(%block, %held_field) : (!llvm.ptr, i64) -> i64
  %held = llvm.call @load_ptr(%array, %offset) : (!llvm.ptr, i64) -> !llvm.ptr
  %none = llvm.call @load_ptr(%block, %none_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %is_null = llvm.icmp "eq" %held, %null : !llvm.ptr
  %is_none = llvm.icmp "eq" %held, %none : !llvm.ptr
  %away = arith.ori %is_null, %is_none : i1
  cf.cond_br %away, ^no, ^there
^there:
  %shard = llvm.call @PyTuple_GetItem(%held, %c0) : (!llvm.ptr, i64) -> !llvm.ptr
  %is_empty = llvm.icmp "eq" %shard, %null : !llvm.ptr
  cf.cond_br %is_empty, ^no, ^look
^look:
  %fine = llvm.call @is_readable(%shard) : (!llvm.ptr) -> i1
  cf.cond_br %fine, ^yes, ^no
^yes:
  llvm.return %shard : !llvm.ptr
^no:
  llvm.return %null : !llvm.ptr
}

// Whether an array of NumPy's is contiguous and its elements are aligned.
llvm.func @is_readable(%array: !llvm.ptr) -> i1 attributes {always_inline} {
  %flags_field = arith.constant #ndarray_FLAGS
  %readable = arith.constant #READABLE
  %flags_at = llvm.getelementptr %array[%flags_field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %flags = llvm.load %flags_at : !llvm.ptr -> i32
  %both = arith.andi %flags, %readable : i32
  %fine = arith.cmpi eq, %both, %readable : i32
  llvm.return %fine : i1
}

// The address of the elements of an Array that this process has the whole of; null where it cannot be read there.
llvm.func @elements_of(%block: !llvm.ptr, %array: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %null = llvm.mlir.zero : !llvm.ptr
  %data_field = arith.constant #ndarray_DATA
  %shard = llvm.call @shard_of(%block, %array) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %is_none = llvm.icmp "eq" %shard, %null : !llvm.ptr
  cf.cond_br %is_none, ^no, ^yes
^yes:
  %data = llvm.call @load_ptr(%shard, %data_field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.return %data : !llvm.ptr
^no:
  llvm.return %null : !llvm.ptr
}

// Whether Python has raised an error since.
llvm.func @has_raised() -> i1 attributes {always_inline} {
  %null = llvm.mlir.zero : !llvm.ptr
  %error = llvm.call @PyErr_Occurred() : () -> !llvm.ptr
  %raised = llvm.icmp "ne" %error, %null : !llvm.ptr
  llvm.return %raised : i1
}

// Write an integer of Python's to `place`. Returns whether it is in the bounds.
llvm.func @read_integer(%block: !llvm.ptr, %argument: !llvm.ptr, %place: !llvm.ptr) -> i1 attributes {always_inline} {
  %yes = arith.constant true
  %lowest_field = arith.constant #DirectCall_LOWEST
  %highest_field = arith.constant #DirectCall_HIGHEST
  %lowest = llvm.call @load_i64(%block, %lowest_field) : (!llvm.ptr, i64) -> i64
  %highest = llvm.call @load_i64(%block, %highest_field) : (!llvm.ptr, i64) -> i64
  %value = llvm.call @PyLong_AsLongLong(%argument) : (!llvm.ptr) -> i64
  llvm.store %value, %place : i64, !llvm.ptr
  %above = arith.cmpi sge, %value, %lowest : i64
  %below = arith.cmpi sle, %value, %highest : i64
  %inside = arith.andi %above, %below : i1
  %raised = llvm.call @has_raised() : () -> i1
  %went_well = arith.xori %raised, %yes : i1
  %fits = arith.andi %inside, %went_well : i1
  llvm.return %fits : i1
}

// Write a number of Python's as a float to `place`. Returns whether an integer has a float of its own.
llvm.func @read_float(%argument: !llvm.ptr, %form: i64, %place: !llvm.ptr) -> i1 attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %yes = arith.constant true
  %of_an_integer = arith.constant #DirectCall_OF_AN_INTEGER
  %f32 = arith.constant #DirectCall_F32
  %most = arith.constant #EXACT
  %wide = llvm.call @PyFloat_AsDouble(%argument) : (!llvm.ptr) -> f64
  %is_narrow = arith.andi %form, %f32 : i64
  %is_f32 = arith.cmpi ne, %is_narrow, %c0 : i64
  scf.if %is_f32 {
    %narrow = arith.truncf %wide : f64 to f32
    llvm.store %narrow, %place : f32, !llvm.ptr
  } else {
    llvm.store %wide, %place : f64, !llvm.ptr
  }
  %flag = arith.andi %form, %of_an_integer : i64
  %is_float = arith.cmpi eq, %flag, %c0 : i64
  cf.cond_br %is_float, ^end(%yes : i1), ^look
^look:
  %size = llvm.intr.fabs(%wide) : (f64) -> f64
  %limit = arith.sitofp %most : i64 to f64
  %is_exact = arith.cmpf ole, %size, %limit : f64
  %raised = llvm.call @has_raised() : () -> i1
  %went_well = arith.xori %raised, %yes : i1
  %fits = arith.andi %is_exact, %went_well : i1
  cf.br ^end(%fits : i1)
^end(%found: i1):
  llvm.return %found : i1
}

// The address of the value of argument `index`, an Array or a number, whose bits go to the block; null where it has none.
llvm.func @read_argument(%block: !llvm.ptr, %args: !llvm.ptr, %index: i64) -> !llvm.ptr attributes {always_inline} {
  %c8 = arith.constant 8 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %forms = arith.constant #DirectCall_FORMS
  %numbers = arith.constant #DirectCall_NUMBERS
  %an_array = arith.constant #DirectCall_AN_ARRAY
  %an_integer = arith.constant #DirectCall_AN_INTEGER
  %at = llvm.getelementptr %args[%index] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
  %argument = llvm.load %at : !llvm.ptr -> !llvm.ptr
  %behind = arith.muli %index, %c8 : i64
  %form_field = arith.addi %forms, %behind : i64
  %number_field = arith.addi %numbers, %behind : i64
  %place = llvm.getelementptr %block[%number_field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %form = llvm.call @load_i64(%block, %form_field) : (!llvm.ptr, i64) -> i64
  %is_array = arith.cmpi eq, %form, %an_array : i64
  cf.cond_br %is_array, ^array, ^number
^array:
  %data = llvm.call @elements_of(%block, %argument) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  llvm.return %data : !llvm.ptr
^number:
  %is_integer = arith.cmpi eq, %form, %an_integer : i64
  cf.cond_br %is_integer, ^integer, ^float
^integer:
  %inside = llvm.call @read_integer(%block, %argument, %place) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i1
  cf.br ^end(%inside : i1)
^float:
  %exact = llvm.call @read_float(%argument, %form, %place) : (!llvm.ptr, i64, !llvm.ptr) -> i1
  cf.br ^end(%exact : i1)
^end(%fits: i1):
  cf.cond_br %fits, ^yes, ^no
^yes:
  llvm.return %place : !llvm.ptr
^no:
  llvm.return %null : !llvm.ptr
}

// Point the table at the arguments. Returns whether all have a value.
llvm.func @read_arguments(%block: !llvm.ptr, %args: !llvm.ptr, %nargs: i64) -> i1 attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %yes = arith.constant true
  %no = arith.constant false
  %null = llvm.mlir.zero : !llvm.ptr
  %count_field = arith.constant #DirectCall_ARGUMENTS
  %first_field = arith.constant #DirectCall_FIRST
  %count = llvm.call @load_i64(%block, %count_field) : (!llvm.ptr, i64) -> i64
  %first = llvm.call @load_ptr(%block, %first_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %right = arith.cmpi eq, %count, %nargs : i64
  cf.cond_br %right, ^argument(%c0 : i64), ^end(%no : i1)
^argument(%index: i64):
  %more = arith.cmpi slt, %index, %nargs : i64
  cf.cond_br %more, ^read, ^end(%yes : i1)
^read:
  %value = llvm.call @read_argument(%block, %args, %index) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  %at = llvm.getelementptr %first[%index] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
  llvm.store %value, %at : !llvm.ptr, !llvm.ptr
  %next = arith.addi %index, %c1 : i64
  %lacks = llvm.icmp "eq" %value, %null : !llvm.ptr
  cf.cond_br %lacks, ^end(%no : i1), ^argument(%next : i64)
^end(%found: i1):
  llvm.return %found : i1
}

// Run the code, and have its result in the memory `data`. Returns whether it went well. A loop of NumPy's writes there
// itself and gives no code; a step writes to a buffer, which lies as its instructions need.
llvm.func @run(%block: !llvm.ptr, %data: !llvm.ptr) -> i1 attributes {always_inline} {
  %yes = arith.constant true
  %null = llvm.mlir.zero : !llvm.ptr
  %run_field = arith.constant #DirectCall_RUN
  %table_field = arith.constant #DirectCall_TABLE
  %output_field = arith.constant #DirectCall_OUTPUT
  %buffer_field = arith.constant #DirectCall_BUFFER
  %nbytes_field = arith.constant #DirectCall_NBYTES
  %count_field = arith.constant #DirectCall_COUNT
  %steps_field = arith.constant #DirectCall_STEPS
  %data_field = arith.constant #DirectCall_DATA
  %code = llvm.call @load_ptr(%block, %run_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %table = llvm.call @load_ptr(%block, %table_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %buffer = llvm.call @load_ptr(%block, %buffer_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %is_loop = llvm.icmp "eq" %buffer, %null : !llvm.ptr
  cf.cond_br %is_loop, ^loop, ^step
^loop:
  %output = llvm.call @load_ptr(%block, %output_field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.store %data, %output : !llvm.ptr, !llvm.ptr
  %counts = llvm.getelementptr %block[%count_field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %steps = llvm.call @load_ptr(%block, %steps_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %more = llvm.call @load_ptr(%block, %data_field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.call %code(%table, %counts, %steps, %more) : !llvm.ptr, (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
  llvm.return %yes : i1
^step:
  %nbytes = llvm.call @load_i64(%block, %nbytes_field) : (!llvm.ptr, i64) -> i64
  %told = llvm.call %code(%table) : !llvm.ptr, (!llvm.ptr) -> i32
  "llvm.intr.memcpy"(%data, %buffer, %nbytes) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
  %fine = llvm.call @is_ok(%told) : (i32) -> i1
  llvm.return %fine : i1
}

// Make an Array of a kind and its only shard `values`, whose reference it takes; null, with an error set, where there is no memory.
llvm.func @new_array(%block: !llvm.ptr, %kind: !llvm.ptr, %values: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %new_field = arith.constant #DirectCall_NEW
  %array_field = arith.constant #DirectCall_ARRAY
  %no_arguments_field = arith.constant #DirectCall_NO_ARGUMENTS
  %held_field = arith.constant #DirectCall_HELD
  %kind_field = arith.constant #DirectCall_KIND
  %alone_field = arith.constant #DirectCall_ALONE
  %true_field = arith.constant #DirectCall_TRUE
  %held = llvm.call @PyTuple_New(%c1) : (i64) -> !llvm.ptr
  %no_tuple = llvm.icmp "eq" %held, %null : !llvm.ptr
  cf.cond_br %no_tuple, ^no_memory(%values : !llvm.ptr), ^fill
^fill:
  %set = llvm.call @PyTuple_SetItem(%held, %c0, %values) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %new = llvm.call @load_ptr(%block, %new_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %type = llvm.call @load_ptr(%block, %array_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %nothing = llvm.call @load_ptr(%block, %no_arguments_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %array = llvm.call %new(%type, %nothing, %null) : !llvm.ptr, (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %no_array = llvm.icmp "eq" %array, %null : !llvm.ptr
  cf.cond_br %no_array, ^no_memory(%held : !llvm.ptr), ^describe
^describe:
  %held_at = llvm.call @load_i64(%block, %held_field) : (!llvm.ptr, i64) -> i64
  %kind_at = llvm.call @load_i64(%block, %kind_field) : (!llvm.ptr, i64) -> i64
  %alone_at = llvm.call @load_i64(%block, %alone_field) : (!llvm.ptr, i64) -> i64
  %alone = llvm.call @load_ptr(%block, %true_field) : (!llvm.ptr, i64) -> !llvm.ptr
  llvm.call @Py_IncRef(%kind) : (!llvm.ptr) -> ()
  llvm.call @Py_IncRef(%alone) : (!llvm.ptr) -> ()
  llvm.call @set_slot(%array, %held_at, %held) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.call @set_slot(%array, %kind_at, %kind) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.call @set_slot(%array, %alone_at, %alone) : (!llvm.ptr, i64, !llvm.ptr) -> ()
  llvm.return %array : !llvm.ptr
^no_memory(%left: !llvm.ptr):
  llvm.call @Py_DecRef(%left) : (!llvm.ptr) -> ()
  llvm.return %null : !llvm.ptr
}

// Whether what was raised, if anything, is a failure of this way, and not what ends a program, as Ctrl-C does.
llvm.func @may_go_on(%block: !llvm.ptr) -> i1 attributes {always_inline} {
  %yes = arith.constant true
  %no = arith.constant 0 : i32
  %null = llvm.mlir.zero : !llvm.ptr
  %exception_field = arith.constant #DirectCall_EXCEPTION
  %exception = llvm.call @load_ptr(%block, %exception_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %error = llvm.call @PyErr_Occurred() : () -> !llvm.ptr
  %is_none = llvm.icmp "eq" %error, %null : !llvm.ptr
  cf.cond_br %is_none, ^end(%yes : i1), ^look
^look:
  %matches = llvm.call @PyErr_GivenExceptionMatches(%error, %exception) : (!llvm.ptr, !llvm.ptr) -> i32
  %is_failure = arith.cmpi ne, %matches, %no : i32
  cf.br ^end(%is_failure : i1)
^end(%found: i1):
  llvm.return %found : i1
}

// Call the function of Python's with the same arguments.
llvm.func @call_slow(%block: !llvm.ptr, %args: !llvm.ptr, %nargs: i64) -> !llvm.ptr attributes {no_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %slow_field = arith.constant #DirectCall_SLOW
  %slow = llvm.call @load_ptr(%block, %slow_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %goes_on = llvm.call @may_go_on(%block) : (!llvm.ptr) -> i1
  cf.cond_br %goes_on, ^again, ^none
^again:
  llvm.call @PyErr_Clear() : () -> ()
  %given = llvm.call @PyTuple_New(%nargs) : (i64) -> !llvm.ptr
  %no_memory = llvm.icmp "eq" %given, %null : !llvm.ptr
  cf.cond_br %no_memory, ^none, ^fill
^fill:
  scf.for %index = %c0 to %nargs step %c1 : i64 {
    %at = llvm.getelementptr %args[%index] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
    %argument = llvm.load %at : !llvm.ptr -> !llvm.ptr
    llvm.call @Py_IncRef(%argument) : (!llvm.ptr) -> ()
    %set = llvm.call @PyTuple_SetItem(%given, %index, %argument) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  }
  %made = llvm.call @PyObject_CallObject(%slow, %given) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  llvm.call @Py_DecRef(%given) : (!llvm.ptr) -> ()
  llvm.return %made : !llvm.ptr
^none:
  llvm.return %null : !llvm.ptr
}

llvm.func @mw_direct(%self: !llvm.ptr, %args: !llvm.ptr, %nargs: i64) -> !llvm.ptr {
  %null = llvm.mlir.zero : !llvm.ptr
  %any_order = arith.constant 0 : i32
  %data_field = arith.constant #ndarray_DATA
  %like_field = arith.constant #DirectCall_LIKE
  %template_field = arith.constant #DirectCall_TEMPLATE
  %result_field = arith.constant #DirectCall_RESULT
  %block = llvm.call @load_ptr(%self, %data_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %like = llvm.call @load_ptr(%block, %like_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %template = llvm.call @load_ptr(%block, %template_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %values = llvm.call %like(%template, %any_order, %null, %any_order)
    : !llvm.ptr, (!llvm.ptr, i32, !llvm.ptr, i32) -> !llvm.ptr
  %no_memory = llvm.icmp "eq" %values, %null : !llvm.ptr
  cf.cond_br %no_memory, ^none, ^read
^read:
  %found = llvm.call @read_arguments(%block, %args, %nargs) : (!llvm.ptr, !llvm.ptr, i64) -> i1
  cf.cond_br %found, ^run, ^slow
^run:
  %data = llvm.call @load_ptr(%values, %data_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %fine = llvm.call @run(%block, %data) : (!llvm.ptr, !llvm.ptr) -> i1
  cf.cond_br %fine, ^made, ^slow
^made:
  %kind = llvm.call @load_ptr(%block, %result_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %array = llvm.call @new_array(%block, %kind, %values) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> !llvm.ptr
  llvm.return %array : !llvm.ptr
^slow:
  llvm.call @Py_DecRef(%values) : (!llvm.ptr) -> ()
  %slowly = llvm.call @call_slow(%block, %args, %nargs) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  llvm.return %slowly : !llvm.ptr
^none:
  llvm.return %null : !llvm.ptr
}

// The arguments with shards in the place of Arrays, as a tuple; null where an Array cannot be read.
llvm.func @with_shards(%block: !llvm.ptr, %args: !llvm.ptr, %nargs: i64) -> !llvm.ptr attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %type_field = arith.constant #object_TYPE
  %array_field = arith.constant #DirectCall_ARRAY
  %type = llvm.call @load_ptr(%block, %array_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %given = llvm.call @PyTuple_New(%nargs) : (i64) -> !llvm.ptr
  %no_memory = llvm.icmp "eq" %given, %null : !llvm.ptr
  cf.cond_br %no_memory, ^none, ^argument(%c0 : i64)
^argument(%index: i64):
  %more = arith.cmpi slt, %index, %nargs : i64
  cf.cond_br %more, ^read, ^all
^read:
  %at = llvm.getelementptr %args[%index] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
  %argument = llvm.load %at : !llvm.ptr -> !llvm.ptr
  %own = llvm.call @load_ptr(%argument, %type_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %is_array = llvm.icmp "eq" %own, %type : !llvm.ptr
  cf.cond_br %is_array, ^array, ^put(%argument : !llvm.ptr)
^array:
  %shard = llvm.call @shard_of(%block, %argument) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %lacks = llvm.icmp "eq" %shard, %null : !llvm.ptr
  cf.cond_br %lacks, ^drop, ^put(%shard : !llvm.ptr)
^put(%value: !llvm.ptr):
  llvm.call @Py_IncRef(%value) : (!llvm.ptr) -> ()
  %set = llvm.call @PyTuple_SetItem(%given, %index, %value) : (!llvm.ptr, i64, !llvm.ptr) -> i32
  %next = arith.addi %index, %c1 : i64
  cf.br ^argument(%next : i64)
^drop:
  llvm.call @Py_DecRef(%given) : (!llvm.ptr) -> ()
  cf.br ^none
^none:
  llvm.return %null : !llvm.ptr
^all:
  llvm.return %given : !llvm.ptr
}

// The number of elements of an array of NumPy's.
llvm.func @size_of_array(%array: !llvm.ptr) -> i64 attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %ndim_field = arith.constant #ndarray_NDIM
  %shape_field = arith.constant #ndarray_SHAPE
  %ndim_at = llvm.getelementptr %array[%ndim_field] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %ndim = llvm.load %ndim_at : !llvm.ptr -> i32
  %dims = arith.extui %ndim : i32 to i64
  %shape = llvm.call @load_ptr(%array, %shape_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %size = scf.for %dim = %c0 to %dims step %c1 iter_args(%before = %c1) -> (i64) : i64 {
    %at = llvm.getelementptr %shape[%dim] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %extent = llvm.load %at : !llvm.ptr -> i64
    %behind = arith.muli %before, %extent : i64
    scf.yield %behind : i64
  }
  llvm.return %size : i64
}

// A copy of a contiguous array of NumPy's, sooner than NumPy's own. Null: no memory.
llvm.func @copy_of(%block: !llvm.ptr, %array: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %null = llvm.mlir.zero : !llvm.ptr
  %c_order = arith.constant 0 : i32
  %data_field = arith.constant #ndarray_DATA
  %like_field = arith.constant #DirectCall_LIKE
  %itemsize_field = arith.constant #DirectCall_ITEMSIZE
  %like = llvm.call @load_ptr(%block, %like_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %copy = llvm.call %like(%array, %c_order, %null, %c_order)
    : !llvm.ptr, (!llvm.ptr, i32, !llvm.ptr, i32) -> !llvm.ptr
  %no_memory = llvm.icmp "eq" %copy, %null : !llvm.ptr
  cf.cond_br %no_memory, ^end, ^fill
^fill:
  %size = llvm.call @size_of_array(%array) : (!llvm.ptr) -> i64
  %itemsize = llvm.call @load_i64(%block, %itemsize_field) : (!llvm.ptr, i64) -> i64
  %nbytes = arith.muli %size, %itemsize : i64
  %to = llvm.call @load_ptr(%copy, %data_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %from = llvm.call @load_ptr(%array, %data_field) : (!llvm.ptr, i64) -> !llvm.ptr
  "llvm.intr.memcpy"(%to, %from, %nbytes) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
  cf.br ^end
^end:
  llvm.return %copy : !llvm.ptr
}

// What NumPy has given as an array that nothing else holds the memory of; it takes the reference. Null: no memory.
llvm.func @own_array(%block: !llvm.ptr, %found: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %null = llvm.mlir.zero : !llvm.ptr
  %c_order = arith.constant 0 : i32
  %type_field = arith.constant #object_TYPE
  %base_field = arith.constant #ndarray_BASE
  %ndarray_field = arith.constant #DirectCall_NDARRAY
  %copy_field = arith.constant #DirectCall_COPY
  %of_scalar_field = arith.constant #DirectCall_OF_SCALAR
  %own = llvm.call @load_ptr(%found, %type_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %ndarray = llvm.call @load_ptr(%block, %ndarray_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %is_array = llvm.icmp "eq" %own, %ndarray : !llvm.ptr
  cf.cond_br %is_array, ^array, ^scalar
^array:
  %is_readable = llvm.call @is_readable(%found) : (!llvm.ptr) -> i1
  cf.cond_br %is_readable, ^contiguous, ^other
^contiguous:
  %base = llvm.call @load_ptr(%found, %base_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %is_own = llvm.icmp "eq" %base, %null : !llvm.ptr
  cf.cond_br %is_own, ^as_it_is, ^copy
^as_it_is:
  llvm.return %found : !llvm.ptr
^copy:
  %quick = llvm.call @copy_of(%block, %found) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  cf.br ^made(%quick : !llvm.ptr)
^other:
  %copy = llvm.call @load_ptr(%block, %copy_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %copied = llvm.call %copy(%found, %c_order) : !llvm.ptr, (!llvm.ptr, i32) -> !llvm.ptr
  cf.br ^made(%copied : !llvm.ptr)
^scalar:
  %of_scalar = llvm.call @load_ptr(%block, %of_scalar_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %array = llvm.call %of_scalar(%found, %null) : !llvm.ptr, (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  cf.br ^made(%array : !llvm.ptr)
^made(%values: !llvm.ptr):
  llvm.call @Py_DecRef(%found) : (!llvm.ptr) -> ()
  llvm.return %values : !llvm.ptr
}

// The kind of Arrays of the shape of `values`, borrowed; null where it is not known yet.
llvm.func @kind_like(%block: !llvm.ptr, %values: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %null = llvm.mlir.zero : !llvm.ptr
  %shape_field = arith.constant #DirectCall_SHAPE
  %kinds_field = arith.constant #DirectCall_KINDS
  %name = llvm.call @load_ptr(%block, %shape_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %kinds = llvm.call @load_ptr(%block, %kinds_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %shape = llvm.call @PyObject_GetAttr(%values, %name) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %is_none = llvm.icmp "eq" %shape, %null : !llvm.ptr
  cf.cond_br %is_none, ^no, ^look
^look:
  %kind = llvm.call @PyDict_GetItem(%kinds, %shape) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  llvm.call @Py_DecRef(%shape) : (!llvm.ptr) -> ()
  llvm.return %kind : !llvm.ptr
^no:
  llvm.return %null : !llvm.ptr
}

// Whether an object is one of a tuple's, as where NumPy gives back an array that it has nothing to do to.
llvm.func @holds(%tuple: !llvm.ptr, %count: i64, %object: !llvm.ptr) -> i1 attributes {always_inline} {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %no = arith.constant false
  %yes = arith.constant true
  cf.br ^item(%c0 : i64)
^item(%index: i64):
  %more = arith.cmpi slt, %index, %count : i64
  cf.cond_br %more, ^look, ^end(%no : i1)
^look:
  %item = llvm.call @PyTuple_GetItem(%tuple, %index) : (!llvm.ptr, i64) -> !llvm.ptr
  %next = arith.addi %index, %c1 : i64
  %same = llvm.icmp "eq" %item, %object : !llvm.ptr
  cf.cond_br %same, ^end(%yes : i1), ^item(%next : i64)
^end(%found: i1):
  llvm.return %found : i1
}

// What a function of NumPy's gives of the shards; null where it raises, or gives what it was given.
llvm.func @called(%block: !llvm.ptr, %args: !llvm.ptr, %nargs: i64, %function: !llvm.ptr) -> !llvm.ptr {
  %null = llvm.mlir.zero : !llvm.ptr
  %given = llvm.call @with_shards(%block, %args, %nargs) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  %lacks = llvm.icmp "eq" %given, %null : !llvm.ptr
  cf.cond_br %lacks, ^no, ^call
^call:
  %found = llvm.call @PyObject_CallObject(%function, %given) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %is_given = llvm.call @holds(%given, %nargs, %found) : (!llvm.ptr, i64, !llvm.ptr) -> i1
  llvm.call @Py_DecRef(%given) : (!llvm.ptr) -> ()
  cf.cond_br %is_given, ^drop, ^yes
^drop:
  llvm.call @Py_DecRef(%found) : (!llvm.ptr) -> ()
  cf.br ^no
^yes:
  llvm.return %found : !llvm.ptr
^no:
  llvm.return %null : !llvm.ptr
}

// What NumPy finds in the shard of the first argument by the second one as an index; null where it raises.
llvm.func @indexed(%block: !llvm.ptr, %args: !llvm.ptr) -> !llvm.ptr attributes {always_inline} {
  %c1 = arith.constant 1 : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %array = llvm.load %args : !llvm.ptr -> !llvm.ptr
  %key_at = llvm.getelementptr %args[%c1] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
  %key = llvm.load %key_at : !llvm.ptr -> !llvm.ptr
  %shard = llvm.call @shard_of(%block, %array) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %lacks = llvm.icmp "eq" %shard, %null : !llvm.ptr
  cf.cond_br %lacks, ^no, ^look
^look:
  llvm.call @Py_IncRef(%shard) : (!llvm.ptr) -> ()
  %found = llvm.call @PyObject_GetItem(%shard, %key) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  llvm.call @Py_DecRef(%shard) : (!llvm.ptr) -> ()
  llvm.return %found : !llvm.ptr
^no:
  llvm.return %null : !llvm.ptr
}

// What NumPy makes of the shards, as an Array; null where it raises, or where the kind is not known.
llvm.func @moved(%block: !llvm.ptr, %args: !llvm.ptr, %nargs: i64) -> !llvm.ptr attributes {always_inline} {
  %null = llvm.mlir.zero : !llvm.ptr
  %called_field = arith.constant #DirectCall_CALLED
  %function = llvm.call @load_ptr(%block, %called_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %is_index = llvm.icmp "eq" %function, %null : !llvm.ptr
  cf.cond_br %is_index, ^index, ^call
^index:
  %chosen = llvm.call @indexed(%block, %args) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  cf.br ^look(%chosen : !llvm.ptr)
^call:
  %result = llvm.call @called(%block, %args, %nargs, %function) : (!llvm.ptr, !llvm.ptr, i64, !llvm.ptr) -> !llvm.ptr
  cf.br ^look(%result : !llvm.ptr)
^look(%found: !llvm.ptr):
  %raised = llvm.icmp "eq" %found, %null : !llvm.ptr
  cf.cond_br %raised, ^no, ^own
^own:
  %values = llvm.call @own_array(%block, %found) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %no_memory = llvm.icmp "eq" %values, %null : !llvm.ptr
  cf.cond_br %no_memory, ^no, ^kind
^kind:
  %kind = llvm.call @kind_like(%block, %values) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
  %unknown = llvm.icmp "eq" %kind, %null : !llvm.ptr
  cf.cond_br %unknown, ^drop, ^make
^make:
  %array = llvm.call @new_array(%block, %kind, %values) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> !llvm.ptr
  llvm.return %array : !llvm.ptr
^drop:
  llvm.call @Py_DecRef(%values) : (!llvm.ptr) -> ()
  cf.br ^no
^no:
  llvm.return %null : !llvm.ptr
}

llvm.func @mw_direct_move(%self: !llvm.ptr, %args: !llvm.ptr, %nargs: i64) -> !llvm.ptr {
  %null = llvm.mlir.zero : !llvm.ptr
  %data_field = arith.constant #ndarray_DATA
  %block = llvm.call @load_ptr(%self, %data_field) : (!llvm.ptr, i64) -> !llvm.ptr
  %array = llvm.call @moved(%block, %args, %nargs) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  %lacks = llvm.icmp "eq" %array, %null : !llvm.ptr
  cf.cond_br %lacks, ^slow, ^done
^done:
  llvm.return %array : !llvm.ptr
^slow:
  %slowly = llvm.call @call_slow(%block, %args, %nargs) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  llvm.return %slowly : !llvm.ptr
}
