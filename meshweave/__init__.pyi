"""Declare the public names for editors and type checkers. Written by docs/generate.py (`make docs`)."""

from meshweave import jax as jax
from meshweave.api.arrays import from_dlpack as from_dlpack
from meshweave.api.callables.mapping import vmap as vmap
from meshweave.api.callables.told import log_compiles as log_compiles
from meshweave.api.gradients.functions import grad as grad
from meshweave.api.gradients.functions import value_and_grad as value_and_grad
from meshweave.api.gradients.functions import vjp as vjp
from meshweave.api.jit import jit as jit
from meshweave.api.namespace import trace as trace
from meshweave.api.program import Program as Program
from meshweave.api.program import compile as compile
from meshweave.api.quantized import quantize as quantize
from meshweave.api.redistribution import redistribute as redistribute
from meshweave.api.sources import from_mlir as from_mlir
from meshweave.api.sources import from_stablehlo as from_stablehlo
from meshweave.api.verify import verify as verify
from meshweave.api.weights import load as load
from meshweave.api.weights import load_safetensors as load_safetensors
from meshweave.api.weights import save as save
from meshweave.errors import MeshweaveError as MeshweaveError
from meshweave.frontends.python import nn as nn
from meshweave.frontends.python import random as random
from meshweave.frontends.python import special as special
from meshweave.frontends.python.control import cond as cond
from meshweave.frontends.python.control import scan as scan
from meshweave.frontends.python.control import while_loop as while_loop
from meshweave.frontends.python.dtypes import Info as _Info
from meshweave.frontends.python.dtypes import as_dtype as as_dtype
from meshweave.frontends.python.dtypes import bfloat16 as bfloat16
from meshweave.frontends.python.dtypes import bool_ as _bool
from meshweave.frontends.python.dtypes import can_cast as can_cast
from meshweave.frontends.python.dtypes import complex64 as complex64
from meshweave.frontends.python.dtypes import complex128 as complex128
from meshweave.frontends.python.dtypes import e as e
from meshweave.frontends.python.dtypes import finfo as finfo
from meshweave.frontends.python.dtypes import float8_e4m3fn as float8_e4m3fn
from meshweave.frontends.python.dtypes import float8_e4m3fnuz as float8_e4m3fnuz
from meshweave.frontends.python.dtypes import float8_e5m2 as float8_e5m2
from meshweave.frontends.python.dtypes import float8_e5m2fnuz as float8_e5m2fnuz
from meshweave.frontends.python.dtypes import float16 as float16
from meshweave.frontends.python.dtypes import float32 as float32
from meshweave.frontends.python.dtypes import float64 as float64
from meshweave.frontends.python.dtypes import iinfo as iinfo
from meshweave.frontends.python.dtypes import inf as inf
from meshweave.frontends.python.dtypes import int4 as int4
from meshweave.frontends.python.dtypes import int8 as int8
from meshweave.frontends.python.dtypes import int16 as int16
from meshweave.frontends.python.dtypes import int32 as int32
from meshweave.frontends.python.dtypes import int64 as int64
from meshweave.frontends.python.dtypes import isdtype as isdtype
from meshweave.frontends.python.dtypes import nan as nan
from meshweave.frontends.python.dtypes import pi as pi
from meshweave.frontends.python.dtypes import result_type as result_type
from meshweave.frontends.python.dtypes import uint4 as uint4
from meshweave.frontends.python.dtypes import uint8 as uint8
from meshweave.frontends.python.dtypes import uint16 as uint16
from meshweave.frontends.python.dtypes import uint32 as uint32
from meshweave.frontends.python.dtypes import uint64 as uint64
from meshweave.frontends.python.extras.create import bartlett as bartlett
from meshweave.frontends.python.extras.create import blackman as blackman
from meshweave.frontends.python.extras.create import copy as copy
from meshweave.frontends.python.extras.create import diag as diag
from meshweave.frontends.python.extras.create import diag_indices as diag_indices
from meshweave.frontends.python.extras.create import diagflat as diagflat
from meshweave.frontends.python.extras.create import fromfunction as fromfunction
from meshweave.frontends.python.extras.create import geomspace as geomspace
from meshweave.frontends.python.extras.create import hamming as hamming
from meshweave.frontends.python.extras.create import hanning as hanning
from meshweave.frontends.python.extras.create import identity as identity
from meshweave.frontends.python.extras.create import indices as indices
from meshweave.frontends.python.extras.create import ix_ as ix_
from meshweave.frontends.python.extras.create import kaiser as kaiser
from meshweave.frontends.python.extras.create import logspace as logspace
from meshweave.frontends.python.extras.create import tri as tri
from meshweave.frontends.python.extras.create import tril_indices as tril_indices
from meshweave.frontends.python.extras.create import triu_indices as triu_indices
from meshweave.frontends.python.extras.create import vander as vander
from meshweave.frontends.python.extras.elementwise import allclose as allclose
from meshweave.frontends.python.extras.elementwise import angle as angle
from meshweave.frontends.python.extras.elementwise import array_equal as array_equal
from meshweave.frontends.python.extras.elementwise import bitwise_count as bitwise_count
from meshweave.frontends.python.extras.elementwise import cbrt as cbrt
from meshweave.frontends.python.extras.elementwise import deg2rad as deg2rad
from meshweave.frontends.python.extras.elementwise import divmod as divmod
from meshweave.frontends.python.extras.elementwise import float_power as float_power
from meshweave.frontends.python.extras.elementwise import fmax as fmax
from meshweave.frontends.python.extras.elementwise import fmin as fmin
from meshweave.frontends.python.extras.elementwise import fmod as fmod
from meshweave.frontends.python.extras.elementwise import frexp as frexp
from meshweave.frontends.python.extras.elementwise import gcd as gcd
from meshweave.frontends.python.extras.elementwise import heaviside as heaviside
from meshweave.frontends.python.extras.elementwise import isclose as isclose
from meshweave.frontends.python.extras.elementwise import iscomplex as iscomplex
from meshweave.frontends.python.extras.elementwise import isneginf as isneginf
from meshweave.frontends.python.extras.elementwise import isposinf as isposinf
from meshweave.frontends.python.extras.elementwise import isreal as isreal
from meshweave.frontends.python.extras.elementwise import lcm as lcm
from meshweave.frontends.python.extras.elementwise import ldexp as ldexp
from meshweave.frontends.python.extras.elementwise import logaddexp2 as logaddexp2
from meshweave.frontends.python.extras.elementwise import modf as modf
from meshweave.frontends.python.extras.elementwise import nan_to_num as nan_to_num
from meshweave.frontends.python.extras.elementwise import rad2deg as rad2deg
from meshweave.frontends.python.extras.elementwise import sinc as sinc
from meshweave.frontends.python.extras.elementwise import spacing as spacing
from meshweave.frontends.python.extras.linalg import convolve as convolve
from meshweave.frontends.python.extras.linalg import correlate as correlate
from meshweave.frontends.python.extras.linalg import cross as cross
from meshweave.frontends.python.extras.linalg import diagonal as diagonal
from meshweave.frontends.python.extras.linalg import dot as dot
from meshweave.frontends.python.extras.linalg import inner as inner
from meshweave.frontends.python.extras.linalg import kron as kron
from meshweave.frontends.python.extras.linalg import matvec as matvec
from meshweave.frontends.python.extras.linalg import polyadd as polyadd
from meshweave.frontends.python.extras.linalg import polyder as polyder
from meshweave.frontends.python.extras.linalg import polymul as polymul
from meshweave.frontends.python.extras.linalg import polysub as polysub
from meshweave.frontends.python.extras.linalg import polyval as polyval
from meshweave.frontends.python.extras.linalg import vdot as vdot
from meshweave.frontends.python.extras.linalg import vecmat as vecmat
from meshweave.frontends.python.extras.manipulate import append as append
from meshweave.frontends.python.extras.manipulate import argpartition as argpartition
from meshweave.frontends.python.extras.manipulate import array_split as array_split
from meshweave.frontends.python.extras.manipulate import atleast_1d as atleast_1d
from meshweave.frontends.python.extras.manipulate import atleast_2d as atleast_2d
from meshweave.frontends.python.extras.manipulate import atleast_3d as atleast_3d
from meshweave.frontends.python.extras.manipulate import block as block
from meshweave.frontends.python.extras.manipulate import choose as choose
from meshweave.frontends.python.extras.manipulate import column_stack as column_stack
from meshweave.frontends.python.extras.manipulate import delete as delete
from meshweave.frontends.python.extras.manipulate import dsplit as dsplit
from meshweave.frontends.python.extras.manipulate import dstack as dstack
from meshweave.frontends.python.extras.manipulate import fliplr as fliplr
from meshweave.frontends.python.extras.manipulate import flipud as flipud
from meshweave.frontends.python.extras.manipulate import hsplit as hsplit
from meshweave.frontends.python.extras.manipulate import hstack as hstack
from meshweave.frontends.python.extras.manipulate import insert as insert
from meshweave.frontends.python.extras.manipulate import partition as partition
from meshweave.frontends.python.extras.manipulate import piecewise as piecewise
from meshweave.frontends.python.extras.manipulate import ravel as ravel
from meshweave.frontends.python.extras.manipulate import ravel_multi_index as ravel_multi_index
from meshweave.frontends.python.extras.manipulate import resize as resize
from meshweave.frontends.python.extras.manipulate import rollaxis as rollaxis
from meshweave.frontends.python.extras.manipulate import rot90 as rot90
from meshweave.frontends.python.extras.manipulate import select as select
from meshweave.frontends.python.extras.manipulate import split as split
from meshweave.frontends.python.extras.manipulate import swapaxes as swapaxes
from meshweave.frontends.python.extras.manipulate import transpose as transpose
from meshweave.frontends.python.extras.manipulate import unravel_index as unravel_index
from meshweave.frontends.python.extras.manipulate import vsplit as vsplit
from meshweave.frontends.python.extras.manipulate import vstack as vstack
from meshweave.frontends.python.extras.reduce import average as average
from meshweave.frontends.python.extras.reduce import bincount as bincount
from meshweave.frontends.python.extras.reduce import corrcoef as corrcoef
from meshweave.frontends.python.extras.reduce import cov as cov
from meshweave.frontends.python.extras.reduce import digitize as digitize
from meshweave.frontends.python.extras.reduce import ediff1d as ediff1d
from meshweave.frontends.python.extras.reduce import gradient as gradient
from meshweave.frontends.python.extras.reduce import histogram as histogram
from meshweave.frontends.python.extras.reduce import interp as interp
from meshweave.frontends.python.extras.reduce import isin as isin
from meshweave.frontends.python.extras.reduce import lexsort as lexsort
from meshweave.frontends.python.extras.reduce import median as median
from meshweave.frontends.python.extras.reduce import nanargmax as nanargmax
from meshweave.frontends.python.extras.reduce import nanargmin as nanargmin
from meshweave.frontends.python.extras.reduce import nancumprod as nancumprod
from meshweave.frontends.python.extras.reduce import nancumsum as nancumsum
from meshweave.frontends.python.extras.reduce import nanmax as nanmax
from meshweave.frontends.python.extras.reduce import nanmean as nanmean
from meshweave.frontends.python.extras.reduce import nanmedian as nanmedian
from meshweave.frontends.python.extras.reduce import nanmin as nanmin
from meshweave.frontends.python.extras.reduce import nanpercentile as nanpercentile
from meshweave.frontends.python.extras.reduce import nanprod as nanprod
from meshweave.frontends.python.extras.reduce import nanquantile as nanquantile
from meshweave.frontends.python.extras.reduce import nanstd as nanstd
from meshweave.frontends.python.extras.reduce import nansum as nansum
from meshweave.frontends.python.extras.reduce import nanvar as nanvar
from meshweave.frontends.python.extras.reduce import percentile as percentile
from meshweave.frontends.python.extras.reduce import ptp as ptp
from meshweave.frontends.python.extras.reduce import quantile as quantile
from meshweave.frontends.python.extras.reduce import trapezoid as trapezoid
from meshweave.frontends.python.extras.reduce import unwrap as unwrap
from meshweave.frontends.python.functions import fft as fft
from meshweave.frontends.python.functions import linalg as linalg
from meshweave.frontends.python.functions.create import arange as arange
from meshweave.frontends.python.functions.create import asarray as asarray
from meshweave.frontends.python.functions.create import empty as empty
from meshweave.frontends.python.functions.create import empty_like as empty_like
from meshweave.frontends.python.functions.create import eye as eye
from meshweave.frontends.python.functions.create import full as full
from meshweave.frontends.python.functions.create import full_like as full_like
from meshweave.frontends.python.functions.create import linspace as linspace
from meshweave.frontends.python.functions.create import meshgrid as meshgrid
from meshweave.frontends.python.functions.create import ones as ones
from meshweave.frontends.python.functions.create import ones_like as ones_like
from meshweave.frontends.python.functions.create import tril as tril
from meshweave.frontends.python.functions.create import triu as triu
from meshweave.frontends.python.functions.create import zeros as zeros
from meshweave.frontends.python.functions.create import zeros_like as zeros_like
from meshweave.frontends.python.functions.elementwise import abs as abs
from meshweave.frontends.python.functions.elementwise import acos as acos
from meshweave.frontends.python.functions.elementwise import acosh as acosh
from meshweave.frontends.python.functions.elementwise import add as add
from meshweave.frontends.python.functions.elementwise import asin as asin
from meshweave.frontends.python.functions.elementwise import asinh as asinh
from meshweave.frontends.python.functions.elementwise import astype as astype
from meshweave.frontends.python.functions.elementwise import atan as atan
from meshweave.frontends.python.functions.elementwise import atan2 as atan2
from meshweave.frontends.python.functions.elementwise import atanh as atanh
from meshweave.frontends.python.functions.elementwise import ceil as ceil
from meshweave.frontends.python.functions.elementwise import clip as clip
from meshweave.frontends.python.functions.elementwise import conj as conj
from meshweave.frontends.python.functions.elementwise import copysign as copysign
from meshweave.frontends.python.functions.elementwise import cos as cos
from meshweave.frontends.python.functions.elementwise import cosh as cosh
from meshweave.frontends.python.functions.elementwise import divide as divide
from meshweave.frontends.python.functions.elementwise import erf as erf
from meshweave.frontends.python.functions.elementwise import exp as exp
from meshweave.frontends.python.functions.elementwise import exp2 as exp2
from meshweave.frontends.python.functions.elementwise import expm1 as expm1
from meshweave.frontends.python.functions.elementwise import floor as floor
from meshweave.frontends.python.functions.elementwise import floor_divide as floor_divide
from meshweave.frontends.python.functions.elementwise import hypot as hypot
from meshweave.frontends.python.functions.elementwise import imag as imag
from meshweave.frontends.python.functions.elementwise import log as log
from meshweave.frontends.python.functions.elementwise import log1p as log1p
from meshweave.frontends.python.functions.elementwise import log2 as log2
from meshweave.frontends.python.functions.elementwise import log10 as log10
from meshweave.frontends.python.functions.elementwise import logaddexp as logaddexp
from meshweave.frontends.python.functions.elementwise import maximum as maximum
from meshweave.frontends.python.functions.elementwise import minimum as minimum
from meshweave.frontends.python.functions.elementwise import multiply as multiply
from meshweave.frontends.python.functions.elementwise import negative as negative
from meshweave.frontends.python.functions.elementwise import positive as positive
from meshweave.frontends.python.functions.elementwise import pow as pow
from meshweave.frontends.python.functions.elementwise import real as real
from meshweave.frontends.python.functions.elementwise import reciprocal as reciprocal
from meshweave.frontends.python.functions.elementwise import relu as relu
from meshweave.frontends.python.functions.elementwise import remainder as remainder
from meshweave.frontends.python.functions.elementwise import round as round
from meshweave.frontends.python.functions.elementwise import rsqrt as rsqrt
from meshweave.frontends.python.functions.elementwise import sigmoid as sigmoid
from meshweave.frontends.python.functions.elementwise import sign as sign
from meshweave.frontends.python.functions.elementwise import sin as sin
from meshweave.frontends.python.functions.elementwise import sinh as sinh
from meshweave.frontends.python.functions.elementwise import sqrt as sqrt
from meshweave.frontends.python.functions.elementwise import square as square
from meshweave.frontends.python.functions.elementwise import subtract as subtract
from meshweave.frontends.python.functions.elementwise import tan as tan
from meshweave.frontends.python.functions.elementwise import tanh as tanh
from meshweave.frontends.python.functions.elementwise import trunc as trunc
from meshweave.frontends.python.functions.elementwise import where as where
from meshweave.frontends.python.functions.index import newaxis as newaxis
from meshweave.frontends.python.functions.index import repeat as repeat
from meshweave.frontends.python.functions.index import searchsorted as searchsorted
from meshweave.frontends.python.functions.index import take as take
from meshweave.frontends.python.functions.index import take_along_axis as take_along_axis
from meshweave.frontends.python.functions.linalg import einsum as einsum
from meshweave.frontends.python.functions.linalg import matmul as matmul
from meshweave.frontends.python.functions.linalg import matrix_transpose as matrix_transpose
from meshweave.frontends.python.functions.linalg import outer as outer
from meshweave.frontends.python.functions.linalg import tensordot as tensordot
from meshweave.frontends.python.functions.linalg import vecdot as vecdot
from meshweave.frontends.python.functions.logic import bitwise_and as bitwise_and
from meshweave.frontends.python.functions.logic import bitwise_invert as bitwise_invert
from meshweave.frontends.python.functions.logic import bitwise_left_shift as bitwise_left_shift
from meshweave.frontends.python.functions.logic import bitwise_or as bitwise_or
from meshweave.frontends.python.functions.logic import bitwise_right_shift as bitwise_right_shift
from meshweave.frontends.python.functions.logic import bitwise_xor as bitwise_xor
from meshweave.frontends.python.functions.logic import equal as equal
from meshweave.frontends.python.functions.logic import greater as greater
from meshweave.frontends.python.functions.logic import greater_equal as greater_equal
from meshweave.frontends.python.functions.logic import isfinite as isfinite
from meshweave.frontends.python.functions.logic import isinf as isinf
from meshweave.frontends.python.functions.logic import isnan as isnan
from meshweave.frontends.python.functions.logic import less as less
from meshweave.frontends.python.functions.logic import less_equal as less_equal
from meshweave.frontends.python.functions.logic import logical_and as logical_and
from meshweave.frontends.python.functions.logic import logical_not as logical_not
from meshweave.frontends.python.functions.logic import logical_or as logical_or
from meshweave.frontends.python.functions.logic import logical_xor as logical_xor
from meshweave.frontends.python.functions.logic import nextafter as nextafter
from meshweave.frontends.python.functions.logic import not_equal as not_equal
from meshweave.frontends.python.functions.logic import signbit as signbit
from meshweave.frontends.python.functions.logic import view as view
from meshweave.frontends.python.functions.manipulate import broadcast_arrays as broadcast_arrays
from meshweave.frontends.python.functions.manipulate import broadcast_to as broadcast_to
from meshweave.frontends.python.functions.manipulate import concat as concat
from meshweave.frontends.python.functions.manipulate import expand_dims as expand_dims
from meshweave.frontends.python.functions.manipulate import flip as flip
from meshweave.frontends.python.functions.manipulate import moveaxis as moveaxis
from meshweave.frontends.python.functions.manipulate import permute_dims as permute_dims
from meshweave.frontends.python.functions.manipulate import reshape as reshape
from meshweave.frontends.python.functions.manipulate import roll as roll
from meshweave.frontends.python.functions.manipulate import squeeze as squeeze
from meshweave.frontends.python.functions.manipulate import stack as stack
from meshweave.frontends.python.functions.manipulate import tile as tile
from meshweave.frontends.python.functions.manipulate import unstack as unstack
from meshweave.frontends.python.functions.padding import pad as pad
from meshweave.frontends.python.functions.reduce import all as all
from meshweave.frontends.python.functions.reduce import any as any
from meshweave.frontends.python.functions.reduce import argmax as argmax
from meshweave.frontends.python.functions.reduce import argmin as argmin
from meshweave.frontends.python.functions.reduce import count_nonzero as count_nonzero
from meshweave.frontends.python.functions.reduce import cumulative_prod as cumulative_prod
from meshweave.frontends.python.functions.reduce import cumulative_sum as cumulative_sum
from meshweave.frontends.python.functions.reduce import diff as diff
from meshweave.frontends.python.functions.reduce import log_softmax as log_softmax
from meshweave.frontends.python.functions.reduce import logsumexp as logsumexp
from meshweave.frontends.python.functions.reduce import max as max
from meshweave.frontends.python.functions.reduce import mean as mean
from meshweave.frontends.python.functions.reduce import min as min
from meshweave.frontends.python.functions.reduce import prod as prod
from meshweave.frontends.python.functions.reduce import softmax as softmax
from meshweave.frontends.python.functions.reduce import std as std
from meshweave.frontends.python.functions.reduce import sum as sum
from meshweave.frontends.python.functions.reduce import var as var
from meshweave.frontends.python.functions.sized import nonzero as nonzero
from meshweave.frontends.python.functions.sized import unique_all as unique_all
from meshweave.frontends.python.functions.sized import unique_counts as unique_counts
from meshweave.frontends.python.functions.sized import unique_inverse as unique_inverse
from meshweave.frontends.python.functions.sized import unique_values as unique_values
from meshweave.frontends.python.functions.sort import argsort as argsort
from meshweave.frontends.python.functions.sort import sort as sort
from meshweave.frontends.python.functions.sort import top_k as top_k
from meshweave.frontends.python.functions.update import put_along_axis as put_along_axis
from meshweave.frontends.python.place import constrain as constrain
from meshweave.frontends.python.place import default_float as default_float
from meshweave.frontends.python.place import hint as hint
from meshweave.frontends.python.place import kernels as kernels
from meshweave.frontends.python.tape import stop_gradient as stop_gradient
from meshweave.jax.program import from_jax as from_jax
from meshweave.layout import Layout as Layout
from meshweave.layout import Mesh as Mesh
from meshweave.layout.lengths import Dim as Dim
from meshweave.layout.lengths import ShapeDtype as ShapeDtype
from meshweave.layout.spec import P as P
from meshweave.runtime.arrays.array import Array as Array
from meshweave.runtime.job.current import rank as rank
from meshweave.runtime.job.current import size as size
from meshweave.runtime.job.member import init as init
from meshweave.see.expect import expect as expect
from meshweave.tools.picture import show as show
from meshweave.torch.backend import torch_backend as torch_backend
from meshweave.torch.entry import from_torch as from_torch

bool = _bool
__version__: str
__array_api_version__: str

__all__ = [
    "Array",
    "Dim",
    "Layout",
    "Mesh",
    "MeshweaveError",
    "P",
    "Program",
    "ShapeDtype",
    "__version__",
    "compile",
    "cond",
    "constrain",
    "default_float",
    "expect",
    "from_jax",
    "from_mlir",
    "from_stablehlo",
    "from_torch",
    "grad",
    "hint",
    "init",
    "jit",
    "kernels",
    "load",
    "load_safetensors",
    "log_compiles",
    "quantize",
    "rank",
    "redistribute",
    "save",
    "scan",
    "show",
    "size",
    "stop_gradient",
    "torch_backend",
    "trace",
    "value_and_grad",
    "verify",
    "vjp",
    "vmap",
    "while_loop",
]

def __array_namespace_info__() -> _Info: ...
def __dir__() -> list[str]: ...
