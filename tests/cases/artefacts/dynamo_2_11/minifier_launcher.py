
import os
os.environ['TORCHDYNAMO_REPRO_LEVEL'] = '2'
os.environ['TORCHDYNAMO_REPRO_AFTER'] = 'dynamo'
os.environ['TORCH_COMPILE_DEBUG_DIR'] = '/home/someone/debug'
os.environ['TORCHINDUCTOR_CACHE_DIR'] = '/tmp/torchinductor_someone'

from math import inf
import torch
from torch import tensor, device
import torch.fx as fx
import torch._dynamo
from torch._dynamo.testing import rand_strided
from torch._dynamo.debug_utils import run_fwd_maybe_bwd

import torch._dynamo.config
import torch._inductor.config
import torch._functorch.config
import torch.fx.experimental._config

torch._inductor.config.inplace_buffers = True
torch._inductor.config.comprehensive_padding = True
torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = 'compile_error'
torch._inductor.config.triton.store_cubin = False
torch._functorch.config.functionalize_rng_ops = False
torch._functorch.config.fake_tensor_allow_unsafe_data_ptr_access = True
torch._functorch.config.unlift_effect_tokens = False
torch._functorch.config.selective_decompose = False






from torch.nn import *
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()



    def forward(self, L_s_modules_l_parameters_weight_ : torch.nn.parameter.Parameter, L_s_modules_l_parameters_bias_ : torch.nn.parameter.Parameter, L_x_ : torch.Tensor, L_s_buffers_b_ : torch.Tensor):
        l_s_modules_l_parameters_weight_ = L_s_modules_l_parameters_weight_
        l_s_modules_l_parameters_bias_ = L_s_modules_l_parameters_bias_
        l_x_ = L_x_
        l_s_buffers_b_ = L_s_buffers_b_
        y = torch._C._nn.linear(l_x_, l_s_modules_l_parameters_weight_, l_s_modules_l_parameters_bias_);  l_x_ = l_s_modules_l_parameters_weight_ = l_s_modules_l_parameters_bias_ = None
        relu = torch.relu(y);  y = None
        mul = l_s_buffers_b_ * 3;  l_s_buffers_b_ = None
        y_1 = relu + mul;  relu = mul = None
        sum_1 = y_1.sum(dim = -1)
        getitem = y_1[(Ellipsis, slice(1, 2, None))];  y_1 = None
        return (sum_1, getitem)


mod = Repro()

def load_args(reader):
    buf0 = reader.storage('61dfa6e18300efe5a0e8c3c2ffc23ecdb72ab4f0', 48)
    reader.tensor(buf0, (3, 4), requires_grad=True, is_leaf=True)  # L_s_modules_l_parameters_weight_
    buf1 = reader.storage('70a508e079d418ba239d0d213cba8a09268791da', 12)
    reader.tensor(buf1, (3,), requires_grad=True, is_leaf=True)  # L_s_modules_l_parameters_bias_
    buf2 = reader.storage('d429e138a341d30a7a05a20f1ded6c9bc22fa9a0', 80)
    reader.tensor(buf2, (5, 4), is_leaf=True)  # L_x_
    buf3 = reader.storage('66cdd54c62702bb4ca47029748a7a1341750a552', 12)
    reader.tensor(buf3, (3,), is_leaf=True)  # L_s_buffers_b_
load_args._version = 0

if __name__ == '__main__':
    from torch._dynamo.repro.after_dynamo import run_repro
    run_repro(mod, load_args, accuracy=False, command='minify',
        save_dir='/home/someone/debug', autocast=False, backend='inductor')
